// compare_types: times a call of mixed types beside the same call of one type, in one run of the same processes.
//
// Forked ranks make one communicator for each size. A round times both calls, in an order that changes from round to
// round. A timing is back-to-back calls for about --ms, the maximum over the ranks. The ratio of a size is the median
// over the rounds of (mixed / plain). Results are verified first: inputs are integers plus a small amount, which the
// plain call keeps and the wire of the mixed call rounds away.
//
// Back to back, a peer still has earlier reads of the inputs in its caches. With --fresh each rank writes its input
// anew before every call, as a training step does, and only the calls are timed.
//
// Every wait has a deadline (startup/ranks.h). Thread safety: one thread in each process.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rondo/communicator.h"
#include "startup/ranks.h"

extern "C" {
#include "placement.h"
}

namespace rondo::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<int> ranks{2, 4};
  std::vector<uint64_t> sizes_kib{64, 128, 256, 512, 1024, 1536, 2048, 4096, 8192, 16384, 65536};
  std::string collective = "reduce_scatter", wire = "bfloat16", algorithm, plain_algorithm, json;
  int rounds = 41;
  double ms = 1;
  bool fresh = false;  // inputs are written anew before every call
};

struct Figures {
  double plain_us = 0, mixed_us = 0, ratio = 0, low = 0, high = 0;  // medians; least and largest ratio
  double plain_least_us = 0, mixed_least_us = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

float* allocate(Crew& crew, uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) crew.need(Status(StatusCode::kSystem, fmt::format("no memory for {} bytes", bytes)));
  madvise(memory, bytes, MADV_HUGEPAGE);
  return static_cast<float*>(memory);
}

/// One rank's two calls of one size.
class Pair {
 public:
  Pair(Crew& crew, const Options& options, uint64_t bytes)
      : crew_(crew), options_(options), comm_(crew.make_communicator()), elems_(bytes / sizeof(float)) {
    block_ = elems_ / static_cast<uint64_t>(crew.nranks());
    long_ = allocate(crew, elems_ * sizeof(float));
    short_ = allocate(crew, elems_ * sizeof(float));
    row_ = uniform_row(Dtype::kFloat32);
    row_.wire = *dtype_from_name(options.wire);
    mixed_.row = &row_;
    if (!options.algorithm.empty()) mixed_.algorithm = options.algorithm.c_str();
    if (!options.plain_algorithm.empty()) plain_.algorithm = options.plain_algorithm.c_str();
  }

  void verify() {
    for (const bool mixed : {false, true}) {
      for (uint64_t i = 0; i < elems_; ++i) (scatters() ? long_ : short_)[i] = input(crew_.rank(), i, false);
      call(mixed);
      const uint64_t first = scatters() ? block_ * static_cast<uint64_t>(crew_.rank()) : 0;
      for (uint64_t i = 0; i < (scatters() ? block_ : block_ * static_cast<uint64_t>(crew_.nranks())); ++i) {
        const float have = scatters() ? short_[i] : long_[i];
        const float want = scatters() ? sum(first + i, mixed) : gathered(i, mixed);
        if (have != want)
          crew_.need(Status(StatusCode::kInternal, fmt::format("element {} is {}, not {}", i, have, want)));
      }
    }
  }

  Figures measure() {
    const double call_us = std::max(time_us(false, 2), time_us(true, 2));
    const int calls = std::max(1, static_cast<int>(options_.ms * 1e3 / call_us));
    std::vector<double> plain, mixed, ratios;
    for (int round = 0; round < options_.rounds; ++round) {
      const bool mixed_first = round % 2 == 1;
      const double first = time_us(mixed_first, calls), second = time_us(!mixed_first, calls);
      plain.push_back(mixed_first ? second : first);
      mixed.push_back(mixed_first ? first : second);
      ratios.push_back(mixed.back() / plain.back());
    }
    const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
    return {median(plain),
            median(mixed),
            median(ratios),
            *low,
            *high,
            *std::min_element(plain.begin(), plain.end()),
            *std::min_element(mixed.begin(), mixed.end())};
  }

 private:
  Collective collective() const { return *collective_from_name(options_.collective); }
  bool scatters() const { return collective() == Collective::kReduceScatter; }
  static float input(Rank rank, uint64_t elem, bool rounded) {
    constexpr float kLittle = 0x1p-14f;  // below the last place of bfloat16 and half for values of 1 and above
    return static_cast<float>(1 + (elem * 7 + static_cast<uint64_t>(rank) * 5) % 8) + (rounded ? 0 : kLittle);
  }
  float sum(uint64_t elem, bool rounded) const {
    float sum = 0;
    for (Rank r = 0; r < crew_.nranks(); ++r) sum += input(r, elem, rounded);
    return sum;
  }
  float gathered(uint64_t elem, bool rounded) const {
    return input(static_cast<Rank>(elem / block_), elem % block_, rounded);
  }

  void call(bool mixed) {
    const CallOptions* options = mixed ? &mixed_ : plain_.algorithm != nullptr ? &plain_ : nullptr;
    crew_.need(scatters() ? comm_->reduce_scatter(long_, short_, block_, Dtype::kFloat32, Op::kSum, options)
                          : comm_->all_gather(short_, long_, block_, Dtype::kFloat32, options));
  }

  /// Microseconds a call, the maximum over the ranks.
  double time_us(bool mixed, int calls) {
    call(mixed);  // warms the caches after the other row's calls
    double us = (options_.fresh ? fresh_ms(mixed, calls) : back_to_back_ms(mixed, calls)) * 1e3 / calls;
    crew_.need(comm_->all_reduce(&us, &us, 1, Dtype::kFloat64, Op::kMax));
    return us;
  }

  double back_to_back_ms(bool mixed, int calls) {
    crew_.line_up();
    const double start_ms = now_ms();
    for (int i = 0; i < calls; ++i) call(mixed);
    return now_ms() - start_ms;
  }
  double fresh_ms(bool mixed, int calls) {
    double ms = 0;
    for (int i = 0; i < calls; ++i) {
      float* in = scatters() ? long_ : short_;
      std::fill(in, in + (scatters() ? elems_ : block_), static_cast<float>(i));
      crew_.line_up();
      const double start_ms = now_ms();
      call(mixed);
      ms += now_ms() - start_ms;
    }
    return ms;
  }

  Crew& crew_;
  const Options& options_;
  std::unique_ptr<Communicator> comm_;
  uint64_t elems_, block_ = 0;
  float *long_ = nullptr, *short_ = nullptr;
  TypeRow row_;
  CallOptions mixed_, plain_;
};

// Pins ranks evenly, also if they outnumber processors, so that the scheduler does not decide the result.
void pin(Crew& crew) {
  int cpus[kMaxRanks];
  const int num = allowed_cpus(cpus, kMaxRanks);
  if (num > 0) pin_to_cpu(cpus[crew.rank() % num]);
}

bool compare(const Options& options, int nranks, uint64_t bytes, Figures* figures) {
  Shared seen;
  const bool good = run_ranks(nranks, &seen, [&](Crew& crew) {
    pin(crew);
    Pair pair(crew, options, bytes);
    pair.verify();
    const Figures f = pair.measure();
    if (crew.rank() != 0) return;
    const double values[] = {f.plain_us, f.mixed_us, f.ratio, f.low, f.high, f.plain_least_us, f.mixed_least_us};
    std::copy(std::begin(values), std::end(values), crew.shared().values[0]);
  });
  const double* v = seen.values[0];
  *figures = {v[0], v[1], v[2], v[3], v[4], v[5], v[6]};
  return good;
}

Json rounded(double value) { return std::round(value * 1e4) / 1e4; }

int run(int argc, char** argv) {
  Options options;
  CLI::App app{"A call of mixed types beside the same call of float: ratio of their times, by size"};
  app.add_option("--ranks", options.ranks, "Numbers of processes (2,4)")->delimiter(',')->check(CLI::Range(1, 16));
  app.add_option("--sizes-kib", options.sizes_kib, "KiB of the longer buffer (64 to 65536)")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  app.add_option("--collective", options.collective)
      ->check(CLI::IsMember({"reduce_scatter", "all_gather"}))
      ->capture_default_str();
  app.add_option("--wire", options.wire, "Type between ranks; input and output are float")
      ->check(CLI::IsMember({"bfloat16", "half"}))
      ->capture_default_str();
  app.add_option("--algo", options.algorithm, "Algorithm of the mixed call (planner's choice)");
  app.add_option("--plain-algo", options.plain_algorithm, "Algorithm of the float call (planner's choice)");
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--ms", options.ms, "Milliseconds of one timing")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--fresh", options.fresh, "Each rank writes its input before every call; only the calls are timed");
  app.add_option("--json", options.json, "Writes the table to this file");
  CLI11_PARSE(app, argc, argv);

  double load = 0;  // load average of the machine before the run
  if (getloadavg(&load, 1) != 1) load = -1;
  Json rows = Json::array();
  fmt::print("{}, float in and out: wire {} beside float\n{:>6} {:>9} {:>12} {:>12}  {:26} {}\n", options.collective,
             options.wire, "ranks", "KiB", "float us", "mixed us", "ratio [least..largest]", "ratio of least times");
  for (const int nranks : options.ranks)
    for (const uint64_t kib : options.sizes_kib) {
      std::fflush(stdout);  // before ranks are forked
      Figures f;
      if (!compare(options, nranks, kib << 10, &f)) return 1;
      fmt::print("{:>6} {:>9} {:>12.1f} {:>12.1f}  {:26} {:.3f} ({:.1f} / {:.1f} us)\n", nranks, kib, f.plain_us,
                 f.mixed_us, fmt::format("{:.3f} [{:.3f}..{:.3f}]", f.ratio, f.low, f.high),
                 f.mixed_least_us / f.plain_least_us, f.mixed_least_us, f.plain_least_us);
      rows.push_back({{"ranks", nranks},
                      {"bytes", kib << 10},
                      {"plain_us", rounded(f.plain_us)},
                      {"mixed_us", rounded(f.mixed_us)},
                      {"ratio", rounded(f.ratio)},
                      {"low", rounded(f.low)},
                      {"high", rounded(f.high)},
                      {"plain_least_us", rounded(f.plain_least_us)},
                      {"mixed_least_us", rounded(f.mixed_least_us)}});
    }
  if (options.json.empty()) return 0;
  const Json result = {
      {"schema", "rondo-compare-types-1"},
      {"collective", options.collective},
      {"row", {{"input", "float"}, {"wire", options.wire}, {"accumulator", "float"}, {"output", "float"}}},
      {"rounds", options.rounds},
      {"ms", options.ms},
      {"fresh", options.fresh},
      {"load_average_before", rounded(load)},
      {"cpus", std::min<long>(sysconf(_SC_NPROCESSORS_ONLN), 1024)},
      {"points", rows}};
  std::ofstream file(options.json);
  file << result.dump(1) << "\n";
  return file.good() ? 0 : 1;
}

}  // namespace
}  // namespace rondo::bench

int main(int argc, char** argv) { return rondo::bench::run(argc, argv); }
