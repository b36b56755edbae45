// Options of `rondo perf`: nccl-tests' flags as plain data, and functions of them that need no communicator.
// Thread safety: pure functions over values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "perf_operations.h"
#include "rondo/algorithm.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo::tools {

enum class Averaging { kRank0 = 0, kMean = 1, kMin = 2, kMax = 3 };
enum class Blocking {
  kQueue = 0,           // queues all iterations, then waits for them
  kBarrier = 1,         // blocking calls, each followed by a barrier
  kBackToBack = 2,      // blocking calls, one after another
  kUntimedBarrier = 3,  // blocking calls, each followed by an untimed barrier
};

struct PerfOptions {
  const PerfOperation* operation = &perf_operations()[0];
  uint64_t min_bytes = 32u << 20;
  uint64_t max_bytes = 32u << 20;
  uint64_t step_bytes = 1u << 20;
  uint64_t step_factor = 1;  // above 1: multiplies sizes, and step_bytes is unused
  int iters = 20;
  int warmup_iters = 1;
  int aggregate = 1;   // operations in a group
  int run_cycles = 1;  // 0: forever
  int check = 1;       // verifications of each result before and after the timing
  int blocking = 2;    // Blocking
  int average = 1;     // Averaging
  int registered = 0;  // 1 and 2: buffers from rondo_alloc
  int unalign_elems = 0;
  int rotate = 0;   // buffer sets; 0 and 1: one set, hot
  int ranks = 0;    // processes to start; 0: none
  int threads = 0;  // ranks as threads; 0: none
  bool on_device = false;  // CUDA buffers; rank r uses device r modulo the device count
  double timeout_s = 0;
  std::vector<Dtype> dtypes{Dtype::kFloat32};
  std::vector<Op> ops{Op::kSum};
  std::optional<Dtype> wire, accumulator, output;  // nullopt: derived from the datatype
  int root = 0;                                    // -1: each rank in turn
  std::string algorithm, protocol, hosts;
  std::string json_path;     // "-": the standard output
  bool timestamps = false;   // adds nccl-tests' timestamp column
  bool explain = false;      // measures every candidate instead of the table
  bool json_stdout = false;  // with explain
  int bursts = 7;            // with explain
  double burst_us = 1500;    // with explain
  bool show_plan = false;
};

/// "4096", "1K", "1.5M", "2GiB": a number of bytes, powers of 1024. Errors: kInvalidArgument with the reason.
Expected<uint64_t> parse_bytes(std::string_view text);
/// "there is no algorithm 'zigzag' for all_reduce: choose one of ring, tree, ...": the error for an unknown name.
Status no_such(std::string_view what, std::string_view name, const std::vector<std::string>& names);
/// "all_reduce", "all-reduce", "AllReduce", "all_reduce_perf": a row of RONDO_COLLECTIVES.
std::optional<Collective> parse_collective(std::string_view text);
/// The same. Errors: kInvalidArgument with the known names.
Expected<Collective> named_collective(std::string_view text);
/// An algorithm of the registry by its name or NCCL's spelling: "ring", "Ring", "two-shot". Errors: kInvalidArgument
/// with the known names for the collective.
Expected<const Algorithm*> named_algorithm(Collective collective, std::string_view name);
/// RONDO_PROTO's name of a protocol, from that name or NCCL's: "Simple", "LL128". Errors: kInvalidArgument.
Expected<std::string> named_protocol(std::string_view name);
/// Comma-separated names, or "all". Names of rondo or nccl-tests (float, fp32, half, fp16, f8e4m3, ...).
Expected<std::vector<Dtype>> parse_dtypes(std::string_view text);
/// "all" stands for the operators of every type.
Expected<std::vector<Op>> parse_ops(std::string_view text);

/// The sizes of one sweep, ascending, never empty. Errors: kInvalidArgument (maximum below minimum).
Expected<std::vector<uint64_t>> sweep_bytes(const PerfOptions& options);

/// The four types of a call on elements of `dtype`.
TypeRow types_of(const PerfOptions& options, Dtype dtype);

}  // namespace rondo::tools
