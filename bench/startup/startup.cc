// bench_startup: the cost of making communicators, measured with the public interface only:
//
//   start    the time from the moment at which all processes exist until every rank has its communicator
//   memory   the resources of a communicator that was not used yet: resident memory, descriptors, mappings
//   cycles   the remains of many communicators that were made, used once or not at all, and destroyed
//
// Thread safety: one thread; the ranks are forked processes, or the threads' ranks of init_all.
#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "ranks.h"
#include "usage.h"

namespace rondo::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<int> ranks = {2, 4, 8, 16, 64, 128, 256};
  int rounds = 31;
  int cycles = 1000;
  int cycle_ranks = 4;
  std::string json;
};

double round_to(double value, double step) { return std::round(value / step) * step; }

Json spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  auto at = [&](double q) {
    return round_to(values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))], 1e-3);
  };
  return {{"median", at(0.5)},
          {"lower_quartile", at(0.25)},
          {"upper_quartile", at(0.75)},
          {"least", at(0)},
          {"most", at(1)}};
}

// Sets Open MPI's variables. The name of the job must be new in each round.
void pretend_launch(int rank, int nranks, int round) {
  const std::string r = std::to_string(rank), n = std::to_string(nranks);
  setenv("OMPI_COMM_WORLD_RANK", r.c_str(), 1);
  setenv("OMPI_COMM_WORLD_LOCAL_RANK", r.c_str(), 1);
  setenv("OMPI_COMM_WORLD_SIZE", n.c_str(), 1);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", n.c_str(), 1);
  setenv("PMIX_NAMESPACE", fmt::format("bench-startup-{}-{}-{}", getppid(), nranks, round).c_str(), 1);
}

double cpu_ms() {  // all threads of this process
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

struct Start {
  double ms = 0;      // from the arrival of the last process until the last rank is ready
  double cpu_ms = 0;  // processor time of all ranks together, which other programs change least
};

/// One round in new processes. False: a rank failed.
bool start_once(int nranks, int round, bool by_environment, Start* result) {
  Shared seen;
  const bool good = run_ranks(nranks, &seen, [&](Crew& crew) {
    if (by_environment) pretend_launch(crew.rank(), nranks, round);
    crew.line_up();
    const double cpu_before_ms = cpu_ms();
    std::unique_ptr<Communicator> comm;
    if (by_environment) {
      auto made = Communicator::init_env();
      crew.need(made.status());
      comm = std::move(*made);
    } else {
      comm = crew.make_communicator();
    }
    crew.shared().ready_ms[crew.rank()] = now_ms();
    crew.shared().values[crew.rank()][0] = cpu_ms() - cpu_before_ms;
    const double start_ms = crew.shared().start_ms;  // before another line_up() overwrites it
    crew.line_up();
    crew.shared().start_ms = start_ms;
  });
  if (!good) return false;
  result->ms = *std::max_element(seen.ready_ms, seen.ready_ms + nranks) - seen.start_ms;
  result->cpu_ms = 0;
  for (int r = 0; r < nranks; ++r) result->cpu_ms += seen.values[r][0];
  return true;
}

Json measure_start(const Options& options) {
  Json rows = Json::array();
  for (const int n : options.ranks) {
    for (const bool by_environment : {false, true}) {
      std::vector<double> ms, cpu;
      const int rounds = n > 16 ? std::max(5, options.rounds / 2) : options.rounds;
      for (int i = 0; i < rounds; ++i) {
        Start one;
        if (!start_once(n, i, by_environment, &one)) continue;
        ms.push_back(one.ms);
        cpu.push_back(one.cpu_ms);
      }
      Json row = {{"ranks", n}, {"by", by_environment ? "init_env" : "unique id"}, {"rounds", ms.size()}};
      if (ms.empty()) continue;
      row["ms"] = spread(ms);
      row["cpu_ms"] = spread(cpu);
      fmt::print("start    {:3} ranks by {:9}: {:8.2f} ms ({:.2f} to {:.2f}, {} rounds; {:.2f} ms of CPU)\n", n,
                 row["by"].get<std::string>(), row["ms"]["median"].get<double>(), row["ms"]["least"].get<double>(),
                 row["ms"]["most"].get<double>(), ms.size(), row["cpu_ms"]["median"].get<double>());
      std::fflush(stdout);
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

Json difference(const Usage& before, const Usage& after, double per) {
  auto diff = [&](uint64_t a, uint64_t b) {
    return round_to((static_cast<double>(b) - static_cast<double>(a)) / per, 0.1);
  };
  return {{"anonymous_bytes", diff(before.anonymous_bytes, after.anonymous_bytes)},
          {"shared_bytes", diff(before.shared_bytes, after.shared_bytes)},
          {"proportional_bytes", diff(before.proportional_bytes, after.proportional_bytes)},
          {"page_table_bytes", diff(before.page_table_bytes, after.page_table_bytes)},
          {"address_bytes", diff(before.address_bytes, after.address_bytes)},
          {"descriptors", diff(before.descriptors, after.descriptors)},
          {"mappings", diff(before.mappings, after.mappings)},
          {"threads", diff(before.threads, after.threads)}};
}

void print_difference(const std::string& what, const Json& d) {
  fmt::print(
      "{}: resident {:.1f} KiB anonymous, {:.1f} KiB shared, {:.1f} KiB proportional, {:.0f} KiB page tables; address "
      "space {:.2f} MiB; {} "
      "descriptors, {} mappings, {} threads\n",
      what, d["anonymous_bytes"].get<double>() / 1024, d["shared_bytes"].get<double>() / 1024,
      d["proportional_bytes"].get<double>() / 1024, d["page_table_bytes"].get<double>() / 1024,
      d["address_bytes"].get<double>() / (1 << 20), d["descriptors"].get<double>(), d["mappings"].get<double>(),
      d["threads"].get<double>());
  std::fflush(stdout);
}

// The parent prints, so rank 0 stores its figures in the shared memory.
void put(Crew& crew, int row, const Usage& u) {
  double* v = crew.shared().values[row];
  const uint64_t all[] = {u.anonymous_bytes, u.shared_bytes, u.proportional_bytes, u.page_table_bytes,
                          u.address_bytes,   u.descriptors,  u.mappings,           u.threads};
  static_assert(std::size(all) <= std::size(Shared{}.values[0]));
  std::copy(std::begin(all), std::end(all), v);
}
Usage take(const Shared& s, int row) {
  const double* v = s.values[row];
  auto n = [&](int i) { return static_cast<uint64_t>(v[i]); };
  return {n(0), n(1), n(2), n(3), n(4), n(5), n(6), n(7)};
}

Json measure_memory(const Options& options) {
  constexpr int kMore = 8;
  Json rows = Json::array();
  for (const int n : options.ranks) {
    Shared seen;
    const bool good = run_ranks(n, &seen, [&](Crew& crew) {
      std::vector<std::unique_ptr<Communicator>> comms;
      auto look = [&](int row) {
        crew.line_up();
        if (crew.rank() == 0) put(crew, row, usage_now());
        crew.line_up();
      };
      look(0);
      comms.push_back(crew.make_communicator());
      look(1);
      for (int i = 0; i < kMore; ++i) {
        comms.push_back(crew.make_communicator());
        crew.line_up();
      }
      look(2);
    });
    if (!good) continue;
    Json row = {{"ranks", n},
                {"first", difference(take(seen, 0), take(seen, 1), 1)},
                {"each_further", difference(take(seen, 1), take(seen, 2), kMore)}};
    print_difference(fmt::format("memory   {:3} ranks, first", n), row["first"]);
    print_difference(fmt::format("memory   {:3} ranks, each further", n), row["each_further"]);
    rows.push_back(std::move(row));
  }
  return rows;
}

void use(Crew& crew, Communicator& comm) {
  std::vector<float> data(1 << 15, 1);
  CallOptions ring;
  ring.algorithm = "ring";
  crew.need(comm.all_reduce(data.data(), data.data(), data.size(), Dtype::kFloat32, Op::kSum, &ring));
}

Json cycle_processes(const Options& options, bool used) {
  constexpr int kWarmUp = 5;
  Shared seen;
  const bool good = run_ranks(options.cycle_ranks, &seen, [&](Crew& crew) {
    double begin_ms = 0;
    for (int i = 0; i < kWarmUp + options.cycles; ++i) {
      if (i == kWarmUp) {
        crew.line_up();
        if (crew.rank() == 0) put(crew, 0, usage_now());
        crew.line_up();
        begin_ms = now_ms();
      }
      auto comm = crew.make_communicator();
      if (used) use(crew, *comm);
      comm.reset();
      crew.line_up();  // else rank 0 could overwrite the id while another still reads it
    }
    if (crew.rank() != 0) return crew.line_up();
    crew.shared().ready_ms[0] = (now_ms() - begin_ms) / options.cycles;
    put(crew, 1, usage_now());
    crew.line_up();
  });
  if (!good) return nullptr;
  Json row = {{"ranks", options.cycle_ranks},
              {"are", "processes"},
              {"used", used},
              {"cycles", options.cycles},
              {"ms_each", round_to(seen.ready_ms[0], 1e-3)},
              {"left", difference(take(seen, 0), take(seen, 1), 1)}};
  return row;
}

Json cycle_threads(const Options& options, bool used) {
  constexpr int kWarmUp = 5;
  Shared seen;
  const bool good = run_ranks(1, &seen, [&](Crew& crew) {
    double begin_ms = 0;
    for (int i = 0; i < kWarmUp + options.cycles; ++i) {
      if (i == kWarmUp) {
        put(crew, 0, usage_now());
        begin_ms = now_ms();
      }
      auto comms = Communicator::init_all(options.cycle_ranks);
      crew.need(comms.status());
      if (!used) continue;
      std::vector<std::thread> threads;
      for (auto& comm : *comms) threads.emplace_back([&crew, &comm] { use(crew, *comm); });
      for (std::thread& t : threads) t.join();
    }
    crew.shared().ready_ms[0] = (now_ms() - begin_ms) / options.cycles;
    put(crew, 1, usage_now());
  });
  if (!good) return nullptr;
  return {{"ranks", options.cycle_ranks},
          {"are", "threads"},
          {"used", used},
          {"cycles", options.cycles},
          {"ms_each", round_to(seen.ready_ms[0], 1e-3)},
          {"left", difference(take(seen, 0), take(seen, 1), 1)}};
}

Json measure_cycles(const Options& options) {
  Json rows = Json::array();
  for (const bool used : {false, true}) {
    for (Json row : {cycle_processes(options, used), cycle_threads(options, used)}) {
      if (row.is_null()) continue;
      print_difference(
          fmt::format("cycles   {} of {} {}, {}: {:.3f} ms each; left", options.cycles, options.cycle_ranks,
                      row["are"].get<std::string>(), used ? "used once" : "unused", row["ms_each"].get<double>()),
          row["left"]);
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

Json machine() {
  utsname system{};
  uname(&system);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  sched_getaffinity(0, sizeof cpus, &cpus);
  std::ifstream info("/proc/cpuinfo");
  std::string processor = "unknown";
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) {
      processor = line.substr(line.find(':') + 2);
      break;
    }
  return {{"processor", processor}, {"cpus", CPU_COUNT(&cpus)}, {"kernel", system.release}};
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app{"What it costs to make communicators: time, memory, and what is left after many of them"};
  app.add_option("--ranks", options.ranks, "Numbers of ranks to start")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxRanks));
  app.add_option("--rounds", options.rounds, "Starts of each kind (half as many beyond 16 ranks)")
      ->check(CLI::PositiveNumber);
  app.add_option("--cycles", options.cycles, "Communicators made and destroyed; 0: none")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--cycle-ranks", options.cycle_ranks, "Ranks of these communicators")->check(CLI::Range(1, kMaxRanks));
  app.add_option("--json", options.json, "Writes the figures to this file");
  app.footer("Example:\n  bench_startup --json bench/results/startup.json\n");
  CLI11_PARSE(app, argc, argv);
  Json result = {{"machine", machine()}, {"start", measure_start(options)}, {"memory", measure_memory(options)}};
  if (options.cycles > 0) result["cycles"] = measure_cycles(options);
  if (options.json.empty()) return 0;
  std::ofstream(options.json) << result.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace rondo::bench

int main(int argc, char** argv) { return rondo::bench::run(argc, argv); }
