// One rank of bench/measure_overlap: a model of equal units whose computing takes about as long as their gathers. First
// what each part takes by itself, then steps by turns: one after the other (every gather and reduction is waited for at
// once) and overlapped, as the plan has it. What the plan's schedule should take, by fsdp::forecast and the parts'
// times, stands beside. Rank 0 prints one JSON object.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "rondo/fsdp/engine.h"
#include "rondo/fsdp/forecast.h"

using namespace rondo;
using namespace rondo::fsdp;
using Clock = std::chrono::steady_clock;

namespace {

struct Settings {
  int units = 8, rounds = 9;
  uint64_t elems = 1 << 18;
  double compute_per_gather = 1;
};

// Work that takes a given time on an idle core; on one that is shared it takes longer, as computing does.
class Work {
 public:
  Work() {
    for (int window = 0; window < 20; ++window) {  // the best one: others may use the core meanwhile
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

double us_of(Status& status, const auto& what) {
  const auto begin = Clock::now();
  if (status.ok()) status = what();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Every collective is waited for where it is issued.
Status run_serially(Engine& e, const std::vector<Action>& actions, const Engine::Compute& compute) {
  for (const auto& [act, u] : actions) {
    switch (act) {
      case Act::kGather:
        RONDO_TRY(e.gather(u));
        RONDO_TRY(e.wait_gather(u));
        break;
      case Act::kBackward: RONDO_TRY(e.begin_grads(u)); [[fallthrough]];
      case Act::kForward: RONDO_TRY(compute(act, u)); break;
      case Act::kRelease: RONDO_TRY(e.release(u)); break;
      case Act::kReduce:
        RONDO_TRY(e.reduce(u));
        RONDO_TRY(e.wait_reduce(u));
        break;
      case Act::kStep: RONDO_TRY(e.step(u)); break;
      case Act::kWaitGather:
      case Act::kWaitReduce: break;
    }
  }
  return e.finish_step();
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

  // By themselves; the slowest rank's.
  std::vector<double> gather, reduce, step, clear;
  Status status;
  for (int round = 0; round < 4 * s.rounds; ++round) {
    RONDO_TRY(comm.barrier());
    gather.push_back(us_of(status, [&]() -> Status {
      RONDO_TRY(e.gather(0));
      return e.wait_gather(0);
    }));
    RONDO_TRY(status);
    clear.push_back(us_of(status, [&] { return e.begin_grads(0); }));
    RONDO_TRY(comm.barrier());
    reduce.push_back(us_of(status, [&]() -> Status {
      RONDO_TRY(e.reduce(0));
      return e.wait_reduce(0);
    }));
    step.push_back(us_of(status, [&] { return e.step(0); }));
    RONDO_TRY(status);
    RONDO_TRY(e.release(0));
    RONDO_TRY(e.finish_step());
  }
  double parts[] = {median(gather), median(reduce), median(step), median(clear)};
  RONDO_TRY(comm.all_reduce(parts, parts, 4, Dtype::kFloat64, Op::kMax));
  const double forward_us = parts[0] * s.compute_per_gather;
  std::vector<double> forward, backward;
  for (int round = 0; round < s.rounds; ++round) {
    RONDO_TRY(comm.barrier());
    forward.push_back(us_of(status, [&] { return work.run(forward_us), Status(); }));
    backward.push_back(us_of(status, [&] { return work.run(2 * forward_us), Status(); }));
  }
  double computing[] = {median(forward), median(backward)};
  RONDO_TRY(comm.all_reduce(computing, computing, 2, Dtype::kFloat64, Op::kMax));
  const std::vector<UnitCosts> costs(plan.units().size(), {.forward_us = computing[0],
                                                           .backward_us = computing[1] + parts[3],
                                                           .step_us = parts[2],
                                                           .gather_us = parts[0],
                                                           .reduce_us = parts[1]});
  RONDO_TRY_ASSIGN(const Forecast f, forecast(plan, plan.step(), costs));

  auto compute = [&](Act act, int) -> Status {
    return work.run(act == Act::kForward ? forward_us : 2 * forward_us), Status();
  };
  std::vector<double> serial, overlapped, exposed;
  for (int round = 0; round < s.rounds; ++round) {
    RONDO_TRY(comm.barrier());
    serial.push_back(us_of(status, [&] { return run_serially(e, plan.step(), compute); }));
    RONDO_TRY(status);
    RONDO_TRY(comm.barrier());
    e.reset_stats();
    overlapped.push_back(us_of(status, [&] { return e.run(plan.step(), compute); }));
    RONDO_TRY(status);
    exposed.push_back(static_cast<double>(e.stats().gather_wait_ns + e.stats().reduce_wait_ns) / 1e3);
  }
  *out = {{"units", s.units},
          {"bytes_per_unit", s.elems * sizeof(float)},
          {"ranks", comm.size()},
          {"gather_us", parts[0]},
          {"reduce_us", parts[1]},
          {"forward_us", computing[0]},
          {"backward_us", costs[0].backward_us},
          {"optimizer_us", parts[2]},
          {"serial_us", serial},
          {"overlapped_us", overlapped},
          {"exposed_us", exposed},
          {"forecast", {{"serial_us", f.serial_us}, {"overlapped_us", f.overlapped_us}, {"exposed_us", f.exposed_us}}},
          {"result", work.result()}};
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Settings s;
  CLI::App app("One rank of bench/measure_overlap");
  app.add_option("--units", s.units)->check(CLI::Range(1, 1000));
  app.add_option("--rounds", s.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--elems", s.elems, "of a unit; a multiple of 64")->check(CLI::Range(64, 1 << 28));
  app.add_option("--compute-per-gather", s.compute_per_gather, "forward of a unit takes so many times its gather");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json out;
  auto comm = Communicator::init_env();
  const Status status = comm.ok() ? measure(**comm, s, &out) : comm.status();
  if (!status.ok()) {
    std::fprintf(stderr, "bench_overlap: %s\n", status.to_string().c_str());
    return 1;
  }
  if ((*comm)->rank() == 0) std::printf("%s\n", out.dump().c_str());
  return 0;
}
