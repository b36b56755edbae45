#include "device/driver/launch_order.h"

#include <algorithm>
#include <map>
#include <utility>

#include "device/driver/capture.h"

namespace rondo {
namespace {

// Adds a part. Parts of one rank are never resident together.
void add_part(std::vector<LaunchPart>& parts, const LaunchPart& part) {
  const auto known = std::ranges::find_if(parts, [&](const auto& p) { return p.rank == part.rank; });
  if (known == parts.end()) parts.push_back(part);
  else known->blocks = std::max(known->blocks, part.blocks);
}

bool same_ranks(std::span<const LaunchPart> a, std::span<const LaunchPart> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.rank == y.rank; });
}

}  // namespace

uint32_t room_of(std::span<const LaunchPart> parts) {
  std::map<uint64_t, uint32_t> ranks;
  uint32_t share = UINT32_MAX, most = 0;
  for (const LaunchPart& p : parts) {
    most = std::max(most, ++ranks[p.communicator]);
    share = std::min(share, p.share);
  }
  return share * most;
}

bool LaunchOrder::fits(std::span<const LaunchPart> launch) const {
  std::vector<LaunchPart> all(launch.begin(), launch.end());
  for (const Running& r : beside_)
    for (const LaunchPart& p : r.parts) add_part(all, p);
  uint64_t blocks = 0;
  for (const LaunchPart& p : all) blocks += p.blocks;
  return blocks <= room_of(all);
}

void LaunchOrder::drop_ended(std::vector<Running>& launches) {
  std::erase_if(launches, [&](Running& r) {
    if (cuda::driver()->event_query(r.ended.get()) != cuda::kSuccess) return false;
    unused_.push_back(std::move(r.ended));
    return true;
  });
}

Status LaunchOrder::begin(cuda::Stream stream, uint64_t capture, std::span<const LaunchPart> launch) {
  if (std::exchange(capture_, capture) != capture) before_.clear(), beside_.clear();
  if (capture == 0) {
    const cuda::OutsideCapture outside;  // another stream of this thread may be captured
    drop_ended(before_);
    drop_ended(beside_);
  }
  if (!fits(launch)) {
    before_ = std::move(beside_);
    beside_.clear();
  }
  for (const Running& r : before_) RONDO_TRY(cuda::wait_for(stream, r.ended.get()));
  return {};
}

Status LaunchOrder::launched(cuda::Stream stream, std::span<const LaunchPart> launch) {
  auto known = std::ranges::find_if(beside_, [&](const Running& r) { return same_ranks(r.parts, launch); });
  if (known == beside_.end()) {
    known = beside_.insert(known, {{launch.begin(), launch.end()}, {}});
    if (unused_.empty()) {
      RONDO_TRY_ASSIGN(known->ended, cuda::OwnedEvent::make());
    } else {
      known->ended = std::move(unused_.back());
      unused_.pop_back();
    }
  }
  for (const LaunchPart& p : launch) add_part(known->parts, p);
  return cuda::record(known->ended.get(), stream);
}

}  // namespace rondo
