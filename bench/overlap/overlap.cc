// One rank of bench/measure_overlap: a model of equal units whose computing takes about as long as their gathers. Steps
// alternate between serial (every gather and reduction is waited for at once) and overlapped (the plan's order). From
// the parts of a serial step fsdp::forecast computes the overlapped step. Rank 0 prints one JSON object.
//
// The link is that of the environment's job, or, with --link-mb-s, one injected between two processes of this host.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "overlap/link.h"
#include "rondo/fsdp/engine.h"
#include "rondo/fsdp/forecast.h"
#include "startup/ranks.h"

using namespace rondo;
using namespace rondo::fsdp;
using Clock = std::chrono::steady_clock;

namespace {

struct Settings {
  int units = 8, rounds = 9;
  uint64_t elems = 1 << 18;
  double compute_per_gather = 1;
};

// Work that takes a given time on an idle core, and longer on a shared one, as computing does.
class Work {
 public:
  Work() {
    for (int window = 0; window < 20; ++window) {  // keeps the best, because other programs may use the core
      const auto begin = Clock::now();
      for (int k = 0; k < kWindowChunks; ++k) one_chunk();
      const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
      chunks_per_us_ = std::max(chunks_per_us_, kWindowChunks / us);
    }
  }
  void run(double us) {
    for (auto n = static_cast<uint64_t>(us * chunks_per_us_); n > 0; --n) one_chunk();
  }
  float result() const { return values_[0]; }

 private:
  static constexpr int kWindowChunks = 1000;
  void one_chunk() {
    for (int k = 0; k < 16; ++k)
      for (float& v : values_) v = v * 0.9999f + 0.5f;
  }
  float values_[256] = {};
  double chunks_per_us_ = 0;
};

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// Waits for every collective at its issue. costs: the time of each part; for a gather the mean of its two.
Status run_serially(Engine& e, const std::vector<Action>& actions, const Engine::Compute& compute,
                    std::vector<UnitCosts>* costs) {
  std::vector<int> gathers(costs->size());
  for (const auto& [act, u] : actions) {
    const auto begin = Clock::now();
    UnitCosts& cost = (*costs)[static_cast<size_t>(u)];
    switch (act) {
      case Act::kGather:
        RONDO_TRY(e.gather(u));
        RONDO_TRY(e.wait_gather(u));
        cost.gather_us += (us_since(begin) - cost.gather_us) / ++gathers[static_cast<size_t>(u)];
        break;
      case Act::kForward:
        RONDO_TRY(compute(act, u));
        cost.forward_us = us_since(begin);
        break;
      case Act::kBackward:
        RONDO_TRY(e.begin_grads(u));
        RONDO_TRY(compute(act, u));
        cost.backward_us = us_since(begin);
        break;
      case Act::kRelease: RONDO_TRY(e.release(u)); break;
      case Act::kReduce:
        RONDO_TRY(e.reduce(u));
        RONDO_TRY(e.wait_reduce(u));
        cost.reduce_us = us_since(begin);
        break;
      case Act::kStep:
        RONDO_TRY(e.step(u));
        cost.step_us = us_since(begin);
        break;
      case Act::kWaitGather:
      case Act::kWaitReduce: break;
    }
  }
  return e.finish_step();
}

// The slowest rank's time of a gather; computing is scaled by it.
Expected<double> time_of_gather(Engine& e, Communicator& comm) {
  std::vector<double> all;
  for (int round = 0; round < 9; ++round) {
    RONDO_TRY(comm.barrier());
    const auto begin = Clock::now();
    RONDO_TRY(e.gather(0));
    RONDO_TRY(e.wait_gather(0));
    all.push_back(us_since(begin));
    RONDO_TRY(e.release(0));
  }
  std::sort(all.begin(), all.end());
  double us = all[all.size() / 2];
  RONDO_TRY(comm.all_reduce(&us, &us, 1, Dtype::kFloat64, Op::kMax));
  return us;
}

Status measure(Communicator& comm, const Settings& s, nlohmann::json* out) {
  Model model;
  for (int i = 0; i < s.units; ++i) model.units.push_back({"unit" + std::to_string(i), {{"w", {s.elems / 64, 64}}}});
  RONDO_TRY_ASSIGN(const Plan plan, Plan::build(model, {.nranks = comm.size()}));
  RONDO_TRY_ASSIGN(auto engine, Engine::create(plan, comm, {.optimizer = {.rule = Rule::kSgd}}));
  Engine& e = *engine;
  RONDO_TRY(
      e.init([](const Tensor&, uint64_t, uint64_t n, void* to) { std::fill_n(static_cast<float*>(to), n, 1.0f); }));
  Work work;
  RONDO_TRY_ASSIGN(const double gather_us, time_of_gather(e, comm));
  const double forward_us = gather_us * s.compute_per_gather;
  auto compute = [&](Act act, int) {
    work.run(act == Act::kForward ? forward_us : 2 * forward_us);
    return Status();
  };
  nlohmann::json rounds = nlohmann::json::array();
  for (int round = 0; round < s.rounds; ++round) {
    std::vector<UnitCosts> costs(plan.units().size());
    RONDO_TRY(comm.barrier());
    auto begin = Clock::now();
    RONDO_TRY(run_serially(e, plan.step(), compute, &costs));
    const double serial_us = us_since(begin);
    RONDO_TRY(comm.barrier());
    e.reset_stats();
    begin = Clock::now();
    RONDO_TRY(e.run(plan.step(), compute));
    const double overlapped_us = us_since(begin);
    const Stats stats = e.stats();
    RONDO_TRY_ASSIGN(const Forecast f, forecast(plan, plan.step(), costs));
    rounds.push_back({{"serial_us", serial_us},
                      {"overlapped_us", overlapped_us},
                      {"exposed_us", static_cast<double>(stats.gather_wait_ns + stats.reduce_wait_ns) / 1e3},
                      {"compute_us", f.compute_us},
                      {"line_us", f.line_us},
                      {"forecast_us", f.overlapped_us}});
  }
  *out = {{"units", s.units},     {"bytes_per_unit", s.elems * sizeof(float)},
          {"ranks", comm.size()}, {"gather_us", gather_us},
          {"rounds", rounds},     {"result", work.result()}};
  return {};
}

Status measure_and_print(Communicator& comm, const Settings& s) {
  nlohmann::json out;
  RONDO_TRY(measure(comm, s, &out));
  if (comm.rank() == 0) std::printf("%s\n", out.dump().c_str());
  return {};
}

Status with_the_jobs_ranks(const Settings& s) {
  RONDO_TRY_ASSIGN(const auto comm, Communicator::init_env());
  return measure_and_print(*comm, s);
}

bool over_an_injected_link(const Settings& s, double bytes_per_us, double latency_us) {
  bench::Shared shared;
  return bench::run_ranks(2, &shared, [&](bench::Crew& crew) {
    crew.need(measure_and_print(*bench::make_linked_communicator(crew, bytes_per_us, latency_us), s));
  });
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  double link_mb_s = 0, link_us = 0;
  CLI::App app("One rank of bench/measure_overlap; with --link-mb-s, both of them");
  app.add_option("--units", s.units)->check(CLI::Range(1, 1000));
  app.add_option("--rounds", s.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--elems", s.elems, "elements of a unit; a multiple of 64")->check(CLI::Range(64, 1 << 28));
  app.add_option("--compute-per-gather", s.compute_per_gather, "time of a unit's forward over its gather's");
  auto* rate =
      app.add_option("--link-mb-s", link_mb_s, "two processes here, with links of this many 10^6 bytes a second")
          ->check(CLI::Range(0.1, 1e6));
  app.add_option("--link-us", link_us, "and of this latency in us")->check(CLI::Range(0.0, 1e6))->needs(rate);
  CLI11_PARSE(app, argc, argv);
  if (link_mb_s > 0) return over_an_injected_link(s, link_mb_s, link_us) ? 0 : 1;
  const Status status = with_the_jobs_ranks(s);
  if (!status.ok()) std::fprintf(stderr, "bench_overlap: %s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
