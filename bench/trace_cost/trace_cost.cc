// bench_trace_cost: the cost of records. Two processes run the same operations untraced and traced, in turns. The
// difference of each pair of turns is divided by the instructions that a rank executes in an operation. Also measures,
// alone in a loop, a full record, and the light level's two entries on the status page.
//
//   bench_trace_cost [--rounds N] [--out FILE]
//
// Times are the wall time of rank 0. Both ranks are traced, so the time that either of them loses counts.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "rondo/communicator.h"
#include "rondo/trace.h"
#include "trace/read_trace.h"

namespace {

using namespace rondo;
using Json = nlohmann::ordered_json;

constexpr int kNumRanks = 2;

double now_ns() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void require(const Status& s) {
  if (s.ok()) return;
  std::fprintf(stderr, "bench_trace_cost: %s\n", s.to_string().c_str());
  std::exit(1);
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  const size_t n = x.size();
  return n % 2 == 1 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

// The interval that holds the median with 95 % confidence, by order statistics.
std::pair<double, double> interval_of_median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  const auto n = static_cast<double>(x.size());
  const double reach = 0.98 * std::sqrt(n);
  const auto low = static_cast<size_t>(std::max(0.0, std::floor(n / 2 - reach)));
  const auto high = static_cast<size_t>(std::min(n - 1, std::ceil(n / 2 + reach)));
  return {x[low], x[high]};
}

struct Point {
  std::string algorithm;  // empty: the planner's choice
  uint64_t bytes;
};

class RankBench {
 public:
  RankBench(Communicator& comm, std::string folder, int rounds)
      : comm_(comm), folder_(std::move(folder)), rounds_(rounds) {}

  Json run(const Point& p) {
    std::vector<float> data(p.bytes / sizeof(float), 1.0f);
    CallOptions options;
    options.algorithm = p.algorithm.c_str();
    const CallOptions* call = p.algorithm.empty() ? nullptr : &options;
    const int calls = static_cast<int>(std::clamp<uint64_t>((64u << 20) / p.bytes, 6, 4000));
    std::vector<double> off, on, added;
    double instructions = 0;
    for (int round = -2; round < rounds_; ++round) {
      double turn_ns[2];
      for (int k = 0; k < 2; ++k) {
        const bool traced = (k == 1) != (round % 2 != 0);  // alternates the first of each pair too
        if (traced) require(trace_start(comm_, {folder_, 0}));
        turn_ns[traced] = turn(data, call, calls);
        if (!traced) continue;
        require(trace_stop(comm_));
        if (round == -1) instructions = count_instructions(calls);
        std::filesystem::remove_all(folder_);  // else the traces add up to gigabytes
      }
      if (round < 0) continue;
      off.push_back(turn_ns[0]);
      on.push_back(turn_ns[1]);
      added.push_back(turn_ns[1] - turn_ns[0]);
    }
    const auto [low, high] = interval_of_median(added);
    Json j;
    j["algorithm"] = p.algorithm.empty() ? "planner" : p.algorithm;
    j["bytes"] = p.bytes;
    j["off_ns"] = median(off);
    j["on_ns"] = median(on);
    j["instructions"] = instructions;
    j["added_ns_per_instruction"] = median(added) / instructions;
    j["added_ns_per_instruction_95"] = {low / instructions, high / instructions};
    j["added_percent"] = 100 * median(added) / median(off);
    return j;
  }

 private:
  // Nanoseconds per operation. The first operations synchronise the ranks, and reload caches after a trace was made or
  // written.
  double turn(std::vector<float>& data, const CallOptions* call, int calls) {
    const auto once = [&] {
      require(comm_.all_reduce(data.data(), data.data(), data.size(), Dtype::kFloat32, Op::kMax, call));
    };
    for (int i = 0; i < kWarmUp; ++i) once();
    const double begin_ns = now_ns();
    for (int i = 0; i < calls; ++i) once();
    return (now_ns() - begin_ns) / calls;
  }

  double count_instructions(int calls) {
    auto files = read_traces(folder_);
    require(files.status());
    return static_cast<double>(files->at(0).num_written) / (calls + kWarmUp);
  }

  static constexpr int kWarmUp = 4;
  Communicator& comm_;
  const std::string folder_;
  const int rounds_;
};

// Alone in a loop, in nanoseconds.
double full_record_ns() {
  auto trace = StepTrace::create({1, 0, 1}, StepTrace::kDefaultRecords);
  require(trace.status());
  LaneWait wait;
  StepRecord r{};
  constexpr int kTimes = 4'000'000;
  std::vector<double> runs;
  for (int run = 0; run < 5; ++run) {
    const double begin_ns = now_ns();
    for (int i = 0; i < kTimes; ++i) {
      const uint64_t ready = ticks();
      r.sequence = static_cast<uint64_t>(i);
      asm volatile("" : : : "memory");
      (*trace)->add(r, wait, ready, ticks());
    }
    runs.push_back((now_ns() - begin_ns) / kTimes);
  }
  return median(runs);
}

double light_level_ns() {
  auto page = std::make_unique<StatusPage>();
  std::memset(static_cast<void*>(page.get()), 0, sizeof *page);
  const OperationShape shape;
  constexpr uint64_t kTimes = 4'000'000;
  std::vector<double> runs;
  for (int run = 0; run < 5; ++run) {
    const double begin_ns = now_ns();
    for (uint64_t i = 1; i <= kTimes; ++i) {
      page->post(i, shape, 0);
      asm volatile("" : : : "memory");
      page->finish(i);
      asm volatile("" : : : "memory");
    }
    runs.push_back((now_ns() - begin_ns) / kTimes);
  }
  return median(runs);
}

std::vector<Point> points() {
  std::vector<Point> all;
  for (const char* algorithm : {"", "ring"})
    for (uint64_t bytes = 8; bytes <= 64u << 20; bytes *= bytes < (1u << 20) ? 8 : 4)
      all.push_back({algorithm, bytes});
  return all;
}

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu % static_cast<int>(std::max(1u, std::thread::hardware_concurrency())), &set);
  sched_setaffinity(0, sizeof set, &set);
}

std::string first_line(const char* path, const char* key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return line.substr(line.find(':') + 2);
  return "unknown";
}

// All points on one rank; rank 0 prints them and returns the JSON.
Json run_rank(int rank, int id_pipe[2], const std::string& folder, int rounds) {
  pin(rank);
  UniqueId id{};
  if (rank == 0) {
    auto made = Communicator::make_unique_id();
    require(made.status());
    id = *made;
    if (write(id_pipe[1], &id, sizeof id) != static_cast<ssize_t>(sizeof id)) std::exit(1);
  } else if (read(id_pipe[0], &id, sizeof id) != static_cast<ssize_t>(sizeof id)) {
    std::exit(1);
  }
  auto comm = Communicator::init_rank(kNumRanks, id, rank);
  require(comm.status());
  RankBench bench(**comm, folder + "/rank" + std::to_string(rank), rounds);
  Json results = Json::array();
  if (rank == 0)
    std::printf("%-8s %10s %12s %12s %12s %14s %8s\n", "plan", "bytes", "off ns", "on ns", "instructions",
                "ns/instruction", "added");
  for (const Point& p : points()) {
    const Json j = bench.run(p);
    if (rank == 0)
      std::printf("%-8s %10llu %12.0f %12.0f %12.1f %14.1f %7.2f%%\n", j["algorithm"].get<std::string>().c_str(),
                  static_cast<unsigned long long>(p.bytes), j["off_ns"].get<double>(), j["on_ns"].get<double>(),
                  j["instructions"].get<double>(), j["added_ns_per_instruction"].get<double>(),
                  j["added_percent"].get<double>());
    results.push_back(j);
  }
  return results;
}

}  // namespace

int main(int argc, char** argv) {
  std::string out;
  int rounds = 41;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--out") == 0) out = argv[i + 1];
    else if (std::strcmp(argv[i], "--rounds") == 0) rounds = std::atoi(argv[i + 1]);
    else argc = 0;
  }
  if (argc % 2 == 0 || rounds < 5) {
    std::fprintf(stderr, "usage: bench_trace_cost [--rounds N] [--out FILE]     N at least 5, 41 unless given\n");
    return 2;
  }
  std::string pattern = (std::filesystem::temp_directory_path() / "trace_cost.XXXXXX").string();
  const std::string folder = mkdtemp(pattern.data());
  int id_pipe[2];
  if (pipe(id_pipe) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) {
    (void)run_rank(1, id_pipe, folder, rounds);
    _exit(0);
  }
  Json j;
  j["what"] = "cost of records: 2 processes, all_reduce of float in place, turns with and without a trace alternate";
  j["machine"] = first_line("/proc/cpuinfo", "model name") + ", " +
                 std::to_string(std::thread::hardware_concurrency()) + " CPU cores";
  j["rounds"] = rounds;
  j["all_reduce"] = run_rank(0, id_pipe, folder, rounds);
  int status = 0;
  waitpid(child, &status, 0);
  j["alone"] = {{"full_record_ns", full_record_ns()}, {"light_level_ns_per_operation", light_level_ns()}};
  std::printf("alone in a loop: a full record %.1f ns, the light level %.1f ns an operation\n",
              j["alone"]["full_record_ns"].get<double>(), j["alone"]["light_level_ns_per_operation"].get<double>());
  std::filesystem::remove_all(folder);
  if (!out.empty()) std::ofstream(out) << j.dump(2) << "\n";
  return status == 0 ? 0 : 1;
}
