// The status page of a rank's messages to and from single ranks (send, recv). It is separate from StatusPage,
// because these calls are not in the order that all ranks share. A message is identified by its pair of ranks, its
// direction and its number in that direction, which both ends count.
//
// Thread safety: one writer; any number of readers, which get a whole record or none (sequence check).
#pragma once

#include "trace/operation_record.h"

namespace rondo {

struct alignas(64) PairRecord {
  uint64_t number;  // of this call among those with the same peer and direction, 1-based; 0: never used
  uint64_t shape;
  uint64_t count_elems;
  uint64_t tag;
  uint64_t started_ticks;
  uint64_t pad[3];
};
static_assert(sizeof(PairRecord) == 64);

struct PairPage {
  static constexpr uint32_t kRecords = 64;
  alignas(64) uint64_t posted;  // number of posted calls
  PairRecord records[kRecords];

  void post(uint64_t number, const OperationShape& shape, uint64_t tag) {
    PairRecord& r = records[posted % kRecords];
    auto put = [](uint64_t& w, uint64_t v, std::memory_order order) { std::atomic_ref(w).store(v, order); };
    put(r.number, 0, std::memory_order_relaxed);
    put(r.shape, shape.packed(), std::memory_order_release);
    put(r.count_elems, shape.count_elems, std::memory_order_release);
    put(r.tag, tag, std::memory_order_relaxed);
    put(r.started_ticks, ticks(), std::memory_order_relaxed);
    put(r.number, number, std::memory_order_release);
    put(posted, posted + 1, std::memory_order_release);
  }
  /// The owner's `number`-th send to, or receive from, `peer`; nothing if it was not posted or was overwritten.
  std::optional<OperationShape> find(Collective direction, Rank peer, uint64_t number) {
    for (PairRecord& r : records) {
      if (std::atomic_ref(r.number).load(std::memory_order_acquire) != number) continue;
      const uint64_t shape = std::atomic_ref(r.shape).load(std::memory_order_acquire);
      const uint64_t count = std::atomic_ref(r.count_elems).load(std::memory_order_acquire);
      const OperationShape s = OperationShape::unpack(shape, count);
      if (s.collective == direction && s.root == peer &&
          std::atomic_ref(r.number).load(std::memory_order_relaxed) == number)
        return s;
    }
    return std::nullopt;
  }
};

}  // namespace rondo
