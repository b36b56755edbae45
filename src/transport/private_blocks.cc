#include "transport/private_blocks.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace rondo {

PrivateBlocks::~PrivateBlocks() {
  for (const auto& [at, bytes] : bytes_) munmap(at, bytes);
}

Expected<void*> PrivateBlocks::alloc(uint64_t bytes) {
  bytes = std::max<uint64_t>(bytes, 1);
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return Status(StatusCode::kSystem,
                  fmt::format("rank {}: mapping {} MiB of memory failed: {}", rank_, bytes >> 20, strerror(errno)));
  madvise(at, bytes, MADV_HUGEPAGE);
  bytes_[at] = bytes;
  return at;
}

Status PrivateBlocks::free(void* ptr) {
  const auto found = bytes_.find(ptr);
  if (found == bytes_.end())
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("rank {}: ptr was not made by alloc of this communicator", rank_));
  munmap(ptr, found->second);
  bytes_.erase(found);
  return {};
}

}  // namespace rondo
