#include "transport/inproc/inproc.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace rondo {
namespace {

Expected<std::byte*> map_anonymous(uint64_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return Status(StatusCode::kSystem, fmt::format("mapping {} MiB of memory failed: {}", bytes >> 20, strerror(errno)));
  madvise(p, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(p);
}

}  // namespace

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
    : SegmentTransport(rank, world->layout_), world_(std::move(world)) {
  std::vector<SegmentAddress> places;
  for (const StagingPool::Range& s : world_->segments_) places.push_back({world_->base_, s.offset});
  set_places(std::move(places));
}

InprocTransport::~InprocTransport() {
  depart();
  for (const Block& b : blocks_) munmap(b.ptr, b.bytes);
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
  return Status(StatusCode::kMismatch,
                fmt::format("rank {}: ranks disagree on the bytes of alloc: {} here, {} on rank {}", rank, bytes,
                            asked.bytes, asked.first));
}

Expected<void*> InprocTransport::alloc(uint64_t bytes) {
  RONDO_TRY(world_->agree_on_bytes(rank_, num_allocs_++, bytes));
  RONDO_TRY_ASSIGN(std::byte * p, map_anonymous(bytes));
  blocks_.push_back({p, bytes});
  return static_cast<void*>(p);
}

Status InprocTransport::free(void* ptr) {
  for (size_t i = 0; i < blocks_.size(); ++i)
    if (blocks_[i].ptr == ptr) {
      munmap(blocks_[i].ptr, blocks_[i].bytes);
      blocks_.erase(blocks_.begin() + static_cast<ptrdiff_t>(i));
      return {};
    }
  return Status(StatusCode::kInvalidArgument, fmt::format("rank {}: ptr was not made by alloc of this communicator", rank_));
}

}  // namespace rondo
