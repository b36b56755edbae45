// How fast the host kernels copy and reduce: every SIMD level of this machine, the shapes that schedules use, data in L1
// (8 KiB a buffer), in L2 (256 KiB) and beyond the caches' reach (64 MiB), and calls of a few elements.
//
// bytes_per_second counts what is read and written: (sources + sinks) * bytes of one buffer. Names read
// kernel/level/dtype/op/SOURCESxSINKS/bytes; choose with --benchmark_filter.
#include <benchmark/benchmark.h>
#include <stdlib.h>
#include <string.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace rondo {
namespace {

struct Work {
  const KernelTable* table;
  bool copies;  // the copy kernel; else reduce
  Dtype dtype;
  Op op;
  uint32_t num_src;
  uint32_t num_dst;
  uint64_t num_bytes;
  uint32_t divide_by;
  bool stream;
};

struct Free {
  void operator()(uint8_t* p) const { free(p); }
};
using Memory = std::unique_ptr<uint8_t, Free>;

// Memory that is touched and holds small numbers of the dtype: no NaN, no subnormal. Buffers start at different places
// within a page: loads and stores 4096 bytes apart would hinder one another, which is not what is measured here.
constexpr uint64_t kStaggerBytes = 576;
Memory make_buffer(uint64_t num_bytes, uint64_t first_byte) {
  Memory memory(static_cast<uint8_t*>(aligned_alloc(4096, (first_byte + num_bytes + 4095) / 4096 * 4096)));
  memset(memory.get(), 0x3c, first_byte + num_bytes);
  return memory;
}

void run(benchmark::State& state, const Work& work) {
  std::vector<Memory> memory;
  std::vector<const void*> src;
  std::vector<void*> dst;
  for (uint32_t b = 0; b < work.num_src + work.num_dst; ++b) {
    const uint64_t first_byte = b * kStaggerBytes % 4096;
    memory.push_back(make_buffer(work.num_bytes, first_byte));
    if (b < work.num_src) src.push_back(memory.back().get() + first_byte);
    else dst.push_back(memory.back().get() + first_byte);
  }
  KernelArgs args;
  args.src = src.data();
  args.dst = dst.data();
  args.num_src = work.num_src;
  args.num_dst = work.num_dst;
  args.num_elems = work.copies ? work.num_bytes : work.num_bytes / dtype_bytes(work.dtype);
  args.divide_by = work.divide_by;
  args.stream = work.stream;
  const Kernel kernel = work.copies
                            ? work.table->copy
                            : work.table->reduce[static_cast<int>(work.dtype)][static_cast<int>(work.op)];
  for (auto _ : state) {
    kernel(args);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>((work.num_src + work.num_dst) * work.num_bytes));
}

void add(const Work& work) {
  std::string name = work.copies ? "copy/" : "reduce/";
  name += std::string(work.table->level) + "/";
  if (!work.copies) name += std::string(dtype_name(work.dtype)) + "/" + std::string(op_name(work.op)) + "/";
  name += std::to_string(work.num_src) + "x" + std::to_string(work.num_dst) + "/" + std::to_string(work.num_bytes);
  if (work.divide_by != 0) name += "/by" + std::to_string(work.divide_by);
  if (work.stream) name += "/stream";
  benchmark::RegisterBenchmark(name.c_str(), [work](benchmark::State& state) { run(state, work); });
}

void add_level(const KernelTable* table) {
  constexpr uint64_t kL1 = 8 << 10, kL2 = 256 << 10, kMemory = 64 << 20;
  for (uint64_t num_bytes : {kL1, kL2, kMemory}) {
    for (uint32_t num_dst : {1, 2, 4}) {
      add({table, true, Dtype::kUint8, Op::kSum, 1, num_dst, num_bytes, 0, false});
      if (num_bytes == kMemory) add({table, true, Dtype::kUint8, Op::kSum, 1, num_dst, num_bytes, 0, true});
    }
  }
  for (int d = 0; d < kNumDtypes; ++d) {
    const Dtype dtype = static_cast<Dtype>(d);
    for (uint64_t num_bytes : {kL1, kL2}) {
      for (Op op : {Op::kSum, Op::kProd, Op::kMax}) add({table, false, dtype, op, 2, 1, num_bytes, 0, false});
      for (uint32_t divide_by : {8, 7}) add({table, false, dtype, Op::kAvg, 2, 1, num_bytes, divide_by, false});
    }
    add({table, false, dtype, Op::kSum, 2, 2, kL1, 0, false});
    add({table, false, dtype, Op::kSum, 8, 1, kL1, 0, false});
  }
  for (Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16}) {
    for (bool stream : {false, true}) {
      add({table, false, dtype, Op::kSum, 2, 1, kMemory, 0, stream});
      add({table, false, dtype, Op::kSum, 2, 2, kMemory, 0, stream});
    }
    for (uint32_t num_src : {4, 16, 64}) {
      add({table, false, dtype, Op::kSum, num_src, 1, kL2, 0, false});
      add({table, false, dtype, Op::kSum, num_src, 1, kMemory / 16, 0, false});
    }
    for (uint64_t num_elems : {1, 2, 4, 7, 14, 63}) {
      add({table, false, dtype, Op::kSum, 2, 1, num_elems * dtype_bytes(dtype), 0, false});
    }
  }
}

}  // namespace
}  // namespace rondo

int main(int argc, char** argv) {
  using rondo::SimdLevel;
  for (SimdLevel level : {SimdLevel::kBaseline, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (const rondo::KernelTable* table = rondo::kernel_table(level)) rondo::add_level(table);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
