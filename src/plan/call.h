// Call: one call of one rank. The public functions (C, C++, NCCL) fill it in place. It is checked once, and the backend
// runs it. CallShape is the part that a plan depends on. A shape is equal on all ranks, except for values that a pair
// of ranks checks (the counts of all_to_all_v, the peer of send and recv).
//
// Thread safety: values. Any thread may read `submitted` and `done` of a WorkState, and `status` when it is done.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "algorithms/registry.h"
#include "rondo/status.h"
#include "schedule/extent.h"

namespace rondo {

class Backend;
class Callbacks;

/// A call with a count for each rank. A side (in or out) with one part for each rank has nranks entries. Any other side
/// has one entry.
struct VariableCounts {
  PartExtents in, out;
  bool packed = true;        // no offsets were given: every rank can compute all offsets
  bool pairwise = false;     // all_to_all_v: a rank has only the counts of its own parts
  uint64_t agreed_hash = 0;  // of the values that all ranks must agree on
  friend bool operator==(const VariableCounts&, const VariableCounts&) = default;
};

/// The key of a plan in the plan cache.
struct CallShape {
  Collective collective = Collective::kAllReduce;
  uint64_t count_elems = 0;       // variable counts: their sum if all ranks know it, else 0
  Rank root = 0;                  // send, recv: the peer
  Dtype dtype = Dtype::kFloat32;  // of the input
  Op op = Op::kSum;
  uint8_t row = 0;  // row_index()
  bool matched = false;  // send, recv: matches by its tag. A recv's root may then be -1: from any rank
  // For a call on devices: limits of the thread blocks of its launch, within the communicator's limits; 0: those
  // limits.
  uint16_t min_blocks = 0, max_blocks = 0;
  uint32_t promises = 0;
  const Algorithm* algorithm = nullptr;                    // nullptr: free choice
  std::shared_ptr<const VariableCounts> counts = nullptr;  // nullptr: the same count everywhere

  TypeRow types() const { return row_at(row, dtype); }
  friend bool operator==(const CallShape& a, const CallShape& b) {
    return a.collective == b.collective && a.dtype == b.dtype && a.op == b.op && a.row == b.row &&
           a.matched == b.matched && a.root == b.root && a.count_elems == b.count_elems && a.algorithm == b.algorithm &&
           a.promises == b.promises && a.min_blocks == b.min_blocks && a.max_blocks == b.max_blocks &&
           (a.counts == b.counts || (a.counts != nullptr && b.counts != nullptr && *a.counts == *b.counts));
  }
};

/// The state of an asynchronous call. The caller's Work and the backend share it until the call is done.
struct WorkState {
  explicit WorkState(Backend* b = nullptr) : backend(b) {}
  ~WorkState();
  WorkState(const WorkState&) = delete;
  WorkState& operator=(const WorkState&) = delete;
  /// The first call counts.
  void end(Status s);
  /// Posts fn(status) to the callbacks when the call is done. Errors: those of Callbacks::start.
  Status when_done(std::function<void(const Status&)> fn);

  Backend* backend;                                // nullptr: no Work refers to this call
  std::shared_ptr<Callbacks> callbacks = nullptr;  // set if a Work refers to it
  std::atomic<bool> submitted{false};              // false while it waits in an open group
  std::atomic<bool> done{false};
  Status status;  // valid when done

 private:
  struct OnDone {
    std::function<void(const Status&)> fn;
    OnDone* earlier;  // set before it
  };
  static OnDone ended_;  // marks the end of a call; it has no function
  static void post(OnDone* next, const Status& status, Callbacks& to);
  std::atomic<bool> ending_{false};
  std::atomic<OnDone*> on_done_{nullptr};  // the newest
};

struct Call {
  CallShape shape;
  const void* in = nullptr;
  void* out = nullptr;
  void* stream = nullptr;                // of device memory: orders the call
  uint64_t in_bytes = 0, out_bytes = 0;  // of the buffers that this rank holds; 0: it has none
  uint64_t deadline_ns = 0;
  uint64_t tag = 0;
  Rank* source = nullptr;               // recv of a matched message: gets the sender's rank; nullptr: nothing
  void* launch_event = nullptr;         // of device memory: recorded when the call's kernel has begun
  const void* premul_at = nullptr;      // in device memory, read when the call runs; nullptr: `premul`
  alignas(8) std::byte premul[8] = {};  // a copy, because the caller's scale may be gone when a group runs
  Backend* backend = nullptr;
  std::shared_ptr<WorkState> work = nullptr;  // nullptr: a blocking call
};

}  // namespace rondo
