// StagingPool: the staging memory of a process. All communicators of the process share it. RONDO_POOL_BYTES limits the
// bytes that they use together. The pool reserves address space; a page takes memory only after data were written to
// it.
//
//   offset 0        small_bytes                                        size
//   | headers, directories, lines | data rings, in blocks of 2 MiB that can be huge pages |
//
// Ranks that are threads, and connections over a network, take ranges of this private memory. When a range is given
// back, its pages return to the system, so the next owner finds zeros. Ranks that are processes use memory of their
// communicator (transport/shm). The pool only counts these bytes.
//
// The pool exists while a communicator holds it. A forked child makes a pool of its own. Thread safety: any thread may
// call all functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/forks.h"
#include "base/process_name.h"
#include "base/round_up.h"
#include "rondo/status.h"

namespace rondo {

/// The free ranges of an address space. First fit; adjacent ranges are joined when one is freed. O(free ranges).
class RangeList {
 public:
  /// The range must not overlap a free one.
  void give(uint64_t offset, uint64_t bytes) {
    auto after = free_.lower_bound(offset);
    if (after != free_.end() && offset + bytes == after->first) {
      bytes += after->second;
      after = free_.erase(after);
    }
    if (after != free_.begin())
      if (auto before = std::prev(after); before->first + before->second == offset) {
        before->second += bytes;
        return;
      }
    free_.emplace_hint(after, offset, bytes);
  }

  /// The lowest free range of `bytes` at a multiple of `align`, a power of two.
  std::optional<uint64_t> take(uint64_t bytes, uint64_t align) {
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const auto [begin, length] = *it;
      const uint64_t at = (begin + align - 1) & ~(align - 1);
      if (at - begin > length || length - (at - begin) < bytes) continue;
      free_.erase(it);
      if (at != begin) free_.emplace(begin, at - begin);
      if (const uint64_t end = at + bytes; end != begin + length) free_.emplace(end, begin + length - end);
      return at;
    }
    return std::nullopt;
  }

 private:
  std::map<uint64_t, uint64_t> free_;  // offset, bytes
};

class StagingPool {
 public:
  static constexpr uint64_t kBlockBytes = uint64_t{2} << 20;  // of data: a huge page
  enum class Use : uint8_t { kSmall, kData };
  struct Range {
    uint64_t offset = 0, bytes = 0;
  };
  struct Usage {
    uint64_t size_bytes, used_bytes;
  };
  /// Objects that other processes may still access after this rank has departed. They are freed when all ranks have
  /// departed.
  struct DeferredFree {
    const uint8_t* marks = nullptr;           // by rank, in one of the objects: 1 after the rank has departed
    std::vector<ProcessName> ranks;           // by rank: a process that is killed sets no mark
    std::vector<std::shared_ptr<void>> kept;  // the objects
    uint64_t next_look_ns = 0;                // when to check again for ended processes
  };

  /// Returns RONDO_POOL_BYTES, or its default. A suffix K, M, G or T multiplies by a power of 1024. Error:
  /// kInvalidArgument.
  static Expected<uint64_t> configured_bytes();
  /// Returns the process's pool. Makes it if there is none. Errors: those of configured_bytes.
  static Expected<std::shared_ptr<StagingPool>> acquire();
  ~StagingPool();

  /// Returns the address of the pool's memory, and maps it at the first call. Error: kSystem with the errno's text.
  Expected<std::byte*> base();
  /// Returns false in a forked child.
  bool is_of_this_process() const { return static_cast<bool>(made_here_); }

  /// Takes a range of at least `bytes` zeros, aligned to a page (kSmall) or to a block (kData). Errors: kExhausted,
  /// which names the setting and the bytes in use; kSystem.
  Expected<Range> take(uint64_t bytes, Use use);
  /// Frees ranges. No rank may access them any more.
  void give_back(std::span<const Range> ranges);
  /// Counts memory outside the pool as used. Error: kExhausted, as take().
  Status charge(uint64_t bytes);
  void discharge(uint64_t bytes);
  /// Frees the objects when all ranks have departed. Checks this now, and in each later take(), charge() and
  /// free_later().
  void free_later(DeferredFree what);
  Usage usage();

 private:
  explicit StagingPool(uint64_t bytes);
  Status map_locked();
  Status exhausted(uint64_t bytes, Use use) const;
  void sweep_locked();

  const uint64_t size_bytes_, small_bytes_;
  const MadeHere made_here_;
  std::mutex mutex_;  // guards the following
  std::byte* base_ = nullptr;
  RangeList small_, data_;
  std::vector<DeferredFree> deferred_;
  uint64_t used_bytes_ = 0;
};

/// Cuts pieces for lines, counters and rings from ranges, and takes a new range when the rest of the last one is too
/// short. Thread safety: none.
class RangeCutter {
 public:
  /// Returns the offset of a piece. take(uint64_t bytes) returns an Expected<StagingPool::Range>.
  template <class Take>
  Expected<uint64_t> cut(StagingPool::Use use, uint64_t bytes, const Take& take) {
    constexpr uint64_t kSmallRangeBytes = 32 * 1024;  // counters and lines of 7 connections
    const bool data = use == StagingPool::Use::kData;
    StagingPool::Range& rest = data ? data_ : small_;
    bytes = round_up(bytes, 64);
    if (rest.bytes < bytes) {
      RONDO_TRY_ASSIGN(rest, take(data ? bytes : std::max(bytes, kSmallRangeBytes)));
    }
    rest.bytes -= bytes;
    return std::exchange(rest.offset, rest.offset + bytes);
  }

 private:
  StagingPool::Range small_, data_;
};

}  // namespace rondo
