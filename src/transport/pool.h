// StagingPool: the staging memory of this process, shared by all its communicators. Its size (RONDO_POOL_BYTES) limits
// their sum. It is address space: pages exist only where data were written.
//
//   offset 0        small_bytes                                        size
//   | headers, directories, lines | data rings, in blocks of 2 MiB that can be huge pages |
//
// There are two backings of the same layout, each made at its first use: private anonymous memory for ranks that are
// threads of this process, and one memfd for ranks of several processes. A peer maps the memfd once (PoolView) for all
// communicators that it shares with this process.
//
// A range is freed when no rank can access it any more. In a communicator of processes every rank must have stored its
// mark in the owner's segment, as its last access, or must have died; until then the free is deferred (Grave). A freed
// range is zeroed by returning its pages to the system.
//
// The pool exists while a communicator holds it. The memfd has no name: its memory ends with the last process that maps
// it. A forked child does not share it and makes its own. Thread safety: all members from any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/process_name.h"
#include "rondo/status.h"
#include "rondo/types.h"
#include "transport/range_list.h"

namespace rondo {

class StagingPool {
 public:
  static constexpr uint64_t kLeastBytes = uint64_t{16} << 20;
  static constexpr uint64_t kBlockBytes = uint64_t{2} << 20;  // of data: a huge page
  enum class Backing : uint8_t { kPrivate, kShared };
  enum class Use : uint8_t { kSmall, kData };
  struct Range {
    Backing backing = Backing::kPrivate;
    uint64_t offset = 0, bytes = 0;
  };
  struct Usage {
    uint64_t size_bytes, used_bytes, buried_bytes;  // buried: deferred frees, included in used
  };
  /// A deferred free: the ranges of a rank that has departed from a communicator of processes.
  struct Grave {
    std::vector<Range> ranges;
    const uint8_t* marks = nullptr;           // one per rank, in one of the ranges: 1 when it has departed
    std::vector<ProcessName> ranks;           // by rank: a process that has ended leaves no mark
    uint64_t next_look_ns = 0;                // next check for ended processes
    std::vector<std::shared_ptr<void>> kept;  // released with the ranges
  };

  /// RONDO_POOL_BYTES (a suffix K, M, G or T multiplies by powers of 1024), or its default. Error: kInvalidArgument.
  static Expected<uint64_t> configured_bytes();
  /// The process's pool, made if there is none. Errors: those of configured_bytes.
  static Expected<std::shared_ptr<StagingPool>> acquire();
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  /// The address of the backing in this process, made at the first call. Error: kSystem with the errno's text.
  Expected<std::byte*> base(Backing backing);
  /// The memfd; -1 before base(kShared). Borrowed.
  int descriptor() const { return fd_; }
  /// False in a forked child, which has nothing of it mapped.
  bool is_of_this_process() const;

  /// `bytes` of zeros, aligned to a page (kSmall) or a block (kData). Errors: kExhausted, which names the setting and
  /// the bytes in use; kSystem.
  Expected<Range> take(Backing backing, uint64_t bytes, Use use);
  /// Frees ranges that no rank accesses any more.
  void give_back(std::span<const Range> ranges);
  /// Frees the ranges when all ranks have departed: now, or at a later take() or bury().
  void bury(Grave grave);
  Usage usage();

 private:
  friend class PoolView;
  struct Arena {
    std::byte* base = nullptr;
    RangeList small, data;
  };
  explicit StagingPool(uint64_t bytes);
  Status map(Backing backing, Arena* arena);
  std::byte* base_if_file(dev_t device, ino_t inode);
  Status exhausted(uint64_t bytes, Use use) const;
  void give_back_locked(std::span<const Range> ranges);
  void sweep_locked();
  Arena& arena(Backing backing) { return arenas_[static_cast<size_t>(backing)]; }

  const uint64_t size_bytes_, small_bytes_;
  const pid_t pid_;
  std::mutex mutex_;  // guards the following; locked before the registry's
  int fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  Arena arenas_[2];
  std::vector<Grave> graves_;
  uint64_t used_bytes_ = 0, buried_bytes_ = 0;
};

/// Another process's shared backing, mapped here once for all communicators that share it.
class PoolView {
 public:
  /// fd: the memfd, borrowed; owner: its process. Errors: kMismatch (not a pool), kSystem.
  static Expected<std::shared_ptr<PoolView>> of(int fd, const ProcessName& owner);
  ~PoolView();
  PoolView(const PoolView&) = delete;
  PoolView& operator=(const PoolView&) = delete;
  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }

 private:
  PoolView() = default;
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  pid_t pid_ = 0;
  std::shared_ptr<StagingPool> own_;  // set if it is this process's own pool, which is already mapped
};

}  // namespace rondo
