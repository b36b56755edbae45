#include "plan/cost_corrections.h"

#include <algorithm>
#include <cmath>

namespace rondo {
namespace {

constexpr size_t kFirstOversubscribed = 3;

}  // namespace

size_t CostCorrections::world_of(int nranks, int ranks_per_core) {
  if (ranks_per_core > 1) return ranks_per_core == 2 ? kFirstOversubscribed : kFirstOversubscribed + 1;
  return nranks <= 2 ? 0 : nranks <= 5 ? 1 : 2;
}

size_t CostCorrections::nearest_measured(size_t world) const {
  const size_t first = world < kFirstOversubscribed ? 0 : kFirstOversubscribed,
               end = world < kFirstOversubscribed ? kFirstOversubscribed : kWorlds;
  auto measured = [this](size_t w) { return std::ranges::any_of(known[w], [](uint8_t forms) { return forms != 0; }); };
  for (size_t away = 0; away < kWorlds; ++away)
    for (const size_t w : {world - away, world + away})  // below 0 it wraps and is out of range
      if (w >= first && w < end && measured(w)) return w;
  return kWorlds;
}

int8_t CostCorrections::encode(double ratio) {
  const double least = 1 / kMost;
  return static_cast<int8_t>(std::lround(16 * std::log2(std::clamp(ratio, least, kMost * 0.99))));
}

double CostCorrections::decode(double sixteenths) { return std::exp2(sixteenths / 16); }

double CostCorrections::factor(size_t world, size_t row, CostForm form, double bytes) const {
  if (!knows(world, row, form)) return 1;
  const int8_t* at = sixteenths[world][row][static_cast<size_t>(form)];
  const double place = std::clamp(std::log2(std::max(bytes, 1.0) / kFirstBytes) / std::log2(kRatio), 0.0, kSizes - 1.0);
  const auto below = std::min(static_cast<size_t>(place), kSizes - 2);
  const double part = place - static_cast<double>(below);
  return decode(at[below] * (1 - part) + at[below + 1] * part);
}

}  // namespace rondo
