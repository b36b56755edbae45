// The benchmark of `rondo perf` on one rank: buffers, verification and timing. It uses only the C ABI.
//
// Each size is measured out of place and then in place: verify the result, warm up, barrier, time iters x aggregate
// operations, verify again. perf_times.h times single iterations for the median and the spread. Hot: every call uses
// the same buffers. Cold (--rotate): every call uses the next place in buffers that are larger than the caches.
// Thread safety: one thread for each rank.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "perf_options.h"
#include "rondo/rondo.h"

namespace rondo::tools {

/// An error message for the user, with the rank.
class PerfError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Facts about the run for the report.
struct PerfRun {
  std::string ranks_are;
  std::vector<std::string> args;
};

/// Collective. Runs the whole sweep. Rank 0 prints the table and writes the JSON. Returns true if every value was
/// correct on all ranks. Throws PerfError.
bool bench(const PerfOptions& options, rondo_comm* comm, const PerfRun& run);

/// Runs nranks threads, each as one rank. Returns the exit status and prints errors on stderr.
int bench_threads(const PerfOptions& options, int nranks, const PerfRun& run);
/// Runs this process as one rank of the launcher's job (rondo_comm_init_env).
int bench_env(const PerfOptions& options, const PerfRun& run);

}  // namespace rondo::tools
