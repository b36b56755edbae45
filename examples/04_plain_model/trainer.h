// Connects engine and model: runs micro-batches through Engine::run, and reports losses. A caller of rondo::fsdp writes
// this file and a model.
//
// The model computes in floats. If parameters are sent and stored as bfloat16, one unit at a time is widened to floats
// for its computation. Gradients are computed into separate floats, one unit at a time, and then added to the engine's:
// each micro-batch is one term of the sum, wherever it is computed.
//
// Thread safety: one thread at a time.
#pragma once

#include <rondo/fsdp/engine.h>

#include <cstdint>
#include <vector>

#include "text.h"
#include "transformer.h"

namespace plain {

class Trainer {
 public:
  /// All three must outlive the trainer.
  Trainer(rondo::fsdp::Engine& engine, rondo::Communicator& comm, Transformer& net);

  /// Gives this rank's part of the model its first values.
  rondo::Status init();
  /// One step on micro-batches of this rank; all but the last only add their gradients. Collective.
  rondo::Status step(const std::vector<MicroBatch>& micro_batches);

  /// Mean over all micro-batches and ranks of the last step, in nats. Collective.
  rondo::Expected<double> mean_loss();
  /// Equal for equal bits of all parameters, however they are sharded. Collective.
  rondo::Expected<uint64_t> parameter_hash();
  /// Seconds that step() has spent in the model's forward and backward.
  double compute_s() const { return compute_s_; }

 private:
  rondo::Status compute(rondo::fsdp::Act act, int unit, float scale);
  Transformer::Parameters parameters(int unit);
  Transformer::Gradients zero_gradients(int unit);
  void hand_over_gradients(int unit);

  rondo::fsdp::Engine& engine_;
  rondo::Communicator& comm_;
  Transformer& net_;
  std::vector<std::vector<float>> wide_, grads_;  // by tensor, of the current unit
  double loss_ = 0, compute_s_ = 0;
};

}  // namespace plain
