#include "perf_times.h"

#include <algorithm>
#include <cmath>

namespace rondo::tools {
namespace {

constexpr double kShortBatch_s = 4e-6;
constexpr int kMaxTimes = 4096;  // limit per measurement, so that the list does not grow while it is measured

}  // namespace

bool is_disturbed(double mean_s, const Spread& spread) {
  return mean_s > kDisturbedMean * spread.median_s || spread.p90_s > kDisturbedSpread * spread.p10_s;
}

double quantile(const std::vector<double>& sorted, double q) {
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

IterationTimes::IterationTimes(int iters, const TickScale& scale)
    : seconds_per_tick_(scale.ns_per_tick() * 1e-9),
      short_ticks_(static_cast<uint64_t>(kShortBatch_s / seconds_per_tick_)),
      batch_((iters + kMaxTimes - 1) / kMaxTimes) {
  seconds_.reserve(static_cast<size_t>(std::min(iters, kMaxTimes + 1)));
}

void IterationTimes::end_batch() {
  const uint64_t now = ticks();
  seconds_.push_back(static_cast<double>(now - last_ticks_) * seconds_per_tick_ / in_batch_);
  if (now - last_ticks_ < short_ticks_) batch_ *= 2;
  in_batch_ = 0;
  last_ticks_ = now;
}

std::optional<Spread> IterationTimes::finish(int operations) {
  if (in_batch_ > 0) end_batch();
  if (seconds_.empty()) return std::nullopt;
  std::sort(seconds_.begin(), seconds_.end());
  return Spread{quantile(seconds_, 0.5) / operations, quantile(seconds_, 0.1) / operations,
                quantile(seconds_, 0.9) / operations};
}

}  // namespace rondo::tools
