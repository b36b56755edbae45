#include "nccl_flags.h"

#include <fmt/format.h>

#include <string_view>

namespace rondo::tools {
namespace {

struct Flag {
  std::string_view names;
  std::string_view there;  // effect in nccl-tests
  std::string_view here;   // reason in rondo
  bool refused = false;    // the flag would change the measurement
};

constexpr Flag kFlags[] = {
    {"-p,--parallel_init", "initialises NCCL by several threads at once", "rondo's ranks always initialise at once"},
    {"-y,--stream_null", "uses the CUDA stream NULL", "a rank on a device has its own stream, a host rank has none"},
    {"-C,--report_cputime", "reports the CPU's time to enqueue the operations",
     "the column time is the whole time of an operation"},
    {"-x,--cta_policy", "sets NCCL's policy for thread blocks", "rondo has no such policy; see --algo and --proto"},
    {"-V,--device_cta_count", "sets the thread blocks of -D", "there is no -D"},
    {"-M,--memory", "reports the GPU memory that NCCL uses", "rondo info shows the memory of running processes"},
    {"-I,--per_iter_timing", "adds columns with the times of single iterations",
     "every row has the columns median, p10 and p90"},
    {"-K,--per_iter_skip", "skips the first iterations in -I", "-w sets how many iterations are not timed"},
    {"-G,--cudagraph", "replays the iterations as a CUDA graph", "rondo perf times calls", true},
    {"-D,--device_implementation", "measures its own kernel on NCCL's device API", "rondo perf measures the library",
     true},
};

}  // namespace

NcclFlags::NcclFlags() : values_(std::size(kFlags)) {}

void NcclFlags::add_to(CLI::App& command) {
  for (size_t i = 0; i < values_.size(); ++i)
    command
        .add_option(std::string(kFlags[i].names), values_[i],
                    fmt::format("nccl-tests {}; {}: {}", kFlags[i].there, kFlags[i].refused ? "refused here" : "here",
                                kFlags[i].here))
        ->type_name("N")
        ->group("Flags of nccl-tests that are accepted and have no effect; 0 is always accepted");
}

std::vector<std::string> NcclFlags::answers() const {
  std::vector<std::string> lines;
  for (size_t i = 0; i < values_.size(); ++i)
    if (values_[i] != 0 && !kFlags[i].refused)
      lines.push_back(fmt::format("{} {} has no effect: nccl-tests {} with it; here {}", kFlags[i].names, values_[i],
                                  kFlags[i].there, kFlags[i].here));
  return lines;
}

std::string NcclFlags::refusal() const {
  for (size_t i = 0; i < values_.size(); ++i)
    if (values_[i] != 0 && kFlags[i].refused)
      return fmt::format("{} {}: nccl-tests {} with it, and {}: leave it out", kFlags[i].names, values_[i],
                         kFlags[i].there, kFlags[i].here);
  return "";
}

}  // namespace rondo::tools
