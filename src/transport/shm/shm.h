// shm: ranks are processes of one host (or threads that joined one by one). Each rank's segment is in the pool of its
// process, a memfd. The others receive its descriptor over the bootstrap's Unix sockets and map it, once for all shared
// communicators. Nothing has a name in a file system: the size of /dev/shm does not matter, and the memory ends with
// the last process, however it ends.
//
// A departing rank stores its marks in the others' segments and defers the free of its own (pool.h): the memory is
// reused when all ranks have departed or died.
//
// If the kernel lets the ranks read each other's memory (process_vm_readv, tested when the communicator is made;
// RONDO_CMA=0 forbids it), any buffer can be pulled without staging.
//
// alloc() makes one more memfd on every rank and maps all of them everywhere: collectives on such memory go straight
// from user buffer to user buffer. Thread safety: as Transport.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/segment.h"

namespace rondo {

/// The communicator's out-of-band channel, as the transport needs it.
class LocalPeers {
 public:
  virtual ~LocalPeers() = default;
  /// Collective: sends this rank's descriptors to all other ranks; (*all)[r] are r's as opened here, owned by the
  /// caller.
  virtual Status exchange_descriptors(std::span<const int> mine, std::vector<std::vector<int>>* all) = 0;
  /// Collective: every rank's bytes, by rank.
  virtual Status all_gather(const void* mine, uint64_t bytes, std::vector<std::string>* all) = 0;
  /// False if this rank must not read the others' memory (setting cma): then none does.
  virtual bool may_pull() const { return true; }
  /// A peer whose process is gone. Never blocks.
  virtual std::optional<PeerLoss> find_lost() = 0;
};

class ShmTransport final : public SegmentTransport {
 public:
  /// Collective over all ranks, which must be on this host. `peers` must outlive the transport. An error of one rank
  /// (kExhausted, kSystem) is returned to all of them, with its rank.
  static Expected<std::unique_ptr<ShmTransport>> create(Rank rank, int nranks, LocalPeers& peers);
  ~ShmTransport() override;
  std::string_view name() const override { return "shm"; }
  std::optional<PeerLoss> find_lost() override;
  Expected<void*> alloc(uint64_t bytes) override;
  Status free(void* ptr) override;
  bool may_be_direct() const override { return live_regions_ != 0; }
  bool can_pull() const override { return can_pull_; }
  Status pull(Rank peer, const RemoteAddress& address, uint64_t offset_bytes, void* to, uint64_t bytes) override;
  void keep(std::shared_ptr<void> what) override { kept_.push_back(std::move(what)); }
  RemoteAddress describe(const void* ptr, uint64_t bytes) const override;
  std::byte* resolve(Rank peer, const RemoteAddress& a) const override {
    return regions_[a.region].bases[static_cast<size_t>(peer)] + a.offset_bytes;
  }

 private:
  struct Region {                   // same index on all ranks, because alloc is collective
    std::vector<std::byte*> bases;  // by rank, as mapped here; empty if freed
    uint64_t bytes = 0;
  };
  struct Announcement;
  ShmTransport(Rank rank, const SegmentLayout& layout, std::shared_ptr<StagingPool> pool, LocalPeers& peers)
      : SegmentTransport(rank, layout, std::move(pool), StagingPool::Backing::kShared), peers_(peers) {}
  Status take_segment(Announcement* mine);
  Status meet(Announcement* mine, Status own);
  Status exchange_pools(const std::vector<Announcement>& all);
  Expected<Region> share(const char* label, uint64_t bytes);
  static void unmap(const Region& region);
  bool try_pulling(const std::vector<Announcement>& all);

  LocalPeers& peers_;
  std::vector<std::shared_ptr<PoolView>> views_;  // by rank
  std::vector<ProcessName> processes_;            // by rank, once others may know the segments
  std::vector<Region> regions_;
  int live_regions_ = 0;
  bool can_pull_ = false;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace rondo
