// The benchmark of `rondo perf` on one rank: buffers, verification, timing, over the C ABI only.
//
// How a size is measured, out of place and then in place: the result is verified; warm-up calls; a barrier; the clock
// around iters x aggregate operations; the result is verified again. The times of the iterations are taken inside
// (perf_times.h), for the median and the spread. Hot: every call uses the same buffers. Cold
// (--rotate): every call takes the next place in buffers that are larger than the caches, whatever the size.
//
// Thread safety: one thread for each rank.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "perf_options.h"
#include "rondo/rondo.h"

namespace rondo::tools {

/// A sentence for the user; names the rank.
class PerfError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What the report says about the run.
struct PerfRun {
  std::string ranks_are;
  std::vector<std::string> args;
};

/// Collective: the whole sweep. Rank 0 prints the table and writes the JSON. True when every value was right on all
/// ranks. Throws PerfError.
bool bench(const PerfOptions& options, rondo_comm* comm, const PerfRun& run);

/// nranks threads of this process, each a rank. The exit status; says on stderr what went wrong.
int bench_threads(const PerfOptions& options, int nranks, const PerfRun& run);
/// This process as one rank of the world that its launcher describes (rondo_comm_init_env).
int bench_env(const PerfOptions& options, const PerfRun& run);

}  // namespace rondo::tools
