#include "calibrate_trust.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace rondo::tools {
namespace {

using Clock = std::chrono::steady_clock;

double thread_cpu_s() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Share of a processor that other work takes while this thread spins on it.
double share_of_others(int cpu, std::chrono::milliseconds duration) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof set, &set) != 0) return 0;  // the processor went offline
  const Clock::time_point start = Clock::now();
  const double cpu_before = thread_cpu_s();
  while (Clock::now() - start < duration) {
  }
  const double wall_s = std::chrono::duration<double>(Clock::now() - start).count();
  return std::clamp(1 - (thread_cpu_s() - cpu_before) / wall_s, 0.0, 1.0);
}

}  // namespace

std::string why_busy(const std::vector<int>& cpus) {
  constexpr std::chrono::milliseconds kLook{500};
  std::vector<double> shares(cpus.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < cpus.size(); ++i)
    threads.emplace_back([&, i] { shares[i] = share_of_others(cpus[i], kLook); });
  for (std::thread& t : threads) t.join();
  const auto worst = std::max_element(shares.begin(), shares.end());
  if (worst == shares.end() || *worst <= kMostBusy) return "";
  return fmt::format(
      "the machine is busy: other work, or a limit on this program, takes {:.0f} % of processor {} (at most {:.0f} % "
      "may "
      "be taken). The constants would be wrong, so nothing is written. Run it when the machine is idle, or use --force",
      100 * *worst, cpus[static_cast<size_t>(worst - shares.begin())], 100 * kMostBusy);
}

std::string why_unfit(std::string_view what, std::span<const Observation> timings, const CostVector& constants) {
  const double error = median_error(timings, constants);
  if (timings.empty() || error <= kMostMedianError) return "";
  return fmt::format(
      "the constants for {} miss half of their own timings by {:.0f} % or more (at most {:.0f} % is accepted): the "
      "machine "
      "was busy, or its timings are not steady. Nothing is written. Run it when the machine is idle, or use --force",
      what, 100 * error, 100 * kMostMedianError);
}

}  // namespace rondo::tools
