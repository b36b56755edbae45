#include "perf_device.h"

#include <string>

#include "perf_bench.h"

namespace rondo::tools {
namespace {

template <class T>
T value(Expected<T> made) {
  if (!made.ok()) throw PerfError(made.status().to_string());
  return std::move(*made);
}
void check(cuda::Result result, const char* what) {
  if (const Status s = cuda::check(result, what); !s.ok()) throw PerfError(s.to_string());
}
cuda::DevicePtr device(const std::byte* p) { return reinterpret_cast<cuda::DevicePtr>(p); }

}  // namespace

int PerfDevice::count() {
  int n = 0;
  check(value(cuda::need_driver())->device_count(&n), "cuDeviceGetCount");
  return n;
}

PerfDevice::PerfDevice(int ordinal) {
  const cuda::Driver* d = value(cuda::need_driver());
  cuda::Device number = 0;
  check(d->device_get(&number, ordinal), "cuDeviceGet");
  context_ = value(cuda::PrimaryContext::retain(number));
  check(d->context_set_current(context_.get()), "cuCtxSetCurrent");
  stream_ = value(cuda::OwnedStream::make());
}

void PerfDevice::fill(std::byte* to, int byte, uint64_t bytes) {
  if (bytes == 0) return;
  check(cuda::driver()->memset_d8_async(device(to), static_cast<unsigned char>(byte), bytes, stream_.get()),
        "cuMemsetD8Async");
  synchronize();
}
void PerfDevice::upload(std::byte* to, const std::byte* from, uint64_t bytes) {
  if (bytes == 0) return;
  if (const Status s = cuda::upload(stream_.get(), device(to), from, bytes); !s.ok()) throw PerfError(s.to_string());
}
void PerfDevice::download(std::byte* to, const std::byte* from, uint64_t bytes) {
  if (bytes == 0) return synchronize();
  if (const Status s = cuda::download(stream_.get(), to, device(from), bytes); !s.ok()) throw PerfError(s.to_string());
}
void PerfDevice::synchronize() { check(cuda::driver()->stream_synchronize(stream_.get()), "cuStreamSynchronize"); }

std::byte* PerfDevice::host(uint64_t bytes) {
  if (host_.size() < bytes) host_.resize(bytes);
  return host_.data();
}

}  // namespace rondo::tools
