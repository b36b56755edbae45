#include "perf_explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "api/communicator_impl.h"
#include "perf_report.h"
#include "plan/calibration.h"

namespace rondo::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson json_of(const MeasuredCandidate& m) {
  const Candidate& c = m.candidate;
  OrderedJson counts;
  for (size_t t = 0; t < kNumCostTerms; ++t)
    if (c.counts[t] != 0) counts[std::string(kCostTerms[t].name)] = c.counts[t];
  return {{"name", candidate_name(c)},
          {"algorithm", c.algorithm->name},
          {"protocol", protocol_name(c.protocol)},
          {"message_bytes", c.message_bytes},
          {"forecast_us", c.forecast_ns / 1000},
          {"measured_us", m.median_ns() / 1000},
          {"least_us", m.least_ns() / 1000},
          {"counts", counts}};
}

OrderedJson json_of(const MeasuredPoint& p) {
  OrderedJson candidates = OrderedJson::array();
  for (const MeasuredCandidate& m : p.candidates) candidates.push_back(json_of(m));
  return {{"bytes", p.bytes},
          {"chosen", candidate_name(p.candidates[0].candidate)},
          {"best", candidate_name(p.candidates[p.best()].candidate)},
          {"regret", p.regret()},
          {"candidates", candidates}};
}

class Explainer {
 public:
  Explainer(const PerfOptions& options, Communicator& comm, const PerfRun& run)
      : options_(options), comm_(comm), run_(run), prints_(comm.rank() == 0) {}

  void run() {
    CandidateBenchOptions o;
    o.dtype = options_.dtypes[0];
    o.op = options_.ops[0];
    o.registered = options_.registered != 0;
    o.bursts = options_.bursts;
    o.burst_us = options_.burst_us;
    CandidateBench bench(comm_, options_.max_bytes, o);
    if (prints_ && !options_.json_stdout) header();
    OrderedJson points = OrderedJson::array();
    const std::vector<uint64_t> sizes = sweep_bytes(options_).value();
    for (uint64_t bytes : sizes) {
      const MeasuredPoint point = bench.measure(*options_.operation->collective, bytes);
      if (!prints_) continue;
      points.push_back(json_of(point));
      if (!options_.json_stdout) fmt::print("{}", explain_text(point));
      std::fflush(stdout);
      within_ += point.regret() <= kGood ? 1 : 0;
      if (*options_.operation->collective == Collective::kBarrier) break;  // barriers have no size
    }
    if (prints_) finish(std::move(points));
  }

 private:
  static constexpr double kGood = 0.15;

  static std::string constants() {
    std::string from;
    (void)known_costs(&from);  // cannot fail: it succeeded when the communicator was made
    return from;
  }
  void header() const {
    const auto& settings = impl_of(comm_).planner().settings();
    fmt::print("# rondo {} {} of {} {}, {}; {} on a core; constants: {}\n# {}\n", rondo_version(),
               collective_name(*options_.operation->collective), comm_.size(), run_.ranks_are,
               dtype_name(options_.dtypes[0]), settings.ranks_per_core, constants(),
               "*: the planner's choice; forecast and measured are microseconds of a call in back-to-back calls");
    fmt::print("{:>12}    {:<36} {:>10} {:>10} {:>6}\n", "bytes", "candidate", "forecast", "measured", "ratio");
  }

  void finish(OrderedJson points) const {
    const size_t num = points.size();
    if (!options_.json_stdout)
      fmt::print("# the choice is at most 15 % slower than the best candidate at {} of {} sizes\n", within_, num);
    const OrderedJson all{{"rondo_version", rondo_version()},
                          {"collective", collective_name(*options_.operation->collective)},
                          {"num_ranks", comm_.size()},
                          {"ranks_are", run_.ranks_are},
                          {"ranks_per_core", impl_of(comm_).planner().settings().ranks_per_core},
                          {"dtype", dtype_name(options_.dtypes[0])},
                          {"constants", constants()},
                          {"args", run_.args},
                          {"points", std::move(points)}};
    if (options_.json_stdout) fmt::print("{}\n", all.dump(1));
    if (options_.json_path.empty()) return;
    const auto name = write_new_file(options_.json_path, all.dump(1) + "\n");
    if (!name) throw PerfError("cannot write " + options_.json_path);
    if (!options_.json_stdout) fmt::print("# JSON: {}\n", *name);
  }

  const PerfOptions& options_;
  Communicator& comm_;
  const PerfRun& run_;
  const bool prints_;
  size_t within_ = 0;
};

int explain(const PerfOptions& options, Communicator& comm, const PerfRun& run) {
  try {
    Explainer(options, comm, run).run();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rondo perf: %s\n", e.what());
    comm.abort();
    return 1;
  }
}

Config communicator_config(const PerfOptions& options) {
  Config config;
  config.deadline_s = options.timeout_s;
  return config;
}

int say(const Status& status) {
  std::fprintf(stderr, "rondo perf: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace

std::string explain_text(const MeasuredPoint& point) {
  std::string text;
  const size_t best = point.best();
  for (size_t i = 0; i < point.candidates.size(); ++i) {
    const MeasuredCandidate& m = point.candidates[i];
    text += fmt::format("{:>12}  {} {:<36} {:>10} {:>10} {:>6.2f}{}\n", i == 0 ? std::to_string(point.bytes) : "",
                        i == 0 ? '*' : ' ', candidate_name(m.candidate),
                        format_number(m.candidate.forecast_ns / 1000, 10), format_number(m.median_ns() / 1000, 10),
                        m.candidate.forecast_ns / m.median_ns(), i == best ? "  best" : "");
  }
  return text + fmt::format("{:>12}    regret {:.1f} %\n", "", 100 * point.regret());
}

int explain_threads(const PerfOptions& options, int nranks, const PerfRun& run) {
  auto comms = Communicator::init_all(nranks, communicator_config(options));
  if (!comms.ok()) return say(comms.status());
  std::vector<int> exits(comms->size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < comms->size(); ++r)
    threads.emplace_back([&, r] { exits[r] = explain(options, *(*comms)[r], run); });
  for (std::thread& t : threads) t.join();
  return *std::max_element(exits.begin(), exits.end());
}

int explain_env(const PerfOptions& options, const PerfRun& run) {
  auto comm = Communicator::init_env(communicator_config(options));
  if (!comm.ok()) return say(comm.status());
  return explain(options, **comm, run);
}

}  // namespace rondo::tools
