#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "api/communicator_impl.h"
#include "calibrate.h"
#include "calibrate_trust.h"
#include "perf_bench.h"
#include "perf_candidates.h"
#include "plan/fit_constants.h"
#include "plan/machine_file.h"

namespace rondo::tools {
namespace {

constexpr Collective kTimed[] = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                                 Collective::kBroadcast};
constexpr uint64_t kTimedBytes[] = {256, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
constexpr size_t kFirst = static_cast<size_t>(kFirstHostTerm);

std::vector<Observation> observe(Communicator& comm) {
  CandidateBenchOptions options;
  options.bursts = 7;
  options.point_s = 0.5;
  CandidateBench bench(comm, kTimedBytes[std::size(kTimedBytes) - 1], options);
  std::vector<Observation> all;
  for (const uint64_t bytes : kTimedBytes)
    for (const Collective c : kTimed)
      for (const MeasuredCandidate& m : bench.measure(c, bytes).candidates)
        if (m.candidate.counts[kFirst] > 0) all.push_back({m.candidate.counts, m.median_ns()});
  return all;
}

Calibration known_before(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    Calibration c;
    if (const auto measured = read_machine_file(machine_file_path()); measured.ok() && *measured) c.costs = **measured;
    return c;
  }
  std::stringstream text;
  text << file.rdbuf();
  auto before = parse_calibration(text.str());
  if (!before.ok()) fail_calibrate(fmt::format("{}: {}", path, before.status().message()));
  const bool usable = before->version == kCalibrationVersion && before->cpu == processor_name();
  if (!usable)
    std::printf("%s is from another version or processor: using the built-in constants instead\n", path.c_str());
  return usable ? std::move(*before) : Calibration();
}

}  // namespace

int calibrate_network(const std::string& path, bool force) {
  auto made = Communicator::init_env();
  if (!made.ok()) fail_calibrate(std::string(made.status().message()));
  Communicator& comm = **made;
  const HostLayout hosts = impl_of(comm).hosts();
  if (hosts.one_host())
    fail_calibrate(
        fmt::format("--network: the job's {} on one host; start them on several: mpirun -np 2 --host a,b "
                    "rondo calibrate --network",
                    comm.size() == 1 ? "one rank is" : fmt::format("{} ranks are", comm.size())));
  try {
    Calibration found = comm.rank() == 0 ? known_before(path) : Calibration();
    if (comm.rank() == 0)
      std::printf("%d ranks on %d hosts, at most half a minute\n", comm.size(), hosts.num_hosts()), std::fflush(stdout);
    const std::vector<Observation> all = observe(comm);
    if (comm.rank() != 0) return 0;
    const bool oversubscribed = impl_of(comm).planner().settings().ranks_per_core > 1;
    const CostVector before = oversubscribed ? found.costs.oversubscribed : found.costs.spread;
    const CostVector now = fit_constants(all, before, kFirstHostTerm);
    for (size_t t = kFirst; t < kNumCostTerms; ++t) {
      found.costs.spread[t] = found.costs.oversubscribed[t] = now[t];
      fmt::print("{:<14}{:>9}{:>12.4g} before {:>10.4g}   {}\n", kCostTerms[t].name, kCostTerms[t].unit, now[t],
                 before[t], kCostTerms[t].summary);
    }
    fmt::print("{} timings, median error of the forecast {:.0f} % before, {:.0f} % now\n", all.size(),
               100 * median_error(all, before), 100 * median_error(all, now));
    if (const std::string why = why_unfit("traffic between hosts", all, now); !why.empty() && !force)
      throw PerfError(why);
    write_calibration(path, std::move(found));
    return 0;
  } catch (const PerfError& e) {
    std::fprintf(stderr, "rondo calibrate: %s\n", e.what());
    comm.abort();
    return 1;
  }
}

}  // namespace rondo::tools
