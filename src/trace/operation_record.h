// The status pages of a rank: the light, always-on record of its operations.
//
// A StatusPage is a ring of the last 64 operations of a communicator, in memory that the other ranks of the host can
// read. Only its owner writes it. In normal operation nobody reads it. Therefore posting costs a few stores into the
// owner's own cache lines. A rank that waits too long reads the others' status pages. It then names the ranks that are
// missing or made another call.
//
// Thread safety: one writer; any number of readers, which get a whole record or none (sequence check).
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "rondo/types.h"

namespace rondo {

/// The properties of an operation that all ranks must agree on.
struct OperationShape {
  Collective collective = Collective::kAllReduce;
  Dtype dtype = Dtype::kFloat32;
  Op op = Op::kSum;
  uint8_t algorithm = 0;     // the plan's choice, an index into all_algorithms(); send, recv: kMatchedByTag or 0
  uint64_t count_elems = 0;  // variable counts: their sum if all ranks know it, else 0
  uint16_t root = 0;         // of a rooted collective; send, recv: the peer, or kAnyPeer
  uint8_t row = 0;           // row_index() of the call's four types
  bool variable = false;     // a count for each rank
  friend constexpr bool operator==(const OperationShape&, const OperationShape&) = default;
  constexpr uint64_t packed() const {
    return static_cast<uint64_t>(collective) | static_cast<uint64_t>(dtype) << 8 | static_cast<uint64_t>(op) << 16 |
           static_cast<uint64_t>(algorithm) << 24 | static_cast<uint64_t>(root) << 32 |
           static_cast<uint64_t>(row) << 48 | static_cast<uint64_t>(variable) << 56;
  }
  static constexpr OperationShape unpack(uint64_t w, uint64_t count) {
    return {static_cast<Collective>(w & 255), static_cast<Dtype>(w >> 8 & 255), static_cast<Op>(w >> 16 & 255),
            static_cast<uint8_t>(w >> 24 & 255), count, static_cast<uint16_t>(w >> 32),
            static_cast<uint8_t>(w >> 48), (w >> 56 & 1) != 0};
  }
};

/// OperationShape::algorithm of a message that matches by its tag. 0: by its order.
inline constexpr uint8_t kMatchedByTag = 1;
constexpr bool is_matched(const OperationShape& s) {
  return is_point_to_point(s.collective) && s.algorithm == kMatchedByTag;
}
/// Returns true for a receive that is posted before it starts (engine/matcher.h).
constexpr bool is_posted(const OperationShape& s) { return is_matched(s) && s.collective == Collective::kRecv; }
/// OperationShape::root of a receive from any rank.
inline constexpr uint16_t kAnyPeer = UINT16_MAX;

inline uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  uint64_t t;
  asm volatile("mrs %0, cntvct_el0" : "=r"(t));
  return t;
#endif
}

/// Reads a clock of the system, in ns since its origin.
inline int64_t clock_ns(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

/// Reads a coarse clock. This takes 4 ns: the kernel updates the clock in memory a few hundred times a second. A second
/// reading of the ticks would cost as much as the rest of a record, and only the diagnosis of hangs needs finish times.
inline uint64_t coarse_ns() { return static_cast<uint64_t>(clock_ns(CLOCK_MONOTONIC_COARSE)); }

/// An unpacked copy of an OperationRecord.
struct PostedOperation {
  OperationShape shape;
  uint64_t sequence = 0, tag = 0, started_ticks = 0, finished_ns = 0;
};

/// One operation on a page. The first word is 0 while the owner changes the others.
struct alignas(64) OperationRecord {
  uint64_t sequence;  // 1-based; 0: never used
  uint64_t shape;
  uint64_t count_elems;
  uint64_t tag;
  uint64_t started_ticks;  // processor's time stamp counter
  uint64_t finished_ns;    // CLOCK_MONOTONIC_COARSE, some ms late; 0: not finished, or of a send or recv
  uint64_t pad[2];

  void store(uint64_t number, const OperationShape& operation, uint64_t its_tag) {
    auto put = [](uint64_t& w, uint64_t v, std::memory_order order) { std::atomic_ref(w).store(v, order); };
    put(sequence, 0, std::memory_order_relaxed);
    put(shape, operation.packed(), std::memory_order_release);
    put(count_elems, operation.count_elems, std::memory_order_release);
    put(tag, its_tag, std::memory_order_relaxed);
    put(started_ticks, ticks(), std::memory_order_relaxed);
    put(finished_ns, 0, std::memory_order_relaxed);
    put(sequence, number, std::memory_order_release);
  }
  /// The record of this number; nothing if it was not stored here, or was overwritten.
  std::optional<PostedOperation> load(uint64_t number) {
    auto get = [](uint64_t& w) { return std::atomic_ref(w).load(std::memory_order_acquire); };
    if (number == 0 || get(sequence) != number) return std::nullopt;
    const uint64_t packed = get(shape), count = get(count_elems);
    const PostedOperation found{OperationShape::unpack(packed, count), number, get(tag), get(started_ticks),
                                get(finished_ns)};
    if (std::atomic_ref(sequence).load(std::memory_order_relaxed) != number) return std::nullopt;
    return found;
  }
};
static_assert(sizeof(OperationRecord) == 64);

/// A rank that the owner of a status page waits for.
struct PeerWait {
  uint64_t sequence = 0;  // of the operation that waits
  int32_t peer = 0;
  bool for_room = false;  // else for data
  bool pair = false;      // the operation is a send or recv, whose sequence counts one pair's messages
  friend bool operator==(const PeerWait&, const PeerWait&) = default;
};

struct StatusPage {
  static constexpr uint32_t kRecords = 64;
  static constexpr uint32_t kWaits = 8;
  static constexpr uint64_t kForGood = UINT64_MAX;
  alignas(64) uint64_t posted;   // sequence of the last posted operation
  uint64_t finished;             // all operations up to this sequence are finished
  uint64_t owner_pid;            // the process that writes here; 0: unknown so far
  uint64_t owner_pid_namespace;  // the namespace of that pid
  uint64_t communicator;         // only on rank 0's status page: the communicator's number, not 0, equal for all ranks
  // The ranks that the owner waits for; updated only in long waits, about every millisecond.
  alignas(64) uint64_t waits[kWaits];  // packed, 0: none
  uint64_t waits_noted_ns;             // CLOCK_MONOTONIC; kForGood: it failed during this wait
  OperationRecord records[kRecords];

  /// Stores the first kWaits entries of `all`.
  void note_waits(std::span<const PeerWait> all, uint64_t now_ns) {
    for (size_t i = 0; i < kWaits; ++i) {
      const uint64_t w = i >= all.size() ? 0
                                         : all[i].sequence << 24 | static_cast<uint64_t>(all[i].pair) << 23 |
                                               static_cast<uint64_t>(all[i].for_room) << 22 |
                                               static_cast<uint64_t>(all[i].peer + 1);
      std::atomic_ref(waits[i]).store(w, std::memory_order_relaxed);
    }
    std::atomic_ref(waits_noted_ns).store(now_ns, std::memory_order_release);
  }
  /// Returns the waits that were stored since `since_ns` or with kForGood.
  std::vector<PeerWait> waits_since(uint64_t since_ns) {
    std::vector<PeerWait> found;
    if (std::atomic_ref(waits_noted_ns).load(std::memory_order_acquire) < since_ns) return found;
    for (uint64_t& word : waits)
      if (const uint64_t w = std::atomic_ref(word).load(std::memory_order_relaxed); w != 0)
        found.push_back({w >> 24, static_cast<int32_t>(w & 0x3fffff) - 1, (w >> 22 & 1) != 0, (w >> 23 & 1) != 0});
    return found;
  }

  void post(uint64_t sequence, const OperationShape& shape, uint64_t tag) {
    records[sequence % kRecords].store(sequence, shape, tag);
    std::atomic_ref(posted).store(sequence, std::memory_order_release);
  }
  void finish(uint64_t sequence) { finish(sequence, sequence); }
  /// all_finished: all operations up to this one are finished; may be less than `sequence`.
  void finish(uint64_t sequence, uint64_t all_finished) {
    OperationRecord& r = records[sequence % kRecords];
    if (std::atomic_ref(r.sequence).load(std::memory_order_relaxed) == sequence)
      std::atomic_ref(r.finished_ns).store(coarse_ns(), std::memory_order_relaxed);
    std::atomic_ref(finished).store(all_finished, std::memory_order_relaxed);
  }

  uint64_t last_posted() { return std::atomic_ref(posted).load(std::memory_order_acquire); }
  uint64_t last_finished() { return std::atomic_ref(finished).load(std::memory_order_relaxed); }
  /// Returns the shape posted as `sequence`; nothing if it was not posted or was overwritten.
  std::optional<OperationShape> find(uint64_t sequence) {
    const std::optional<PostedOperation> found = read(sequence);
    return found ? std::optional(found->shape) : std::nullopt;
  }
  /// Returns the whole record of `sequence`; nothing if it was not posted or was overwritten.
  std::optional<PostedOperation> read(uint64_t sequence) { return records[sequence % kRecords].load(sequence); }
};

/// The status page of a rank's messages to and from single ranks (send, recv). It is separate from StatusPage, because
/// these calls are not in the order that all ranks share. A message is identified by its pair of ranks, its direction
/// and its number in that direction, which both ends count.
struct PairPage {
  static constexpr uint32_t kRecords = 64;
  alignas(64) uint64_t posted;        // number of posted calls
  OperationRecord records[kRecords];  // their sequences are those numbers, from 1

  void post(uint64_t number, const OperationShape& shape, uint64_t tag) {
    records[posted % kRecords].store(number, shape, tag);
    std::atomic_ref(posted).store(posted + 1, std::memory_order_release);
  }
  /// The owner's `number`-th send to, or receive from, `peer`; nothing if it was not posted or was overwritten.
  std::optional<OperationShape> find(Collective direction, Rank peer, uint64_t number) {
    for (OperationRecord& r : records)
      if (const auto found = r.load(number); found && found->shape.collective == direction && found->shape.root == peer)
        return found->shape;
    return std::nullopt;
  }
};

}  // namespace rondo
