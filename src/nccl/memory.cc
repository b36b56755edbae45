#include "nccl/memory.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "nccl/comm.h"
#include "nccl/process.h"
#include "nccl/result.h"

namespace rondo::nccl {

namespace {

// cuPointerGetAttribute of libcuda, declared without its headers: (what is asked for, to, pointer).
using PointerAttribute = int (*)(void* to, int attribute, uint64_t pointer);

std::atomic<PointerAttribute>& driver() {
  static std::atomic<PointerAttribute> found{nullptr};
  return found;
}

}  // namespace

void look_for_driver() {
  if (driver().load() != nullptr) return;
  // Only one that the program itself has loaded: without it there is no device memory in this process.
  void* library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  driver().store(reinterpret_cast<PointerAttribute>(::dlsym(library, "cuPointerGetAttribute")));
  ::dlclose(library);  // the program keeps it
}

Status check_place(const void* buffer, const char* name) {
  if (buffer == nullptr) return {};
  const PointerAttribute attribute_of = driver().load(std::memory_order_relaxed);
  if (attribute_of == nullptr) [[likely]]
    return {};
  constexpr int kMemoryType = 2, kIsManaged = 8, kDevice = 2;  // CU_POINTER_ATTRIBUTE_*, CU_MEMORYTYPE_DEVICE
  const auto address = reinterpret_cast<uintptr_t>(buffer);
  unsigned type = 0, managed = 0;
  if (attribute_of(&type, kMemoryType, address) != 0 || type != kDevice) return {};  // not known to CUDA: host memory
  if (attribute_of(&managed, kIsManaged, address) == 0 && managed != 0) return {};
  return bad_usage(
      fmt::format("{} is device memory, and this release of rondo's libnccl.so.2 works on host memory only: "
                  "run the program on NVIDIA's library (without LD_PRELOAD)",
                  name));
}

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
