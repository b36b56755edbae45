// Replaces the folder of a checkpoint. Called by one rank.
//
//   DIR          the last complete checkpoint, if there is one
//   DIR.saving   the next one. It swaps places with DIR in one step, and then the old one is removed.
//
// Only files of checkpoints are ever removed.
#pragma once

#include <string>

#include "rondo/status.h"

namespace rondo::fsdp {

/// shard-00001-model-00001-of-00001.safetensors for rank 0.
std::string shard_name(int rank);
constexpr const char* kOptimizerFolder = "optimizer";

/// Removes a checkpoint, complete or not. Ok if there is none. Errors: kInvalidArgument, which names the first file
/// that is not part of a checkpoint; kSystem.
Status remove_checkpoint(const std::string& folder);
/// Makes an empty DIR.saving, with a folder for the optimizer if requested. Errors: as remove_checkpoint, also if DIR
/// holds more than a checkpoint.
Status begin_folder(const std::string& folder, bool optimizer);
/// Moves DIR.saving to DIR and then sets *replaced. Errors: kSystem, kUnsupported. If an error comes with *replaced
/// set, a crash may undo the move, and DIR.saving holds the old checkpoint.
Status replace_folder(const std::string& folder, bool* replaced);

}  // namespace rondo::fsdp
