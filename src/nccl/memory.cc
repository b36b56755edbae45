#include "nccl/memory.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

#include "nccl/comm.h"
#include "nccl/process.h"
#include "nccl/result.h"

namespace rondo::nccl {

MemoryPlace place_of(const Comm& /*comm*/) { return MemoryPlace::kHost; }

void add_stream(const Comm& comm, cudaStream_t /*stream*/, CallOptions* /*options*/) {
  RONDO_CHECK(place_of(comm) == MemoryPlace::kHost);  // host calls have no stream
}

Expected<void*> alloc_memory(size_t bytes) {
  constexpr size_t kPage = 4096;  // NCCL_WIN_REQUIRED_ALIGNMENT
  if (bytes > SIZE_MAX - kPage) return bad_argument(fmt::format("size is {}: more than there is", bytes));
  const size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  void* pointer = std::aligned_alloc(kPage, rounded);
  if (pointer == nullptr) return Status(StatusCode::kSystem, fmt::format("no memory for {} bytes", rounded));
  std::memset(pointer, 0, rounded);
  process().own_memory(pointer, rounded);
  return pointer;
}

Status free_memory(void* pointer) {
  if (pointer == nullptr) return {};
  if (!process().disown_memory(pointer))
    return bad_argument("the pointer is none of ncclMemAlloc, or was freed before");
  std::free(pointer);
  return {};
}

}  // namespace rondo::nccl
