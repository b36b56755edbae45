// shm: ranks are processes of one host (or threads that joined one by one). Each communicator has memory of its own:
// one memfd for 16 ranks, made by the first of them. The others receive its descriptor over the bootstrap's Unix
// sockets, map the file, and close the descriptor.
//
//   | segments and header lines, rank by rank | data rings, rank by rank: huge pages are possible |
//
// Nothing has a name in a file system: the size of /dev/shm does not matter. A departing rank unmaps the files; the
// memory ends with the last rank, however it ends. A rank's bytes count in the pool of its process (pool.h).
//
// If the kernel lets the ranks read each other's memory (process_vm_readv, tested when the communicator is made;
// RONDO_CMA=0 forbids it), any buffer can be pulled without staging.
//
// alloc() makes one more memfd on every rank and maps all of them everywhere: collectives on such memory go straight
// from user buffer to user buffer. Thread safety: as Transport.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/forks.h"
#include "base/process_name.h"
#include "bootstrap/bootstrap.h"
#include "rondo/host_layout.h"
#include "transport/segment.h"

namespace rondo {

class ShmTransport final : public SegmentTransport {
 public:
  /// Collective over the Bootstrap's ranks on this host, which are numbered from 0. The Bootstrap must outlive the
  /// transport. `hosts`: Bootstrap::hosts(). may_pull: false if this rank must not read the others' memory (setting
  /// cma); then no rank does. longest_bytes: the limit of a later set_longest_message(). An error of one rank
  /// (kExhausted, kSystem) is returned to all of them, with its number.
  static Expected<std::unique_ptr<ShmTransport>> create(Bootstrap& bootstrap, const HostLayout& hosts, bool may_pull,
                                                        uint32_t longest_bytes = SegmentLayout::kMostMessageBytes);
  ~ShmTransport() override;
  std::string_view name() const override { return "shm"; }
  std::optional<PeerLoss> find_lost() override;
  Expected<void*> alloc(uint64_t bytes) override;
  void adopt_alloc() override;
  Status free(void* ptr) override;
  bool may_be_direct() const override { return live_regions_ != 0; }
  bool can_pull() const override { return can_pull_; }
  Status pull(Rank peer, const RemoteAddress& address, uint64_t offset_bytes, void* to, uint64_t bytes) override;
  void keep(std::shared_ptr<void> what) override { kept_.push_back(std::move(what)); }
  RemoteAddress describe(const void* ptr, uint64_t bytes) const override;
  std::byte* resolve(Rank peer, const RemoteAddress& a) const override {
    return regions_[a.region]->bases[static_cast<size_t>(peer)] + a.offset_bytes;
  }

 private:
  /// Mapped files. A forked child does not unmap them, because it does not have them.
  struct Region {
    std::vector<std::byte*> bases;  // by file
    uint64_t bytes = 0;             // of each
    MadeHere made_here;
    Region() = default;
    Region(const Region&) = delete;
    ~Region();
  };
  /// The layout of a file with segments: the lengths of each rank's two parts, the offset of the first data part, and
  /// the file's length.
  struct FileLayout {
    uint64_t small_bytes = 0, data_bytes = 0, data_begin = 0, bytes = 0;
  };
  ShmTransport(const SegmentLayout& layout, Bootstrap& bootstrap, const HostLayout& hosts);
  Expected<Fd> prepare();
  Status meet(bool may_pull);
  Expected<std::unique_ptr<Region>> map(const std::vector<Fd>& files, size_t step, uint64_t bytes, uint64_t huge_from);
  Expected<StagingPool::Range> take(uint64_t bytes, StagingPool::Use use) override;
  bool reads(Rank peer, uint64_t address, uint64_t value);

  Bootstrap& bootstrap_;
  const HostLayout hosts_;
  FileLayout file_;
  std::shared_ptr<StagingPool> pool_;
  std::unique_ptr<Region> segments_;
  StagingPool::Range free_small_, free_data_;  // the rest of this rank's parts of its file
  uint64_t charged_bytes_ = 0;                 // in the pool
  std::vector<ProcessName> processes_;         // by rank
  // Of alloc, one file per rank; same index on all ranks. nullptr: freed.
  std::vector<std::unique_ptr<Region>> regions_;
  std::unique_ptr<Region> new_region_;  // until adopt_alloc()
  int live_regions_ = 0;
  bool can_pull_ = false;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace rondo
