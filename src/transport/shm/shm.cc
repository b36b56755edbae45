#include "transport/shm/shm.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace rondo {
namespace {

Status system_error(Rank rank, const char* what, uint64_t bytes) {
  return Status(StatusCode::kSystem, fmt::format("rank {}: {} of {} MiB of shared memory failed: {}", rank, what,
                                                 bytes >> 20, strerror(errno)));
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

// Makes `bytes` of anonymous memory, gives them to all ranks and maps everybody's.
Expected<ShmTransport::Region> ShmTransport::share(const char* label, uint64_t bytes) {
  Descriptor own{memfd_create(label, MFD_CLOEXEC)};
  if (own.fd < 0 || ftruncate(own.fd, static_cast<off_t>(bytes)) != 0) return system_error(rank_, "creation", bytes);
  std::vector<std::vector<int>> all;
  const Status exchanged = peers_.exchange_descriptors(std::span<const int>(&own.fd, 1), &all);
  std::vector<Descriptor> received(static_cast<size_t>(layout_.nranks));
  for (size_t r = 0; r < all.size(); ++r)
    if (r != static_cast<size_t>(rank_) && all[r].size() == 1) received[r].fd = all[r][0];
  RONDO_TRY(exchanged);

  Region region;
  region.bytes = bytes;
  for (Rank r = 0; r < layout_.nranks; ++r) {
    const int fd = r == rank_ ? own.fd : received[static_cast<size_t>(r)].fd;
    // Touching what lies beyond a shorter file would be a SIGBUS.
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
    madvise(p, bytes, MADV_DONTFORK);  // a forked child must not hold, nor touch, the segments
    region.bases.push_back(static_cast<std::byte*>(p));
  }
  return region;
}

void ShmTransport::unmap(const Region& region) {
  for (std::byte* b : region.bases) munmap(b, region.bytes);
}

Expected<std::unique_ptr<ShmTransport>> ShmTransport::create(Rank rank, int nranks, LocalPeers& peers) {
  std::unique_ptr<ShmTransport> t(new ShmTransport(rank, SegmentLayout(nranks), peers));
  RONDO_TRY_ASSIGN(t->segments_, t->share("rondo-segment", t->layout_.total_bytes));
  t->set_segments(t->segments_.bases);
  RONDO_TRY(t->try_pulling());
  return t;
}

// Reads a number from every peer's memory and compares: ranks of other pid namespaces, Yama and seccomp may forbid it.
// All ranks must be able to, or none does.
Status ShmTransport::try_pulling() {
  struct Probe {
    int pid;
    uint64_t address, value;
  };
  std::vector<std::string> all;
  uint64_t value = (uint64_t{static_cast<uint32_t>(getpid())} << 32) ^ monotonic_ns();
  const Probe mine{getpid(), reinterpret_cast<uint64_t>(&value), value};
  RONDO_TRY(peers_.all_gather(&mine, sizeof mine, &all));
  const char* setting = std::getenv("RONDO_CMA");
  bool can = setting == nullptr || std::strcmp(setting, "0") != 0;
  for (Rank r = 0; r < layout_.nranks; ++r) {
    Probe probe{};
    std::memcpy(&probe, all[static_cast<size_t>(r)].data(), std::min(sizeof probe, all[static_cast<size_t>(r)].size()));
    pids_.push_back(probe.pid);
    if (r == rank_ || !can) continue;
    uint64_t read = 0;
    can = pull(r, {RemoteAddress::kByCopy, probe.address}, 0, &read, sizeof read).ok() && read == probe.value;
  }
  const char flag = can ? 1 : 0;
  RONDO_TRY(peers_.all_gather(&flag, 1, &all));
  can_pull_ = std::all_of(all.begin(), all.end(), [](const std::string& s) { return s.size() == 1 && s[0] == 1; });
  return {};
}

Status ShmTransport::pull(Rank peer, const RemoteAddress& address, uint64_t offset_bytes, void* to, uint64_t bytes) {
  auto* at = static_cast<std::byte*>(to);
  for (uint64_t from = address.offset_bytes + offset_bytes; bytes != 0;) {
    const iovec local{at, bytes}, remote{reinterpret_cast<void*>(from), bytes};
    const ssize_t n = process_vm_readv(pids_[static_cast<size_t>(peer)], &local, 1, &remote, 1, 0);
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
  if (!segments_.bases.empty()) depart();
  for (const Region& r : regions_) unmap(r);
  unmap(segments_);
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
