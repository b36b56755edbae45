// inproc: ranks are threads of one process. Segments are private memory of the process's pool. Every rank can access
// every buffer, therefore collectives can go straight from user buffer to user buffer (the `direct` algorithm) if that
// is faster.
//
// Ownership: the ranks share an InprocWorld, which keeps their ranges of the pool until the last rank is destroyed.
// Thread safety: as Transport.
#pragma once

#include <unistd.h>

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/private_blocks.h"
#include "transport/segment.h"

namespace rondo {

class InprocWorld {
 public:
  /// Errors: kExhausted, kSystem, kInvalidArgument (RONDO_POOL_BYTES).
  static Expected<std::shared_ptr<InprocWorld>> create(int nranks);
  ~InprocWorld();

 private:
  friend class InprocTransport;
  explicit InprocWorld(int nranks) : layout_(nranks) {}
  /// The n-th call of alloc on all ranks. `bytes` and `first` are those of the rank that made it first.
  struct Allocation {
    uint64_t bytes;
    Rank first;
    int num_ranks;  // that have made it
  };
  /// Errors: kMismatch, naming both ranks.
  Status agree_on_bytes(Rank rank, uint64_t ordinal, uint64_t bytes);
  SegmentLayout layout_;
  std::shared_ptr<StagingPool> pool_;
  std::byte* base_ = nullptr;
  std::vector<StagingPool::Range> segments_;  // by rank
  std::mutex mutex_;
  std::vector<StagingPool::Range> taken_;    // for connections
  std::vector<std::shared_ptr<void>> kept_;  // objects that other ranks may still access
  std::deque<Allocation> allocations_;       // not yet made by all ranks
  uint64_t num_complete_ = 0;                // number of earlier ones
};

class InprocTransport final : public SegmentTransport {
 public:
  InprocTransport(Rank rank, std::shared_ptr<InprocWorld> world);
  ~InprocTransport() override { depart(); }
  std::string_view name() const override { return "inproc"; }
  std::optional<PeerLoss> find_lost() override { return std::nullopt; }  // a thread does not die without its process
  Expected<void*> alloc(uint64_t bytes) override;
  Status free(void* ptr) override { return blocks_.free(ptr); }
  void keep(std::shared_ptr<void> what) override;
  bool may_be_direct() const override { return !by_kernel_; }
  bool can_pull() const override { return true; }
  RemoteAddress describe(const void* ptr, uint64_t) const override {
    return {by_kernel_ ? RemoteAddress::kByCopy : 0, reinterpret_cast<uint64_t>(ptr)};
  }
  Status pull(Rank peer, const RemoteAddress& address, uint64_t offset_bytes, void* to, uint64_t bytes) override {
    return copy_by_kernel(peer, ::getpid(), address.offset_bytes + offset_bytes, to, bytes);
  }
  /// From now on the kernel copies the data of peers' buffers, as between processes. For measurements. Equal on all
  /// ranks, before the first call.
  void pull_by_kernel() { by_kernel_ = true; }
  std::byte* resolve(Rank, const RemoteAddress& a) const override {
    return reinterpret_cast<std::byte*>(a.offset_bytes);
  }

 private:
  Expected<StagingPool::Range> take(uint64_t bytes, StagingPool::Use use) override;
  std::shared_ptr<InprocWorld> world_;
  PrivateBlocks blocks_;
  uint64_t num_allocs_ = 0;    // calls
  bool by_kernel_ = false;
};

}  // namespace rondo
