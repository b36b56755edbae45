// StagingPool: the staging memory of this process, shared by all its communicators. Its size (RONDO_POOL_BYTES) limits
// their sum. It is address space: pages exist only where data were written.
//
//   offset 0        small_bytes                                        size
//   | headers, directories, lines | data rings, in blocks of 2 MiB that can be huge pages |
//
// Ranks that are threads and network connections take ranges of this private memory. A freed range is zeroed by
// returning its pages to the system. Ranks that are processes use memory of their communicator (transport/shm); the
// pool only counts the bytes that they take.
//
// The pool exists while a communicator holds it. A forked child does not share it and makes its own. Thread safety: all
// members from any thread.
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
  static constexpr uint64_t kBlockBytes = uint64_t{2} << 20;  // of data: a huge page
  enum class Use : uint8_t { kSmall, kData };
  struct Range {
    uint64_t offset = 0, bytes = 0;
  };
  struct Usage {
    uint64_t size_bytes, used_bytes;
  };
  /// Objects that peers in other processes may access after this rank has departed: freed when all ranks have departed.
  struct DeferredFree {
    const uint8_t* marks = nullptr;           // one per rank, in one of the objects: 1 when it has departed
    std::vector<ProcessName> ranks;           // by rank: a process that has ended leaves no mark
    std::vector<std::shared_ptr<void>> kept;  // the objects
    uint64_t next_look_ns = 0;                // next check for ended processes
  };

  /// RONDO_POOL_BYTES (a suffix K, M, G or T multiplies by powers of 1024), or its default. Error: kInvalidArgument.
  static Expected<uint64_t> configured_bytes();
  /// The process's pool, made if there is none. Errors: those of configured_bytes.
  static Expected<std::shared_ptr<StagingPool>> acquire();
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  /// Its address, mapped at the first call. Error: kSystem with the errno's text.
  Expected<std::byte*> base();
  /// False in a forked child.
  bool is_of_this_process() const;

  /// `bytes` of zeros, aligned to a page (kSmall) or a block (kData). Errors: kExhausted, which names the setting and
  /// the bytes in use; kSystem.
  Expected<Range> take(uint64_t bytes, Use use);
  /// Frees ranges that no rank accesses any more.
  void give_back(std::span<const Range> ranges);
  /// Counts bytes of memory that is not in the pool. Error: kExhausted, as take().
  Status charge(uint64_t bytes);
  void discharge(uint64_t bytes);
  /// Frees the objects when all ranks have departed: now, or at a later take(), charge() or free_later().
  void free_later(DeferredFree what);
  Usage usage();

 private:
  explicit StagingPool(uint64_t bytes);
  Status map_locked();
  Status exhausted(uint64_t bytes, Use use) const;
  void sweep_locked();

  const uint64_t size_bytes_, small_bytes_;
  const pid_t pid_;
  std::mutex mutex_;  // guards the following
  std::byte* base_ = nullptr;
  RangeList small_, data_;
  std::vector<DeferredFree> deferred_;
  uint64_t used_bytes_ = 0;
};

}  // namespace rondo
