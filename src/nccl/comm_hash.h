// Ids and hashes of a communicator. The hashes are equal on all its ranks, so that logs of several ranks can be
// matched.
#pragma once

#include <cstdint>

#include "nccl/abi.h"
#include "rondo/communicator.h"

namespace rondo::nccl {

UniqueId rondo_id(const ncclUniqueId& id);
uint64_t hash_of_id(const ncclUniqueId& id);
/// For the nth communicator made from a parent, with this colour.
uint64_t hash_of_child(uint64_t parent, uint64_t nth, int colour);
/// For ranks that are all in this call.
uint64_t new_hash();

}  // namespace rondo::nccl
