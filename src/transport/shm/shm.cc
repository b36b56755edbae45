#include "transport/shm/shm.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "base/outcome.h"
#include "base/round_up.h"

namespace rondo {
namespace {

// One file has the segments of 16 ranks. With one file for all ranks, ranks with a core each would queue for its pages.
// With one file for each rank there would be N * N mappings.
constexpr Rank kRanksPerFile = 16;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kSmallPerConnection = 8192;           // header lines and counters, more than most connections need
constexpr uint64_t kMostDataBytes = uint64_t{16} << 30;  // address space of a rank's rings

Status system_error(const char* what, uint64_t bytes) {
  const int error = errno;
  const char* const remedy =
      error == ENOMEM ? "; raise the limit on address space (ulimit -v) or vm.max_map_count" : "";
  return make_error(code_of(error), "{} of {:.4g} MiB of shared memory failed: {}{}", what,
                    static_cast<double>(bytes) / (1 << 20), errno_reason(error), remedy);
}

// A file of zeros in memory that nobody can shorten.
Expected<Fd> make_file(const char* label, uint64_t bytes) {
  const NoSizeSignal no_signal;  // the file size limit also applies to memory with a descriptor
  Fd fd(memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return system_error("creation", bytes);
  fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return fd;
}

// A rank's message before the ranks map each other's memory.
struct Announcement {
  ProcessName process;
  uint64_t probe_address = 0, probe_value = 0;  // for process_vm_readv
};
template <class C>
void fields(C& c, Announcement& a) {
  c(a.process.pid, a.process.start_ticks, a.process.pid_namespace, a.probe_address, a.probe_value);
}

// Collective. Passes this rank's outcome and its file, if it has one. Sets files by rank. Returns the messages of all
// ranks, or the error of the first rank that has one.
template <class T>
Expected<std::vector<T>> exchange(Bootstrap& bootstrap, const Expected<T>& mine, Fd own, std::vector<Fd>* files) {
  return exchange_outcomes(mine, [&](std::string_view said, std::vector<std::string>* all) -> Status {
    const int fd = own.get();
    std::vector<FromRank> passed;
    RONDO_TRY(bootstrap.all_gather_here(said, std::span<const int>(&fd, own ? 1 : 0), &passed));
    for (Rank r = 0; r < bootstrap.nranks(); ++r) {
      if (!bootstrap.same_host(r)) continue;
      all->push_back(std::move(passed[r].bytes));
      files->push_back(passed[r].descriptors.empty() ? Fd() : std::move(passed[r].descriptors[0]));
      if (r == bootstrap.rank()) files->back() = std::move(own);
    }
    return {};
  });
}

}  // namespace

ShmTransport::Region::~Region() {
  if (made_here)
    for (std::byte* b : bases) munmap(b, bytes);
}

// Maps the files of every `step`-th rank, with huge pages from huge_from on.
Expected<std::unique_ptr<ShmTransport::Region>> ShmTransport::map(const std::vector<Fd>& files, size_t step,
                                                                  uint64_t bytes, uint64_t huge_from) {
  auto region = std::make_unique<Region>();
  region->bytes = bytes;
  for (size_t maker = 0; maker < files.size(); maker += step) {
    const auto failed = [&](StatusCode code, std::string_view why) {
      return make_error(code, "reaching rank {}: {}", maker, why);
    };
    if (!files[maker])
      return failed(StatusCode::kSystem, "the kernel dropped its descriptor: raise this process's limit (ulimit -n)");
    struct stat theirs {};  // access beyond the end of a shorter file would raise SIGBUS
    if (fstat(files[maker].get(), &theirs) != 0 || static_cast<uint64_t>(theirs.st_size) != bytes)
      return failed(
          StatusCode::kMismatch,
          fmt::format("ranks disagree on the bytes of shared memory: {} here, {} there", bytes, theirs.st_size));
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, files[maker].get(), 0);
    if (p == MAP_FAILED) {
      const Status s = system_error("mapping", bytes);
      return failed(s.code(), s.message());
    }
    region->bases.push_back(static_cast<std::byte*>(p));
    madvise(region->bases.back() + huge_from, bytes - huge_from, MADV_HUGEPAGE);
    madvise(p, bytes, MADV_DONTFORK);  // a forked child must neither hold nor access the segments
    if (maker != static_cast<size_t>(rank_)) madvise(p, bytes, MADV_DONTDUMP);  // the maker's core dump has it
  }
  return region;
}

ShmTransport::ShmTransport(const SegmentLayout& layout, Bootstrap& bootstrap, const HostLayout& hosts)
    : SegmentTransport(hosts.local(bootstrap.rank()), layout), bootstrap_(bootstrap), hosts_(hosts) {
  const auto ranks = static_cast<uint64_t>(std::min(kRanksPerFile, layout.nranks));
  file_.small_bytes = round_up(layout.total_bytes + layout.max_connections * kSmallPerConnection, kPageBytes);
  file_.data_bytes = round_up(std::min(uint64_t{layout.max_connections} * layout.data_bytes(), kMostDataBytes),
                              StagingPool::kBlockBytes);
  file_.data_begin = round_up(ranks * file_.small_bytes, StagingPool::kBlockBytes);
  file_.bytes = file_.data_begin + ranks * file_.data_bytes;
}

Expected<std::unique_ptr<ShmTransport>> ShmTransport::create(Bootstrap& bootstrap, const HostLayout& hosts,
                                                             bool may_pull, uint32_t longest_bytes) {
  const SegmentLayout layout(hosts.num_ranks(hosts.host(bootstrap.rank())), longest_bytes);
  std::unique_ptr<ShmTransport> t(new ShmTransport(layout, bootstrap, hosts));
  RONDO_TRY(t->meet(may_pull));
  return t;
}

// Takes this rank's segment. The first of the ranks that share a file makes the file.
Expected<Fd> ShmTransport::prepare() {
  RONDO_TRY_ASSIGN(pool_, StagingPool::acquire());
  const uint64_t segment_bytes = round_up(layout_.total_bytes, kPageBytes);
  const auto place = static_cast<uint64_t>(rank_ % kRanksPerFile);
  free_small_ = {place * file_.small_bytes, file_.small_bytes};
  free_data_ = {file_.data_begin + place * file_.data_bytes, file_.data_bytes};
  RONDO_TRY(take(segment_bytes, StagingPool::Use::kSmall).status());
  return place == 0 ? make_file("rondo-pool", file_.bytes) : Fd();
}

// Two exchanges: files and results. A rank with an error still takes part, and all ranks get its error at once.
Status ShmTransport::meet(bool may_pull) {
  Expected<Fd> own = prepare();
  uint64_t value = (uint64_t{static_cast<uint32_t>(getpid())} << 32) ^ monotonic_ns();  // another rank reads it here
  const Expected<Announcement> mine = Announcement{ProcessName::self(), reinterpret_cast<uint64_t>(&value), value};
  std::vector<Fd> files, none;
  RONDO_TRY_ASSIGN(const std::vector<Announcement> all,
                   exchange(bootstrap_, own.ok() ? mine : Expected<Announcement>(own.status()),
                            own.ok() ? std::move(*own) : Fd(), &files));
  for (const Announcement& a : all) processes_.push_back(a.process);
  auto mapped = map(files, kRanksPerFile, file_.bytes, file_.data_begin);
  files.clear();
  Expected<bool> pulls = mapped.status();
  if (mapped.ok()) {
    segments_ = std::move(*mapped);
    std::vector<SegmentAddress> places;
    for (uint64_t r = 0; r < all.size(); ++r)
      places.push_back({segments_->bases[r / kRanksPerFile], r % kRanksPerFile * file_.small_bytes});
    set_places(std::move(places));
    const Rank next = (rank_ + 1) % layout_.nranks;
    const Announcement& a = all[static_cast<size_t>(next)];
    pulls = may_pull && reads(next, a.probe_address, a.probe_value);
  }
  RONDO_TRY_ASSIGN(const std::vector<bool> all_pull, exchange(bootstrap_, pulls, Fd(), &none));
  can_pull_ = std::find(all_pull.begin(), all_pull.end(), false) == all_pull.end();
  return {};
}

Expected<StagingPool::Range> ShmTransport::take(uint64_t bytes, StagingPool::Use use) {
  StagingPool::Range& rest = use == StagingPool::Use::kData ? free_data_ : free_small_;
  bytes = round_up(bytes, kPageBytes);
  if (rest.bytes < bytes) return Status(StatusCode::kExhausted, "its part of the communicator's shared memory is full");
  RONDO_TRY(pool_->charge(bytes));
  charged_bytes_ += bytes;
  rest.bytes -= bytes;
  return StagingPool::Range{std::exchange(rest.offset, rest.offset + bytes), bytes};
}

// Tests whether this rank can read a number from a peer's memory: other pid namespaces, Yama and seccomp may forbid it.
// Each rank tests only the next one. If every rank can read the next one, every rank can read all others, because the
// kernel compares their users, namespaces and capabilities. All ranks must succeed, or none pulls.
bool ShmTransport::reads(Rank peer, uint64_t address, uint64_t value) {
  uint64_t read = 0;
  return pull(peer, {RemoteAddress::kByCopy, address}, 0, &read, sizeof read).ok() && read == value;
}

Status ShmTransport::pull(Rank peer, const RemoteAddress& address, uint64_t offset_bytes, void* to, uint64_t bytes) {
  return copy_by_kernel(peer, processes_[static_cast<size_t>(peer)].pid, address.offset_bytes + offset_bytes, to,
                        bytes);
}

ShmTransport::~ShmTransport() {
  if (pool_ == nullptr || !pool_->is_of_this_process()) return;
  pool_->discharge(charged_bytes_);
  if (segments_ == nullptr) return;
  depart();
  if (kept_.empty()) return;
  const uint8_t* const departed = marks();
  kept_.push_back(std::shared_ptr<Region>(std::move(segments_)));
  pool_->free_later({departed, processes_, std::move(kept_)});
}

std::optional<PeerLoss> ShmTransport::find_lost() {
  auto loss = bootstrap_.find_lost();
  if (!loss || !bootstrap_.same_host(loss->rank)) return std::nullopt;
  return PeerLoss{hosts_.local(loss->rank), std::move(loss->how)};
}

Expected<void*> ShmTransport::alloc(uint64_t bytes) {
  auto own = make_file("rondo-alloc", bytes);
  const Expected<bool> outcome = own.ok() ? Expected<bool>(true) : own.status();
  std::vector<Fd> files;
  RONDO_TRY(exchange(bootstrap_, outcome, own.ok() ? std::move(*own) : Fd(), &files).status());
  auto region = map(files, 1, bytes, 0);
  if (!region.ok()) return make_error(region.status().code(), "rank {}: {}", rank_, region.status().message());
  new_region_ = std::move(*region);
  return static_cast<void*>(new_region_->bases[static_cast<size_t>(rank_)]);
}

void ShmTransport::adopt_alloc() {
  regions_.push_back(std::move(new_region_));
  ++live_regions_;
}

Status ShmTransport::free(void* ptr) {
  for (std::unique_ptr<Region>& r : regions_)
    if (r != nullptr && r->bases[static_cast<size_t>(rank_)] == ptr) {
      r.reset();
      --live_regions_;
      return {};
    }
  return invalid_argument("rank {}: ptr was not made by alloc of this communicator", rank_);
}

RemoteAddress ShmTransport::describe(const void* ptr, uint64_t bytes) const {
  const auto* p = static_cast<const std::byte*>(ptr);
  for (size_t i = 0; i < regions_.size(); ++i) {
    if (regions_[i] == nullptr) continue;
    const std::byte* base = regions_[i]->bases[static_cast<size_t>(rank_)];
    if (p >= base && p + bytes <= base + regions_[i]->bytes) return {i, static_cast<uint64_t>(p - base)};
  }
  if (can_pull_) return {RemoteAddress::kByCopy, reinterpret_cast<uint64_t>(ptr)};
  return {};
}

}  // namespace rondo
