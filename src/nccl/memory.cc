#include "nccl/memory.h"

#include <cstdlib>
#include <cstring>
#include <memory>

#include "config/setting_table.h"
#include "device/driver/handles.h"
#include "nccl/process.h"
#include "nccl/result.h"

namespace rondo::nccl {

namespace {

bool has_device() {
  int count = 0;
  const cuda::Driver* d = cuda::driver();
  return d != nullptr && d->device_count(&count) == cuda::kSuccess && count > 0;
}

// The calling thread's context or, as in CUDA's runtime, device 0's.
Expected<cuda::PrimaryContext> make_current() {
  RONDO_TRY_ASSIGN(const cuda::Driver* d, cuda::need_driver());
  cuda::Context context = nullptr;
  RONDO_TRY(cuda::check(d->context_get_current(&context), "cuCtxGetCurrent"));
  if (context != nullptr) return cuda::PrimaryContext();
  RONDO_TRY_ASSIGN(auto own, cuda::PrimaryContext::retain(0));
  RONDO_TRY(cuda::check(d->context_set_current(own.get()), "cuCtxSetCurrent"));
  return own;
}

}  // namespace

Memory memory_of_process() {
  const auto preference = read_process_settings();  // errors are reported when communicators are made
  if (preference.ok() && preference->nccl_memory == "host") return Memory::kHost;
  return (preference.ok() && preference->nccl_memory == "cuda") || has_device() ? Memory::kCuda : Memory::kHost;
}

int current_device() {
  if (memory_of_process() == Memory::kHost) return -1;
  cuda::Device device = 0;
  const cuda::Driver* d = cuda::driver();
  return d != nullptr && d->context_get_device(&device) == cuda::kSuccess ? device : 0;
}

Status check_place(const void* buffer, const char* name) {
  const cuda::Driver* d = buffer != nullptr ? cuda::driver() : nullptr;
  if (d == nullptr) [[likely]]
    return {};
  const auto address = reinterpret_cast<cuda::DevicePtr>(buffer);
  unsigned type = 0, managed = 0;
  if (d->pointer_attribute(&type, cuda::kPointerMemoryType, address) != cuda::kSuccess ||
      type != cuda::kMemoryTypeDevice)
    return {};  // unknown to CUDA: host memory
  if (d->pointer_attribute(&managed, cuda::kPointerIsManaged, address) == cuda::kSuccess && managed != 0) return {};
  return unsupported(
      "{} is device memory, but this communicator was made for host memory (RONDO_NCCL_MEMORY=host): remove that "
      "setting",
      name);
}

Expected<void*> alloc_memory(size_t bytes) {
  constexpr size_t kPage = 4096;  // NCCL_WIN_REQUIRED_ALIGNMENT
  if (bytes > SIZE_MAX - kPage) return invalid_argument("size is {}: more than the address space", bytes);
  const size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  if (memory_of_process() == Memory::kCuda) {
    RONDO_TRY_ASSIGN(const auto current, make_current());
    RONDO_TRY_ASSIGN(auto memory, cuda::DeviceMemory::make(rounded));
    RONDO_TRY_ASSIGN(const auto stream, cuda::OwnedStream::make());
    RONDO_TRY(cuda::clear(stream.get(), memory.get(), rounded));
    void* const pointer = memory.as();
    process().own_memory(pointer, std::make_shared<cuda::DeviceMemory>(std::move(memory)));
    return pointer;
  }
  void* pointer = std::aligned_alloc(kPage, rounded);
  if (pointer == nullptr) return make_error(StatusCode::kSystem, "no memory for {} bytes", rounded);
  std::memset(pointer, 0, rounded);
  process().own_memory(pointer, {pointer, std::free});
  return pointer;
}

Status free_memory(void* pointer) {
  if (pointer == nullptr || process().free_memory(pointer)) return {};
  return invalid_argument("the pointer is not from ncclMemAlloc, or was already freed");
}

}  // namespace rondo::nccl
