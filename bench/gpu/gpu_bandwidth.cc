// gpu_bandwidth: the bandwidth of the reduction kernels, beside a copy within the device's memory.
//
// Times each kernel and the copy in turns by events, --repeats times. Prints one JSON object a line: the median GB/s
// (10^9 bytes read and written a second), the least and the most, and the ratio to the copy's median.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "device/driver/handles.h"
#include "device/driver/kernel_loader.h"
#include "device/engine/grid_reduce.h"
#include "device/engine/images.h"

namespace {

using namespace rondo;  // NOLINT: one file

struct Contender {
  const char* name;
  const char* kernel;  // nullptr: the driver's copy
  uint32_t num_src, num_dst;
  uint32_t elem_bytes;
  std::vector<double> gbps = {};
};

void need(const Status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "gpu_bandwidth: %s\n", s.to_string().c_str());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : uint64_t{256} << 20;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 15;
  const cuda::Driver* d = cuda::driver();
  if (d == nullptr) {
    std::fprintf(stderr, "gpu_bandwidth: %s\n", cuda::why_no_driver().c_str());
    return 77;
  }
  auto context = cuda::PrimaryContext::retain(0);
  need(context.status());
  need(cuda::check(d->context_set_current(context->get()), "cuCtxSetCurrent"));
  auto stream = cuda::OwnedStream::make();
  need(stream.status());
  std::vector<cuda::DeviceMemory> arrays;
  for (int i = 0; i < 6; ++i) {
    auto made = cuda::DeviceMemory::make(bytes);
    need(made.status());
    need(cuda::check(d->memset_d8_async(made->get(), 0, bytes, stream->get()), "cuMemsetD8Async"));
    arrays.push_back(std::move(*made));
  }
  int multiprocessors = 1;
  d->device_attribute(&multiprocessors, cuda::kAttrMultiprocessorCount, 0);
  auto kernels = KernelLoader::of(context->get());
  Contender contenders[] = {{"device copy", nullptr, 1, 1, 1},
                            {"copy kernel", "rondo_copy", 1, 1, 1},
                            {"float sum of 2", "rondo_reduce_float_sum", 2, 1, 4},
                            {"float sum of 2 into 2", "rondo_reduce_float_sum", 2, 2, 4},
                            {"float sum of 4", "rondo_reduce_float_sum", 4, 1, 4},
                            {"bfloat16 sum of 2", "rondo_reduce_bfloat16_sum", 2, 1, 2},
                            {"half sum of 2", "rondo_reduce_half_sum", 2, 1, 2},
                            {"double sum of 2", "rondo_reduce_double_sum", 2, 1, 8},
                            {"fp8_e4m3 sum of 2", "rondo_reduce_fp8_e4m3_sum", 2, 1, 1},
                            {"int32 max of 2", "rondo_reduce_int32_max", 2, 1, 4}};
  auto begin = cuda::OwnedEvent::make(cuda::OwnedEvent::Times::kYes),
       end = cuda::OwnedEvent::make(cuda::OwnedEvent::Times::kYes);
  need(begin.status());
  need(end.status());
  for (int r = -2; r < repeats; ++r)  // two rounds to warm up
    for (Contender& c : contenders) {
      d->event_record(begin->get(), stream->get());
      if (c.kernel == nullptr) {
        need(cuda::check(d->memcpy_async(arrays[4].get(), arrays[0].get(), bytes, stream->get()), "cuMemcpyAsync"));
      } else {
        auto function = kernels->find(collective_images(), c.kernel);
        need(function.status());
        ReduceArgs args{};
        for (uint32_t i = 0; i < c.num_src; ++i) args.src[args.step.num_src++] = arrays[i].as();
        for (uint32_t i = 0; i < c.num_dst; ++i) args.dst[args.step.num_dst++] = arrays[4 + i].as();
        args.step.num_elems = bytes / c.elem_bytes;
        args.step.own = UINT32_MAX;
        void* params[] = {&args};
        cuda::LaunchConfig config{
            static_cast<unsigned>(4 * multiprocessors), 1, 1, 512, 1, 1, 0, stream->get(), nullptr, 0};
        need(cuda::check(d->launch_kernel(&config, *function, params, nullptr), c.kernel));
      }
      d->event_record(end->get(), stream->get());
      need(cuda::check(d->stream_synchronize(stream->get()), c.name));
      float ms = 0;
      need(cuda::check(d->event_elapsed_ms(&ms, begin->get(), end->get()), "cuEventElapsedTime"));
      if (r >= 0) c.gbps.push_back(static_cast<double>(bytes) * (c.num_src + c.num_dst) / (ms * 1e6));
    }
  double copy = 0;
  for (Contender& c : contenders) {
    std::sort(c.gbps.begin(), c.gbps.end());
    const double median = c.gbps[c.gbps.size() / 2];
    if (c.kernel == nullptr) copy = median;
    std::printf(
        "{\"what\": \"%s\", \"bytes\": %llu, \"gbps\": %.1f, \"least\": %.1f, \"most\": %.1f, \"of_copy\": %.3f}\n",
        c.name, static_cast<unsigned long long>(bytes), median, c.gbps.front(), c.gbps.back(), median / copy);
  }
}
