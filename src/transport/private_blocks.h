// PrivateBlocks: anonymous mappings for a transport's alloc() and free(), if processes need not share the
// memory.
//
// Thread safety: none.
#pragma once

#include <map>

#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

class PrivateBlocks {
 public:
  explicit PrivateBlocks(Rank rank) : rank_(rank) {}
  ~PrivateBlocks();
  PrivateBlocks(const PrivateBlocks&) = delete;
  PrivateBlocks& operator=(const PrivateBlocks&) = delete;
  /// Error: kSystem with the errno's text.
  Expected<void*> alloc(uint64_t bytes);
  /// Error: kInvalidArgument (not from alloc()).
  Status free(void* ptr);

 private:
  const Rank rank_;
  std::map<void*, uint64_t> bytes_;  // of each block
};

}  // namespace rondo
