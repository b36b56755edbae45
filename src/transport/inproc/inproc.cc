#include "transport/inproc/inproc.h"

#include "base/error.h"

namespace rondo {

Expected<std::shared_ptr<InprocWorld>> InprocWorld::create(int nranks) {
  std::shared_ptr<InprocWorld> world(new InprocWorld(nranks));
  RONDO_TRY_ASSIGN(world->pool_, StagingPool::acquire());
  RONDO_TRY_ASSIGN(world->base_, world->pool_->base());
  for (int r = 0; r < nranks; ++r) {
    RONDO_TRY_ASSIGN(const StagingPool::Range segment,
                     world->pool_->take(world->layout_.total_bytes, StagingPool::Use::kSmall));
    world->segments_.push_back(segment);
  }
  return world;
}

InprocWorld::~InprocWorld() {
  if (pool_ == nullptr) return;
  pool_->give_back(segments_);
  pool_->give_back(taken_);
}

InprocTransport::InprocTransport(Rank rank, std::shared_ptr<InprocWorld> world)
    : SegmentTransport(rank, world->layout_), world_(std::move(world)), blocks_(rank) {
  std::vector<SegmentAddress> places;
  for (const StagingPool::Range& s : world_->segments_) places.push_back({world_->base_, s.offset});
  set_places(std::move(places));
}

Expected<StagingPool::Range> InprocTransport::take(uint64_t bytes, StagingPool::Use use) {
  RONDO_TRY_ASSIGN(const StagingPool::Range taken, world_->pool_->take(bytes, use));
  const std::lock_guard lock(world_->mutex_);
  world_->taken_.push_back(taken);
  return taken;
}

void InprocTransport::keep(std::shared_ptr<void> what) {
  const std::lock_guard lock(world_->mutex_);
  world_->kept_.push_back(std::move(what));
}

// Threads exchange nothing and do not wait: later ranks compare their size with the first rank's.
Status InprocWorld::agree_on_bytes(Rank rank, uint64_t ordinal, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const size_t place = ordinal - num_complete_;
  if (place == allocations_.size()) allocations_.push_back({bytes, rank, 0});
  Allocation& a = allocations_[place];
  ++a.num_ranks;
  const Allocation asked = a;
  for (; !allocations_.empty() && allocations_.front().num_ranks == layout_.nranks; ++num_complete_)
    allocations_.pop_front();
  if (asked.bytes == bytes) return {};
  return make_error(StatusCode::kMismatch, "rank {}: ranks disagree on the bytes of alloc: {} here, {} on rank {}",
                    rank, bytes, asked.bytes, asked.first);
}

Expected<void*> InprocTransport::alloc(uint64_t bytes) {
  RONDO_TRY(world_->agree_on_bytes(rank_, num_allocs_++, bytes));
  return blocks_.alloc(bytes);
}

}  // namespace rondo
