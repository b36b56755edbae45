// The speed of the host kernels' copies and reductions: every SIMD level of this machine, the shapes that schedules
// use, data in L1 (8 KiB a buffer), in L2 (256 KiB) and beyond the caches (64 MiB), and calls of a few elements.
//
// bytes_per_second counts bytes read and written: (sources + sinks) * bytes of one buffer. Names read
// kernel/level/dtype/op/SOURCESxSINKS/bytes; choose with --benchmark_filter. Rows of mixed types read
// mixed/level/OWN>WIRE>DST/op/what/elements; bytes are those of every source and sink in its own type.
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
};

struct Free {
  void operator()(uint8_t* p) const { free(p); }
};
using Memory = std::unique_ptr<uint8_t, Free>;

// Touched memory with small numbers of the dtype: no NaN, no subnormal. Buffers start at different places within a
// page, because loads and stores 4096 bytes apart slow one another down.
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
  benchmark::RegisterBenchmark(name.c_str(), [work](benchmark::State& state) { run(state, work); });
}

// A call of the mixed kernel: num_wire sources of the wire type after the own one, if any; sends, then dst[0], if any.
struct MixedWork {
  const KernelTable* table;
  TypeRow row;
  Op op;
  bool has_own;
  uint32_t num_wire;
  uint32_t num_sends;
  bool has_dst;
  bool result_as_wire;
  uint64_t num_elems;
};

void run_mixed(benchmark::State& state, const MixedWork& work) {
  const uint32_t num_src = (work.has_own ? 1 : 0) + work.num_wire, num_dst = work.num_sends + (work.has_dst ? 1 : 0);
  std::vector<Memory> memory;
  std::vector<const void*> src;
  std::vector<void*> dst;
  uint64_t moved_bytes = 0;
  for (uint32_t b = 0; b < num_src + num_dst; ++b) {
    Dtype dtype = work.row.wire;
    if (b == 0 && work.has_own) dtype = work.row.input;
    if (b == num_src && work.has_dst) dtype = work.row.output;
    const uint64_t first_byte = b * kStaggerBytes % 4096, num_bytes = work.num_elems * dtype_bytes(dtype);
    memory.push_back(make_buffer(num_bytes, first_byte));
    moved_bytes += num_bytes;
    if (b < num_src) src.push_back(memory.back().get() + first_byte);
    else dst.push_back(memory.back().get() + first_byte);
  }
  MixedKernelArgs m;
  m.args.src = src.data();
  m.args.dst = dst.data();
  m.args.num_src = num_src;
  m.args.num_dst = num_dst;
  m.args.num_elems = work.num_elems;
  m.args.own = work.has_own ? 0 : KernelArgs::kNoOwn;
  m.args.divide_by = work.op == Op::kAvg ? num_src : 0;
  m.op = work.op;
  m.own_type = work.row.input;
  m.wire = work.row.wire;
  m.dst_type = work.row.output;
  m.has_dst = work.has_dst;
  m.result_as_wire = work.result_as_wire;
  for (auto _ : state) {
    work.table->mixed(m);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(moved_bytes));
}

void add(const MixedWork& work) {
  std::string name = "mixed/" + std::string(work.table->level) + "/" + std::string(dtype_name(work.row.input)) + ">" +
                     std::string(dtype_name(work.row.wire)) + ">" + std::string(dtype_name(work.row.output)) + "/" +
                     std::string(op_name(work.op)) + "/";
  if (work.has_own) name += "own";
  if (work.num_wire != 0) name.append(work.has_own ? "+wire" : "wire").append(std::to_string(work.num_wire));
  name += "_to";
  if (work.num_sends != 0) name.append("_send").append(std::to_string(work.num_sends));
  if (work.has_dst) name += work.result_as_wire ? "_dst_as_wire" : "_dst";
  name.append("/").append(std::to_string(work.num_elems));
  benchmark::RegisterBenchmark(name.c_str(), [work](benchmark::State& state) { run_mixed(state, work); });
}

// The calls of collectives of mixed rows, 16384 elements each (64 KiB of fp32, which stays in L2), and the uniform fp32
// calls of the same sizes.
void add_mixed(const KernelTable* table) {
  constexpr uint64_t kElems = 16 << 10;
  constexpr Dtype kF = Dtype::kFloat32, kB = Dtype::kBfloat16, kH = Dtype::kFloat16;
  for (uint32_t num_src : {1, 2, 4, 8}) add({table, false, kF, Op::kSum, num_src, 1, kElems * 4, 0});
  for (uint32_t num_src : {1, 2}) add({table, false, kF, Op::kSum, num_src, 2, kElems * 4, 0});
  for (const TypeRow& row : {TypeRow{kF, kB, kF, kF}, TypeRow{kF, kB, kF, kB}, TypeRow{kB, kB, kF, kF},
                             TypeRow{kF, kH, kF, kF}, TypeRow{kF, kH, kF, kH}, TypeRow{kB, kF, kF, kB},
                             TypeRow{kF, Dtype::kFloat8E4m3, kF, kF}, TypeRow{kF, Dtype::kFloat8E5m2, kF, kF}}) {
    add({table, row, Op::kSum, true, 0, 1, false, false, kElems});  // send
    add({table, row, Op::kSum, false, 1, 0, true, false, kElems});  // receive
    add({table, row, Op::kSum, false, 1, 1, true, true, kElems});   // receive and pass on
    add({table, row, Op::kSum, true, 0, 1, true, true, kElems});    // start of an all-gather
    for (uint32_t num_wire : {1, 3, 7}) add({table, row, Op::kSum, true, num_wire, 0, true, false, kElems});
    add({table, row, Op::kSum, true, 1, 1, false, false, kElems});  // a step of a ring
    add({table, row, Op::kSum, true, 1, 1, true, true, kElems});    // its last reduction
    for (Op op : {Op::kAvg, Op::kMax}) add({table, row, op, true, 1, 0, true, false, kElems});
    add({table, row, Op::kSum, true, 1, 0, true, false, 14});
  }
}

void add_level(const KernelTable* table) {
  constexpr uint64_t kL1 = 8 << 10, kL2 = 256 << 10, kMemory = 64 << 20;
  for (uint64_t num_bytes : {kL1, kL2, kMemory}) {
    for (uint32_t num_dst : {1, 2, 4}) {
      add({table, true, Dtype::kUint8, Op::kSum, 1, num_dst, num_bytes, 0});
    }
  }
  for (int d = 0; d < kNumDtypes; ++d) {
    const Dtype dtype = static_cast<Dtype>(d);
    for (uint64_t num_bytes : {kL1, kL2}) {
      for (Op op : {Op::kSum, Op::kProd, Op::kMax}) add({table, false, dtype, op, 2, 1, num_bytes, 0});
      for (uint32_t divide_by : {8, 7}) add({table, false, dtype, Op::kAvg, 2, 1, num_bytes, divide_by});
    }
    add({table, false, dtype, Op::kSum, 2, 2, kL1, 0});
    add({table, false, dtype, Op::kSum, 8, 1, kL1, 0});
  }
  for (Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16}) {
    add({table, false, dtype, Op::kSum, 2, 1, kMemory, 0});
    add({table, false, dtype, Op::kSum, 2, 2, kMemory, 0});
    for (uint32_t num_src : {4, 16, 64}) {
      add({table, false, dtype, Op::kSum, num_src, 1, kL2, 0});
      add({table, false, dtype, Op::kSum, num_src, 1, kMemory / 16, 0});
    }
    for (uint64_t num_elems : {1, 2, 4, 7, 14, 63}) {
      add({table, false, dtype, Op::kSum, 2, 1, num_elems * dtype_bytes(dtype), 0});
    }
  }
}

}  // namespace
}  // namespace rondo

int main(int argc, char** argv) {
  using rondo::SimdLevel;
  for (SimdLevel level : {SimdLevel::kBaseline, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    const rondo::KernelTable* table = rondo::kernel_table(level);
    if (table == nullptr) continue;
    rondo::add_level(table);
    rondo::add_mixed(table);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
