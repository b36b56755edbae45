// The folder of a checkpoint while it is being replaced. One rank calls these.
//
//   DIR          the last complete checkpoint, if there is one
//   DIR.saving   the next one; it takes DIR's place, and DIR its, in one step, and then goes
//
// Nothing but files of checkpoints is ever removed.
#pragma once

#include <string>

#include "rondo/status.h"

namespace rondo::fsdp {

/// shard-00001-model-00001-of-00001.safetensors of rank 0.
std::string shard_name(int rank);
constexpr const char* kOptimizerFolder = "optimizer";

/// What is there already may be replaced: nothing, an empty folder, or a checkpoint and no other file. Errors:
/// kInvalidArgument, which names what stands in the way.
Status check_replaceable(const std::string& folder);
/// Removes a checkpoint, complete or not; ok when there is none. Errors: those of check_replaceable, kSystem.
Status remove_checkpoint(const std::string& folder);
/// An empty DIR.saving, with a folder for the optimizer where asked.
Status begin_folder(const std::string& folder, bool optimizer);
/// DIR.saving becomes DIR, and replaced is set as soon as it is. Errors: kSystem, kUnsupported; one with replaced set
/// says that a crash may undo it, and leaves the old one as DIR.saving.
Status replace_folder(const std::string& folder, bool* replaced);

}  // namespace rondo::fsdp
