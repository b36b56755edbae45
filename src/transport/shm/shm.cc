#include "transport/shm/shm.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/limits.h"

namespace rondo {
namespace {

Status system_error(Rank rank, const char* what, uint64_t bytes) {
  const int error = errno;
  return Status(code_of(error), fmt::format("rank {}: {} of {:.4g} MiB of shared memory failed: {}", rank, what,
                                            static_cast<double>(bytes) / (1 << 20), errno_reason(error)));
}

Status dropped() {
  return Status(StatusCode::kSystem, "the kernel dropped its descriptor: raise this process's limit (ulimit -n)");
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

// Makes `bytes` of anonymous memory, passes it to all ranks and maps all of theirs.
Expected<ShmTransport::Region> ShmTransport::share(const char* label, uint64_t bytes) {
  const NoSizeSignal no_signal;  // the file size limit also applies to memory with a descriptor
  Descriptor own{memfd_create(label, MFD_CLOEXEC)};
  if (own.fd < 0 || ftruncate(own.fd, static_cast<off_t>(bytes)) != 0) return system_error(rank_, "creation", bytes);
  std::vector<std::vector<int>> all;
  const Status exchanged = peers_.exchange_descriptors(std::span<const int>(&own.fd, 1), &all);
  std::vector<Descriptor> received(static_cast<size_t>(layout_.nranks));
  for (size_t r = 0; r < all.size(); ++r)
    if (r != static_cast<size_t>(rank_) && all[r].size() == 1) received[r].fd = all[r][0];
  RONDO_TRY(exchanged);
  for (Rank r = 0; r < layout_.nranks; ++r)
    if (r != rank_ && received[static_cast<size_t>(r)].fd < 0)
      return Status(dropped().code(), fmt::format("rank {}: reaching rank {}: {}", rank_, r, dropped().message()));

  Region region;
  region.bytes = bytes;
  for (Rank r = 0; r < layout_.nranks; ++r) {
    const int fd = r == rank_ ? own.fd : received[static_cast<size_t>(r)].fd;
    // Access beyond the end of a shorter file would raise SIGBUS.
    struct stat theirs {};
    if (fstat(fd, &theirs) != 0 || static_cast<uint64_t>(theirs.st_size) != bytes) {
      unmap(region);
      return Status(StatusCode::kMismatch, fmt::format("rank {}: ranks disagree on the bytes of {}: {} here, {} on rank {}",
                                                       rank_, label, bytes, theirs.st_size, r));
    }
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED) {
      unmap(region);
      return system_error(rank_, "mapping", bytes);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    madvise(p, bytes, MADV_DONTFORK);  // a forked child must neither hold nor access the segments
    region.bases.push_back(static_cast<std::byte*>(p));
  }
  return region;
}

void ShmTransport::unmap(const Region& region) {
  for (std::byte* b : region.bases) munmap(b, region.bytes);
}

// Each rank's message before they map each other's memory.
struct ShmTransport::Announcement {  // its text comes last
  ProcessName process;
  uint64_t segment_offset = 0;
  uint64_t probe_address = 0, probe_value = 0;  // for process_vm_readv
  int32_t error = 0;                            // a StatusCode: this rank cannot take part
  char why[508] = {};
};

namespace {

// Each rank's result, in the last exchange.
struct Verdict {
  int32_t error = 0;
  uint32_t can_pull = 0;
  char why[504] = {};
};

template <class T>
void set_error(const Status& s, T* to) {
  to->error = static_cast<int32_t>(s.code());
  s.message().copy(to->why, sizeof to->why - 1);
}

// Every rank's T by rank, and the error of the lowest rank that has one. Only the used part of the text is sent.
template <class T>
Status exchange(LocalPeers& peers, Rank rank, const T& mine, std::vector<T>* all) {
  std::vector<std::string> blobs;
  const size_t fixed_bytes = offsetof(T, why);
  RONDO_TRY(peers.all_gather(&mine, fixed_bytes + strnlen(mine.why, sizeof mine.why), &blobs));
  all->assign(blobs.size(), T{});
  for (size_t r = 0; r < blobs.size(); ++r) {
    if (blobs[r].size() < fixed_bytes || blobs[r].size() > sizeof(T))
      return Status(StatusCode::kMismatch, fmt::format("rank {}: rank {} runs another version of rondo", rank, r));
    std::memcpy(static_cast<void*>(&(*all)[r]), blobs[r].data(), blobs[r].size());
  }
  for (size_t r = 0; r < all->size(); ++r)
    if (const T& a = (*all)[r]; a.error != 0)
      return Status(static_cast<StatusCode>(a.error),
                    fmt::format("rank {}: {}", r, std::string_view(a.why, strnlen(a.why, sizeof a.why))));
  return {};
}

}  // namespace

Expected<std::unique_ptr<ShmTransport>> ShmTransport::create(Rank rank, int nranks, LocalPeers& peers) {
  Announcement mine;
  auto pool = StagingPool::acquire();
  std::unique_ptr<ShmTransport> t(
      new ShmTransport(rank, SegmentLayout(nranks), pool.ok() ? *pool : std::shared_ptr<StagingPool>(), peers));
  const Status own = pool.ok() ? t->take_segment(&mine) : pool.status();
  RONDO_TRY(t->meet(&mine, own));
  return t;
}

Status ShmTransport::take_segment(Announcement* mine) {
  RONDO_TRY_ASSIGN(const StagingPool::Range segment,
                   pool_->take(StagingPool::Backing::kShared, layout_.total_bytes, StagingPool::Use::kSmall));
  set_own(segment);
  mine->segment_offset = segment.offset;
  std::vector<SegmentAddress> places(static_cast<size_t>(layout_.nranks));
  RONDO_TRY_ASSIGN(places[static_cast<size_t>(rank_)].pool, pool_->base(StagingPool::Backing::kShared));
  places[static_cast<size_t>(rank_)].segment_offset = segment.offset;
  set_places(std::move(places));
  return {};
}

// Three exchanges: readiness, descriptors, results. A rank with an error still takes part, and all ranks get its error
// at once.
Status ShmTransport::meet(Announcement* mine, Status own) {
  uint64_t value = (uint64_t{static_cast<uint32_t>(getpid())} << 32) ^ monotonic_ns();  // other ranks read it from here
  mine->process = ProcessName::self();
  mine->probe_address = reinterpret_cast<uint64_t>(&value);
  mine->probe_value = value;
  if (!own.ok()) set_error(own, mine);
  std::vector<Announcement> all;
  RONDO_TRY(exchange(peers_, rank_, *mine, &all));
  for (const Announcement& a : all) processes_.push_back(a.process);

  const Status reached = exchange_pools(all);
  // All ranks know a failed exchange, but not that this rank could not map a pool.
  if (!reached.ok() && views_.empty()) return reached;
  Verdict verdict;
  verdict.can_pull = reached.ok() && try_pulling(all);
  if (!reached.ok()) set_error(reached, &verdict);
  std::vector<Verdict> verdicts;
  RONDO_TRY(exchange(peers_, rank_, verdict, &verdicts));
  can_pull_ = std::all_of(verdicts.begin(), verdicts.end(), [](const Verdict& v) { return v.can_pull != 0; });
  return {};
}

// Passes this process's pool to all ranks and maps theirs, unless already mapped. views_ stays empty if the exchange
// itself fails.
Status ShmTransport::exchange_pools(const std::vector<Announcement>& all) {
  const int own = pool_->descriptor();
  std::vector<std::vector<int>> handed;
  RONDO_TRY(peers_.exchange_descriptors(std::span<const int>(&own, 1), &handed));
  std::vector<Descriptor> received(all.size());
  for (size_t r = 0; r < handed.size(); ++r)
    if (r != static_cast<size_t>(rank_) && handed[r].size() == 1) received[r].fd = handed[r][0];
  views_.resize(all.size());
  std::vector<SegmentAddress> places = this->places();
  Status failed;
  for (size_t r = 0; r < all.size(); ++r) {
    if (r == static_cast<size_t>(rank_)) continue;
    auto view = received[r].fd >= 0 ? PoolView::of(received[r].fd, all[r].process) : dropped();
    const uint64_t offset = all[r].segment_offset;
    if (view.ok() && (offset % 4096 != 0 || offset > (*view)->bytes() - layout_.total_bytes))
      view = Status(StatusCode::kMismatch, "its segment is outside of its pool");
    if (!view.ok()) {
      failed = Status(view.status().code(), fmt::format("reaching rank {}: {}", r, view.status().message()));
      continue;
    }
    views_[r] = *view;
    places[r] = {views_[r]->base(), offset};
  }
  set_places(std::move(places));
  return failed;
}

// Reads a number from every peer's memory and compares it: other pid namespaces, Yama and seccomp may forbid it. All
// ranks must succeed, or none pulls.
bool ShmTransport::try_pulling(const std::vector<Announcement>& all) {
  if (!peers_.may_pull()) return false;
  for (Rank r = 0; r < layout_.nranks; ++r) {
    if (r == rank_) continue;
    const Announcement& a = all[static_cast<size_t>(r)];
    uint64_t read = 0;
    if (!pull(r, {RemoteAddress::kByCopy, a.probe_address}, 0, &read, sizeof read).ok() || read != a.probe_value)
      return false;
  }
  return true;
}

Status ShmTransport::pull(Rank peer, const RemoteAddress& address, uint64_t offset_bytes, void* to, uint64_t bytes) {
  auto* at = static_cast<std::byte*>(to);
  for (uint64_t from = address.offset_bytes + offset_bytes; bytes != 0;) {
    const iovec local{at, bytes}, remote{reinterpret_cast<void*>(from), bytes};
    const ssize_t n = process_vm_readv(processes_[static_cast<size_t>(peer)].pid, &local, 1, &remote, 1, 0);
    if (n <= 0)
      return Status(StatusCode::kSystem, fmt::format("rank {}: reading {} B of rank {}'s memory failed: {}", rank_, bytes,
                                                     peer, n < 0 ? strerror(errno) : "nothing read"));
    at += n;
    from += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
  return {};
}

ShmTransport::~ShmTransport() {
  for (const Region& r : regions_) unmap(r);
  if (pool_ == nullptr || !pool_->is_of_this_process()) return;
  const std::vector<StagingPool::Range> mine = take_ranges();
  if (processes_.empty()) {  // no rank knows the ranges
    pool_->give_back(mine);
    return;
  }
  const uint8_t* own_marks = marks(rank_);
  depart();
  pool_->bury({mine, own_marks, processes_, 0, std::move(kept_)});
}

std::optional<PeerLoss> ShmTransport::find_lost() { return peers_.find_lost(); }

Expected<void*> ShmTransport::alloc(uint64_t bytes) {
  RONDO_TRY_ASSIGN(Region region, share("rondo-alloc", bytes));
  regions_.push_back(std::move(region));
  ++live_regions_;
  return static_cast<void*>(regions_.back().bases[static_cast<size_t>(rank_)]);
}

Status ShmTransport::free(void* ptr) {
  for (Region& r : regions_)
    if (!r.bases.empty() && r.bases[static_cast<size_t>(rank_)] == ptr) {
      unmap(r);
      r.bases.clear();
      --live_regions_;
      return {};
    }
  return Status(StatusCode::kInvalidArgument, fmt::format("rank {}: ptr was not made by alloc of this communicator", rank_));
}

RemoteAddress ShmTransport::describe(const void* ptr, uint64_t bytes) const {
  const auto* p = static_cast<const std::byte*>(ptr);
  for (size_t i = 0; i < regions_.size(); ++i) {
    if (regions_[i].bases.empty()) continue;
    const std::byte* base = regions_[i].bases[static_cast<size_t>(rank_)];
    if (p >= base && p + bytes <= base + regions_[i].bytes) return {i, static_cast<uint64_t>(p - base)};
  }
  if (can_pull_) return {RemoteAddress::kByCopy, reinterpret_cast<uint64_t>(ptr)};
  return {};
}

}  // namespace rondo
