#include "transport/pool.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
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
  return make_error(code_of(error), "{} of the staging pool of {} failed: {}; RONDO_POOL_BYTES sets its size", what,
                    text(bytes), errno_reason(error));
}

// The process's current pool, which its communicators own.
struct Registry {
  std::mutex mutex;
  std::weak_ptr<StagingPool> pool;
};

}  // namespace

Expected<uint64_t> StagingPool::configured_bytes() {
  RONDO_TRY_ASSIGN(const SettingFields settings, read_process_settings());
  return round_up(settings.pool_bytes, kBlockBytes);
}

Expected<std::shared_ptr<StagingPool>> StagingPool::acquire() {
  auto& r = of_this_process<Registry>();
  const std::lock_guard lock(r.mutex);
  if (auto pool = r.pool.lock()) return pool;
  RONDO_TRY_ASSIGN(const uint64_t bytes, configured_bytes());
  std::shared_ptr<StagingPool> pool(new StagingPool(bytes));
  r.pool = pool;
  return pool;
}

StagingPool::StagingPool(uint64_t bytes) : size_bytes_(bytes), small_bytes_(small_part(bytes)) {}

StagingPool::~StagingPool() {
  if (base_ != nullptr && is_of_this_process()) munmap(base_, size_bytes_);
}

Expected<std::byte*> StagingPool::base() {
  const std::lock_guard lock(mutex_);
  if (base_ == nullptr) RONDO_TRY(map_locked());
  return base_;
}

// Free memory is inaccessible: it has no commit charge, and late accesses are found.
Status StagingPool::map_locked() {
  void* p = mmap(nullptr, size_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return system_error("mapping", size_bytes_);
  base_ = static_cast<std::byte*>(p);
  small_.give(0, small_bytes_);
  data_.give(small_bytes_, size_bytes_ - small_bytes_);
  return {};
}

Status StagingPool::exhausted(uint64_t bytes, Use use) const {
  const bool part = use == Use::kSmall && used_bytes_ + bytes <= size_bytes_;
  return make_error(
      StatusCode::kExhausted,
      "the staging pool of this process (pid {}) has no room for {} more{}: {} of its {} are in use; raise "
      "RONDO_POOL_BYTES, or destroy unused communicators",
      getpid(), text(bytes), part ? fmt::format(" in its {} for headers and lines", text(small_bytes_)) : "",
      text(used_bytes_), text(size_bytes_));
}

Expected<StagingPool::Range> StagingPool::take(uint64_t bytes, Use use) {
  const bool data = use == Use::kData;
  const uint64_t unit = data ? kBlockBytes : kPageBytes;
  bytes = round_up(bytes, unit);
  const std::lock_guard lock(mutex_);
  if (base_ == nullptr) RONDO_TRY(map_locked());
  sweep_locked();
  RangeList& list = data ? data_ : small_;
  const auto at = used_bytes_ + bytes <= size_bytes_ ? list.take(bytes, unit) : std::nullopt;
  if (!at) return exhausted(bytes, use);
  if (mprotect(base_ + *at, bytes, PROT_READ | PROT_WRITE) != 0) {
    list.give(*at, bytes);
    return system_error("opening a part", bytes);
  }
  if (data) madvise(base_ + *at, bytes, MADV_HUGEPAGE);
  used_bytes_ += bytes;
  return Range{*at, bytes};
}

void StagingPool::give_back(std::span<const Range> ranges) {
  const std::lock_guard lock(mutex_);
  for (const Range& r : ranges) {
    std::byte* p = base_ + r.offset;
    if (mmap(p, r.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
      madvise(p, r.bytes, MADV_DONTNEED);  // no room for one more mapping
    (r.offset < small_bytes_ ? small_ : data_).give(r.offset, r.bytes);
    used_bytes_ -= r.bytes;
  }
}

Status StagingPool::charge(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  sweep_locked();
  if (used_bytes_ + bytes > size_bytes_) return exhausted(bytes, Use::kData);
  used_bytes_ += bytes;
  return {};
}

void StagingPool::discharge(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  used_bytes_ -= bytes;
}

void StagingPool::free_later(DeferredFree what) {
  const std::lock_guard lock(mutex_);
  deferred_.push_back(std::move(what));
  sweep_locked();
}

void StagingPool::sweep_locked() {
  const uint64_t now = deferred_.empty() ? 0 : monotonic_ns();
  std::erase_if(deferred_, [&](DeferredFree& d) {
    const bool look = now >= d.next_look_ns;
    if (look) d.next_look_ns = now + kLookAgainNs;
    for (size_t r = 0; r < d.ranks.size(); ++r) {
      auto& mark = const_cast<uint8_t&>(d.marks[r]);
      if (std::atomic_ref<uint8_t>(mark).load(std::memory_order_acquire) == 0 && !(look && d.ranks[r].ended()))
        return false;
    }
    return true;
  });
}

StagingPool::Usage StagingPool::usage() {
  const std::lock_guard lock(mutex_);
  return {size_bytes_, used_bytes_};
}

}  // namespace rondo
