#include "topology/handover.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "base/read_file.h"
#include "base/thread.h"

namespace rondo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kBatches = 8, kRoundTrips = 50;
constexpr std::chrono::milliseconds kLongest(10);

struct alignas(128) Flag {
  std::atomic<uint32_t> value = 0;
};

bool stay_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return ::sched_setaffinity(0, sizeof set, &set) == 0;
}

bool wait_for(const Flag& flag, uint32_t value, Clock::time_point end) {
  for (uint32_t looks = 1; flag.value.load(std::memory_order_acquire) != value; ++looks)
    if (looks % 1024 == 0 && Clock::now() > end) return false;
  return true;
}

}  // namespace

std::array<int, 2> two_cpus() {
  const auto of_mask = []() -> std::array<int, 2> {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return {-1, -1};
    int first = -1;
    std::string core;
    for (int c = 0; c < CPU_SETSIZE; ++c) {
      if (!CPU_ISSET(c, &mask)) continue;
      const std::string here =
          first_line_of(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", c));
      if (first >= 0 && here != core) return {first, c};
      if (first < 0) first = c, core = here;
    }
    return {-1, -1};
  };
  if (const std::array<int, 2> found = of_mask(); found[1] >= 0) return found;
  cpu_set_t all;
  std::memset(&all, 0xFF, sizeof all);
  (void)::sched_setaffinity(0, sizeof all, &all);  // the kernel leaves those of the cgroup
  return of_mask();
}

std::optional<double> measure_handover_ns() {
  const OwnCpus own;
  if (!own) return std::nullopt;
  const std::array<int, 2> cpus = two_cpus();
  if (cpus[1] < 0) return std::nullopt;
  const NoSignals inherited;
  const Clock::time_point end = Clock::now() + kLongest;
  Flag flags[2];
  double least_ns = std::numeric_limits<double>::infinity();
  // Each thread waits for the other's flag and sets its own. The first batch begins when both threads run.
  const Status done = run_concurrently("a thread that measures the hand-over", 2, [&](size_t me) {
    if (!stay_on(cpus[me])) return Status();
    uint32_t k = 0;
    for (uint32_t batch = 0; batch <= kBatches; ++batch) {
      const Clock::time_point start = Clock::now();
      for (uint32_t i = 0; i < kRoundTrips; ++i) {
        ++k;
        if (me == 0) flags[0].value.store(k, std::memory_order_release);
        if (!wait_for(flags[1 - me], k, end)) return Status();
        if (me == 1) flags[1].value.store(k, std::memory_order_release);
      }
      const std::chrono::duration<double, std::nano> took = Clock::now() - start;
      if (me == 0 && batch > 0) least_ns = std::min(least_ns, took.count() / (2 * kRoundTrips));
    }
    return Status();
  });
  if (!done.ok() || least_ns == std::numeric_limits<double>::infinity()) return std::nullopt;
  return least_ns;
}

}  // namespace rondo
