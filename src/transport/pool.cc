#include "transport/pool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "base/limits.h"
#include "base/round_up.h"
#include "config/setting_table.h"
#include "protocol/spin.h"

namespace rondo {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kLookAgainNs = 10'000'000;  // checking a process costs about 20 us
// 1/16 for headers and lines, which need far less (about 5 KiB for 2 MiB of ring, and 12 KiB for a rank).
constexpr uint64_t small_part(uint64_t size_bytes) { return round_up(size_bytes / 16, StagingPool::kBlockBytes); }

std::string text(uint64_t bytes) {
  const bool large = bytes >= uint64_t{1} << 30, small = bytes < uint64_t{1} << 20 && bytes != 0;
  const double unit = large ? 1 << 30 : small ? 1 << 10 : 1 << 20;
  return fmt::format("{:.4g} {}", static_cast<double>(bytes) / unit, large ? "GiB" : small ? "KiB" : "MiB");
}

Status system_error(const char* what, uint64_t bytes) {
  const int error = errno;
  return Status(code_of(error), fmt::format("{} of the staging pool of {} failed: {}; RONDO_POOL_BYTES sets its size",
                                            what, text(bytes), errno_reason(error)));
}

// Per-process state: the current pool, and the mapped pools of other processes. It owns nothing.
// Never destroyed, because communicators may outlive main().
struct Registry {
  std::mutex mutex;
  std::weak_ptr<StagingPool> pool;
  // By file and owner: the kernel reuses inode numbers after 2^32 others.
  std::map<std::tuple<dev_t, ino_t, int32_t, uint64_t>, std::weak_ptr<PoolView>> views;
  int fd = -1;  // the pool's: a child must close it so that it does not keep the memory alive
};
Registry& registry() {
  static Registry* r = [] {
    auto* made = new Registry;
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                   [] {
                     Registry& child = registry();
                     if (child.fd >= 0) close(std::exchange(child.fd, -1));
                     child.pool.reset();
                     child.views.clear();
                     child.mutex.unlock();
                   });
    return made;
  }();
  return *r;
}

}  // namespace

Expected<uint64_t> StagingPool::configured_bytes() {
  RONDO_TRY_ASSIGN(const SettingFields settings, read_process_settings());
  return round_up(settings.pool_bytes, kBlockBytes);
}

Expected<std::shared_ptr<StagingPool>> StagingPool::acquire() {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  if (auto pool = r.pool.lock()) return pool;
  RONDO_TRY_ASSIGN(const uint64_t bytes, configured_bytes());
  std::shared_ptr<StagingPool> pool(new StagingPool(bytes));
  r.pool = pool;
  return pool;
}

StagingPool::StagingPool(uint64_t bytes) : size_bytes_(bytes), small_bytes_(small_part(bytes)), pid_(getpid()) {}

StagingPool::~StagingPool() {
  if (!is_of_this_process()) return;
  for (const Arena& a : arenas_)
    if (a.base != nullptr) munmap(a.base, size_bytes_);
  if (fd_ < 0) return;
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  if (r.fd == fd_) r.fd = -1;
  close(fd_);
}

bool StagingPool::is_of_this_process() const { return pid_ == getpid(); }

Expected<std::byte*> StagingPool::base(Backing backing) {
  const std::lock_guard lock(mutex_);
  Arena& a = arena(backing);
  if (a.base == nullptr) RONDO_TRY(map(backing, &a));
  return a.base;
}

// Free private memory is inaccessible: it has no commit charge, and late accesses are found.
Status StagingPool::map(Backing backing, Arena* a) {
  void* p = MAP_FAILED;
  if (backing == Backing::kShared) {
    const NoSizeSignal no_signal;  // the file size limit also applies to memory with a descriptor
    const int fd = memfd_create("rondo-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct stat made {};
    if (fd >= 0 && ftruncate(fd, static_cast<off_t>(size_bytes_)) == 0 && fstat(fd, &made) == 0)
      p = mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED) {
      const Status s = system_error("creation", size_bytes_);
      if (fd >= 0) close(fd);
      return s;
    }
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);  // a peer must not shrink it
    madvise(static_cast<std::byte*>(p) + small_bytes_, size_bytes_ - small_bytes_, MADV_HUGEPAGE);
    madvise(p, size_bytes_, MADV_DONTFORK);  // a forked child must neither hold nor access the pool
    device_ = made.st_dev;
    inode_ = made.st_ino;
    Registry& r = registry();
    const std::lock_guard lock(r.mutex);
    fd_ = r.fd = fd;
  } else {
    p = mmap(nullptr, size_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return system_error("mapping", size_bytes_);
  }
  a->base = static_cast<std::byte*>(p);
  a->small.give(0, small_bytes_);
  a->data.give(small_bytes_, size_bytes_ - small_bytes_);
  return {};
}

// The address of the shared backing, if the file is its memfd.
std::byte* StagingPool::base_if_file(dev_t device, ino_t inode) {
  const std::lock_guard lock(mutex_);
  return device == device_ && inode == inode_ ? arena(Backing::kShared).base : nullptr;
}

Status StagingPool::exhausted(uint64_t bytes, Use use) const {
  const bool part = use == Use::kSmall && used_bytes_ + bytes <= size_bytes_;
  return Status(
      StatusCode::kExhausted,
      fmt::format("the staging pool of this process (pid {}) has no room for {} more{}: {} of its {} are in use, "
                  "and {} of these wait for ranks that have not destroyed their communicators; raise "
                  "RONDO_POOL_BYTES, or destroy unused communicators",
                  pid_, text(bytes), part ? fmt::format(" in its {} for headers and lines", text(small_bytes_)) : "",
                  text(used_bytes_), text(size_bytes_), text(buried_bytes_)));
}

Expected<StagingPool::Range> StagingPool::take(Backing backing, uint64_t bytes, Use use) {
  const bool data = use == Use::kData;
  bytes = round_up(bytes, data ? kBlockBytes : kPageBytes);
  RONDO_TRY(base(backing).status());
  const std::lock_guard lock(mutex_);
  Arena& a = arena(backing);
  RangeList& list = data ? a.data : a.small;
  auto find = [&]() -> std::optional<uint64_t> {
    sweep_locked();
    if (used_bytes_ + bytes > size_bytes_) return std::nullopt;  // both backings together stay within the size
    return list.take(bytes, data ? kBlockBytes : kPageBytes);
  };
  auto at = find();
  if (!at) {
    for (Grave& g : graves_) g.next_look_ns = 0;
    at = find();
  }
  if (!at) return exhausted(bytes, use);
  if (backing == Backing::kPrivate) {
    if (mprotect(a.base + *at, bytes, PROT_READ | PROT_WRITE) != 0) {
      list.give(*at, bytes);
      return system_error("opening a part", bytes);
    }
    if (data) madvise(a.base + *at, bytes, MADV_HUGEPAGE);
  }
  used_bytes_ += bytes;
  return Range{backing, *at, bytes};
}

void StagingPool::give_back(std::span<const Range> ranges) {
  const std::lock_guard lock(mutex_);
  give_back_locked(ranges);
}

void StagingPool::give_back_locked(std::span<const Range> ranges) {
  for (const Range& r : ranges) {
    Arena& a = arena(r.backing);
    std::byte* p = a.base + r.offset;
    if (r.backing == Backing::kShared) {
      if (fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(r.offset),
                    static_cast<off_t>(r.bytes)) != 0)
        std::memset(p, 0, r.bytes);
    } else if (mmap(p, r.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
               MAP_FAILED) {
      madvise(p, r.bytes, MADV_DONTNEED);  // no room for one more mapping
    }
    (r.offset < small_bytes_ ? a.small : a.data).give(r.offset, r.bytes);
    used_bytes_ -= r.bytes;
  }
}

void StagingPool::bury(Grave grave) {
  const std::lock_guard lock(mutex_);
  for (const Range& r : grave.ranges) buried_bytes_ += r.bytes;
  graves_.push_back(std::move(grave));
  sweep_locked();
}

void StagingPool::sweep_locked() {
  const uint64_t now = graves_.empty() ? 0 : monotonic_ns();
  std::erase_if(graves_, [&](Grave& g) {
    const bool look = now >= g.next_look_ns;
    for (size_t r = 0; r < g.ranks.size(); ++r) {
      const uint8_t& mark = g.marks[r];
      if (std::atomic_ref<uint8_t>(const_cast<uint8_t&>(mark)).load(std::memory_order_acquire) != 0) continue;
      if (look && g.ranks[r].ended()) continue;
      if (look) g.next_look_ns = now + kLookAgainNs;
      return false;
    }
    for (const Range& r : g.ranges) buried_bytes_ -= r.bytes;
    give_back_locked(g.ranges);
    return true;
  });
}

StagingPool::Usage StagingPool::usage() {
  const std::lock_guard lock(mutex_);
  sweep_locked();
  return {size_bytes_, used_bytes_, buried_bytes_};
}

Expected<std::shared_ptr<PoolView>> PoolView::of(int fd, const ProcessName& owner) {
  struct stat file {};
  if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || file.st_size < static_cast<off_t>(StagingPool::kLeastBytes))
    return Status(StatusCode::kMismatch,
                  "a peer sent a file that is not a staging pool: it runs another version of rondo");
  std::shared_ptr<PoolView> view(new PoolView);
  view->bytes_ = static_cast<uint64_t>(file.st_size);
  view->pid_ = getpid();
  Registry& r = registry();
  auto own = [&] {
    const std::lock_guard lock(r.mutex);
    return r.pool.lock();
  }();
  if (std::byte* base = own && owner.pid == getpid() ? own->base_if_file(file.st_dev, file.st_ino) : nullptr) {
    view->base_ = base;
    view->own_ = std::move(own);
    return view;
  }
  const std::lock_guard lock(r.mutex);
  std::erase_if(r.views, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<PoolView>& known = r.views[{file.st_dev, file.st_ino, owner.pid, owner.start_ticks}];
  if (auto mapped = known.lock()) return mapped;
  void* p = mmap(nullptr, view->bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (p == MAP_FAILED) return system_error("mapping a peer's part", view->bytes_);
  view->base_ = static_cast<std::byte*>(p);
  const uint64_t small = small_part(view->bytes_);
  madvise(view->base_ + small, view->bytes_ - small, MADV_HUGEPAGE);
  madvise(p, view->bytes_, MADV_DONTFORK);
  madvise(p, view->bytes_, MADV_DONTDUMP);  // its owner dumps it
  known = view;
  return view;
}

PoolView::~PoolView() {
  if (base_ != nullptr && own_ == nullptr && pid_ == getpid()) munmap(base_, bytes_);
}

}  // namespace rondo
