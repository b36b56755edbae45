// PrivateBlocks: anonymous mappings for a transport's alloc() and free(), if processes need not share the
// memory.
//
// Thread safety: none.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "base/error.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

class PrivateBlocks {
 public:
  explicit PrivateBlocks(Rank rank) : rank_(rank) {}
  ~PrivateBlocks() {
    for (const auto& [at, bytes] : bytes_) munmap(at, bytes);
  }
  PrivateBlocks(const PrivateBlocks&) = delete;
  PrivateBlocks& operator=(const PrivateBlocks&) = delete;
  /// `bytes`: not 0. Error: kSystem with the errno's text.
  Expected<void*> alloc(uint64_t bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
      return make_error(StatusCode::kSystem, "rank {}: mapping {} MiB of memory failed: {}", rank_, bytes >> 20,
                        strerror(errno));
    madvise(at, bytes, MADV_HUGEPAGE);
    bytes_[at] = bytes;
    return at;
  }
  /// Error: kInvalidArgument (not from alloc()).
  Status free(void* ptr) {
    const auto found = bytes_.find(ptr);
    if (found == bytes_.end())
      return invalid_argument("rank {}: ptr was not made by alloc of this communicator", rank_);
    munmap(ptr, found->second);
    bytes_.erase(found);
    return {};
  }

 private:
  const Rank rank_;
  std::map<void*, uint64_t> bytes_;  // of each block
};

}  // namespace rondo
