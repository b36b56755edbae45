// Engine: drives batches of operations until they are done.
//
// run(batch) steps any number of operations over any communicators and ranks of this process, interleaved, until all
// are done. One blocking call is a batch of one. run_cooperative() steps all lanes of all ranks in one thread in a
// seeded order, without waiting: a deterministic replay.
// Thread safety: any thread may run a batch. Batches that share a communicator take turns through its driver role.
#pragma once

#include <span>

#include "engine/queue.h"

namespace rondo {

struct BatchEntry {
  OperationQueue* queue;
  Operation* op;  // admitted
};

class Engine {
 public:
  /// Runs one operation on a queue whose driver role the caller holds: the path of a blocking call.
  static Status run(OperationQueue& queue, Operation& op);
  /// Drives the queues of `batch` until all its operations are done. Returns the first error in batch order, or ok.
  static Status run(std::span<const BatchEntry> batch);
  /// Steps randomly chosen lanes (seeded) until all are done. kTimeout if no lane can move: a deadlock.
  static Status run_cooperative(std::span<const BatchEntry> batch, uint64_t seed);
};

}  // namespace rondo
