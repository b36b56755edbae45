// `rondo calibrate`: measures this machine for the planner and writes the constants for later runs.
//
// It starts small groups of processes (perf_launch.h) that run this program with --observations. Each group times every
// candidate of the planner over a grid of collectives and sizes (perf_candidates.h), and its rank 0 writes counts and
// times to a file. The parent fits the constants to them (plan/fit_constants.h). With --network a launcher starts
// the ranks on several hosts (calibrate_network.cc).
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "base/new_file.h"
#include "calibrate.h"
#include "calibrate_trust.h"
#include "commands.h"
#include "perf_bench.h"
#include "perf_candidates.h"
#include "perf_launch.h"
#include "plan/calibration.h"
#include "plan/fit_constants.h"

namespace rondo::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct CalibrateArgs {
  std::string output;
  bool quick = false, network = false, force = false;
  // for a rank of a group
  std::string observations;  // file that rank 0 writes
  double budget_s = 0;
  int cpus = 0;
};

/// Number of ranks and processors. Several ranks per processor give the constants of oversubscribed cores.
struct World {
  int nranks, cpus;
  double budget_s;
};

std::vector<int> own_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {0};
  for (int c = 0; c < CPU_SETSIZE; ++c)
    if (CPU_ISSET(c, &set)) cpus.push_back(c);
  return cpus;
}

// ---- one rank of a group ----

void stay_on(int num_cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const std::vector<int> cpus = own_cpus();
  for (size_t i = 0; i < cpus.size() && i < static_cast<size_t>(num_cpus); ++i) CPU_SET(cpus[i], &set);
  sched_setaffinity(0, sizeof set, &set);
}

/// The sizes of CostCorrections, from the ends of the grid inwards, so that a group with little time covers the whole
/// range.
std::vector<uint64_t> sizes_in_order() {
  std::vector<uint64_t> sizes;
  for (const int k : {0, 7, 4, 10, 2, 9, 5, 6, 8, 3, 1, 11})
    sizes.push_back(static_cast<uint64_t>(CostCorrections::kFirstBytes * std::pow(CostCorrections::kRatio, k)));
  return sizes;
}
constexpr Collective kMeasured[] = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                                    Collective::kBroadcast, Collective::kAllToAll,      Collective::kReduce,
                                    Collective::kGather,    Collective::kScatter};
constexpr uint64_t kMostBytes = 32 << 20, kHugeBytes = 64 << 20;

/// Times all points until the time is up, and returns rank 0's observations as lines (Timing).
class WorldRank {
 public:
  WorldRank(Communicator& comm, double budget_s) : comm_(comm), budget_s_(budget_s) {}

  std::string run() {
    CandidateBenchOptions options;
    options.bursts = 7;
    options.burst_us = 700;  // shorter bursts start calls faster than a chain of ranks completes them
    options.point_s = 0.4;
    {
      CandidateBench bench(comm_, kMostBytes, options);
      for (uint64_t bytes : sizes_in_order())
        for (Collective c : kMeasured)
          if (has_algorithms(c) && time_left(0.8)) note(bench.measure(c, bytes));
    }
    if (comm_.size() <= 4 && time_left(0.8)) {
      CandidateBench bench(comm_, kHugeBytes, options);
      note(bench.measure(Collective::kAllGather, kHugeBytes));
    }
    options.registered = true;  // last, because from here on all plans may be direct
    CandidateBench bench(comm_, kMostBytes, options);
    for (uint64_t bytes : sizes_in_order())
      for (Collective c : {Collective::kAllReduce, Collective::kAllGather})
        if (time_left(1)) note(bench.measure(c, bytes), true);
    return text_;
  }

 private:
  static bool has_algorithms(Collective c) {
    return std::any_of(all_algorithms().begin(), all_algorithms().end(),
                       [&](const Algorithm& a) { return a.collective == c; });
  }
  // Rank 0's clock decides for all ranks.
  bool time_left(double share) {
    uint32_t left = std::chrono::duration<double>(Clock::now() - start_).count() < share * budget_s_ ? 1 : 0;
    if (comm_.rank() != 0) left = 0;
    uint32_t any = 0;
    const Status status = comm_.all_reduce(&left, &any, 1, Dtype::kUint32, Op::kMax);
    if (!status.ok()) throw PerfError(std::string(status.message()));
    return any != 0;
  }
  void note(const MeasuredPoint& point, bool registered = false) {
    for (const MeasuredCandidate& m : point.candidates) {
      // For plans that use messages, corrections come from private memory, because most calls use it.
      const bool corrects = !registered || m.form == CostForm::kMapped;
      text_ += fmt::format("{} {} {} {} {} {}", point.nranks, point.ranks_per_core, point.bytes,
                           corrects ? algorithm_index(*m.candidate.algorithm) : CostCorrections::kRows,
                           static_cast<int>(m.form), m.median_ns());
      for (double count : m.candidate.counts) text_ += fmt::format(" {}", count);
      text_ += '\n';
    }
  }

  Communicator& comm_;
  const double budget_s_;
  const Clock::time_point start_ = Clock::now();
  std::string text_;
};

int run_rank(const CalibrateArgs& args) {
  stay_on(args.cpus);
  auto comm = Communicator::init_env();
  if (!comm.ok()) fail_calibrate(std::string(comm.status().message()));
  try {
    const std::string text = WorldRank(**comm, args.budget_s).run();
    if ((*comm)->rank() == 0 && !(std::ofstream(args.observations) << text << std::flush))
      throw PerfError("cannot write " + args.observations);
    return 0;
  } catch (const PerfError& e) {
    std::fprintf(stderr, "rondo calibrate: %s\n", e.what());
    (*comm)->abort();
    return 1;
  }
}

// ---- the parent ----

std::vector<World> worlds_for(int cpus, bool quick) {
  std::vector<World> worlds;
  if (cpus >= 2) worlds.push_back({2, 2, 1});
  if (cpus >= 4) worlds.push_back({4, 4, 1});
  if (cpus >= 8) worlds.push_back({8, 8, 1});
  const int shared = std::min(cpus, 2);  // number of processors for oversubscribed groups
  worlds.push_back({2 * shared, shared, 1});
  worlds.push_back({4 * shared, shared, 1});
  // Ranks that share cores take longer for the same calls.
  auto weight = [](const World& w) { return w.nranks > w.cpus ? 2.0 : 1.0; };
  double weights = 0;
  for (const World& w : worlds) weights += weight(w);
  for (World& w : worlds) w.budget_s = (quick ? 12 : 55) * weight(w) / weights;
  return worlds;
}

/// A line of a group's file: one candidate at one size.
struct Timing {
  int nranks = 0, ranks_per_core = 0;
  double bytes = 0;
  size_t row = 0;  // in the registry
  int form = 0;    // CostForm
  Observation observation;
};

struct Observations {
  std::vector<Observation> spread, oversubscribed;
  std::vector<Timing> timings;
};

void read_observations(const std::string& path, Observations& to) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Timing t;
    Observation& o = t.observation;
    words >> t.nranks >> t.ranks_per_core >> t.bytes >> t.row >> t.form >> o.measured_ns;
    for (double& count : o.counts) words >> count;
    if (!words || !(o.measured_ns > 0)) fail_calibrate("a group of ranks wrote an invalid line: " + line);
    (t.ranks_per_core > 1 ? to.oversubscribed : to.spread).push_back(o);
    to.timings.push_back(t);
  }
}

// Only this process's user can write here, so that no other user can place a link where the ranks write.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(std::filesystem::temp_directory_path() / "rondo_calibrate_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr)
      fail_calibrate(fmt::format("cannot make {}: {}", path_, std::strerror(errno)));
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Observations measure(const std::vector<World>& worlds) {
  Observations all;
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/observations";
  for (const World& w : worlds) {
    fmt::print("{} processes on {} processor{}, {:.0f} s\n", w.nranks, w.cpus, w.cpus == 1 ? "" : "s", w.budget_s);
    std::fflush(stdout);
    const int status = launch_processes(w.nranks, {"rondo", "calibrate", "--observations", path, "--budget",
                                                   fmt::format("{}", w.budget_s), "--cpus", std::to_string(w.cpus)});
    if (status == 0) read_observations(path, all);
    std::filesystem::remove(path);
    if (status != 0)
      fail_calibrate(fmt::format("the ranks of a group of {} processes failed; nothing is written", w.nranks));
  }
  return all;
}

/// Remaining error of the fitted forecast, by size.
CostCorrections corrections_of(const std::vector<Timing>& timings, const CostModel& costs) {
  CostCorrections found;
  std::map<int8_t*, bool> known;  // by address
  std::vector<int8_t*> rows;      // each has kSizes entries
  for (const Timing& t : timings) {
    const auto size = static_cast<long>(
        std::lround(std::log2(t.bytes / CostCorrections::kFirstBytes) / std::log2(CostCorrections::kRatio)));
    if (t.row >= CostCorrections::kRows || size < 0 || size >= static_cast<long>(CostCorrections::kSizes)) continue;
    const size_t world = CostCorrections::world_of(t.nranks, t.ranks_per_core);
    found.note_known(world, t.row, static_cast<CostForm>(t.form));
    int8_t* row = found.sixteenths[world][t.row][t.form];
    row[size] =
        CostCorrections::encode(t.observation.measured_ns / forecast_ns(t.observation.counts, costs, t.ranks_per_core));
    known[row + size] = true;
    rows.push_back(row);
  }
  for (int8_t* row : rows)  // a size without a timing takes the nearest size's value
    for (int k = 0; k < static_cast<int>(CostCorrections::kSizes); ++k) {
      if (known.contains(row + k)) continue;
      for (int away = 1; away < static_cast<int>(CostCorrections::kSizes); ++away)
        for (const int near : {k - away, k + away})
          if (near >= 0 && near < static_cast<int>(CostCorrections::kSizes) && known.contains(row + near)) {
            row[k] = row[near];
            away = static_cast<int>(CostCorrections::kSizes);
            break;
          }
    }
  return found;
}

void print_found(const Calibration& found, const Observations& o) {
  const CostModel built_in = built_in_costs();
  fmt::print("\n{:<18}{:>10}{:>12}{:>12}{:>12}{:>12}\n", "", "", "a core each", "built in", "shared", "built in");
  for (size_t t = 0; t < kNumCostTerms; ++t)
    fmt::print("{:<18}{:>10}{:>12.4g}{:>12.4g}{:>12.4g}{:>12.4g}   {}\n", kCostTerms[t].name, kCostTerms[t].unit,
               found.costs.spread[t], built_in.spread[t], found.costs.oversubscribed[t], built_in.oversubscribed[t],
               kCostTerms[t].summary);
  auto line = [](std::string_view what, const std::vector<Observation>& all, const CostVector& before,
                 const CostVector& now) {
    fmt::print(
        "{}: {} timings, median error of the forecast {:.0f} % with the built-in constants, {:.0f} % with these\n",
        what, all.size(), 100 * median_error(all, before), 100 * median_error(all, now));
  };
  fmt::print("\n");
  line("a core each", o.spread, built_in.spread, found.costs.spread);
  line("shared cores", o.oversubscribed, built_in.oversubscribed, found.costs.oversubscribed);
}

void refuse_calibration(const std::string& why) {
  if (!why.empty()) fail_calibrate(why);
}

int run(const CalibrateArgs& args) {
  if (is_launched_rank()) return run_rank(args);
  const std::string path = args.output.empty() ? default_calibration_path() : args.output;
  if (path.empty()) fail_calibrate("neither HOME nor XDG_CONFIG_HOME is set: name a file with -o");
  if (args.network) return calibrate_network(path, args.force);
  setenv("RONDO_CALIBRATION", "off", 1);  // for the groups: they must not use earlier measurements
  for (const char* name : {"RONDO_ALGO", "RONDO_PROTO", "RONDO_MESSAGE_BYTES"}) unsetenv(name);
  std::vector<int> cpus = own_cpus();
  const std::vector<World> worlds = worlds_for(static_cast<int>(cpus.size()), args.quick);
  int most = 0;
  for (const World& w : worlds) most = std::max(most, w.cpus);
  cpus.resize(std::min(cpus.size(), static_cast<size_t>(most)));
  if (!args.force) refuse_calibration(why_busy(cpus));
  const Observations all = measure(worlds);
  if (!args.force) refuse_calibration(why_busy(cpus));  // work that began meanwhile
  Calibration found;
  found.costs.spread = fit_constants(all.spread, built_in_costs().spread);
  found.costs.oversubscribed = fit_constants(all.oversubscribed, built_in_costs().oversubscribed);
  found.corrections = corrections_of(all.timings, found.costs);
  print_found(found, all);
  if (!args.force) {
    refuse_calibration(why_unfit("ranks with a core each", all.spread, found.costs.spread));
    refuse_calibration(why_unfit("ranks that share cores", all.oversubscribed, found.costs.oversubscribed));
  }
  write_calibration(path, std::move(found));
  return 0;
}

}  // namespace

void fail_calibrate(const std::string& message) {
  std::fprintf(stderr, "rondo calibrate: %s\n", message.c_str());
  throw CLI::RuntimeError(1);
}

void write_calibration(const std::string& path, Calibration c) {
  sign(c);
  std::error_code error;
  const std::filesystem::path to(path);
  if (to.has_parent_path()) std::filesystem::create_directories(to.parent_path(), error);
  const std::string text = format_calibration(c);
  const std::string_view piece = text;
  if (const Status s = write_whole_file(path, {&piece, 1}); !s.ok()) fail_calibrate(std::string(s.message()));
  fmt::print("\nwritten to {}\n", path);
}

void add_calibrate_command(CLI::App& app) {
  auto args = std::make_shared<CalibrateArgs>();
  CLI::App* command = app.add_subcommand(
      "calibrate",
      "Measures the planner's constants on this machine in at most a minute, and writes them for later runs");
  command
      ->add_option("-o,--output", args->output,
                   "Writes this file (default: rondo/calibration in $XDG_CONFIG_HOME or ~/.config)")
      ->type_name("FILE");
  command->add_flag("--quick", args->quick, "Takes at most 15 seconds and fewer timings");
  command->add_flag("--network", args->network,
                    "Measures the constants between hosts, as ranks of torchrun, mpirun or srun on several hosts, and "
                    "keeps the other constants of the file");
  command->add_flag(
      "--force", args->force,
      "Measures and writes even if other work uses the processors or the constants do not fit the timings");
  const std::string hidden;  // CLI11 hides options in a group without a name
  command->add_option("--observations", args->observations)->group(hidden);
  command->add_option("--budget", args->budget_s)->group(hidden);
  command->add_option("--cpus", args->cpus)->group(hidden);
  command->footer(
      "Run it on an otherwise idle machine. On a busy one it writes nothing and exits with status 1.\n"
      "Processes that are started later read the file (RONDO_CALIBRATION names another one, or `off`); rank 0's\n"
      "constants count for all ranks. rondo perf --explain shows how good they are.\n"
      "Between hosts: mpirun -np 2 --host a,b rondo calibrate --network, best with the ranks of the real job.\n");
  command->callback([args] {
    if (const int status = run(*args); status != 0) throw CLI::RuntimeError(status);
  });
}

}  // namespace rondo::tools
