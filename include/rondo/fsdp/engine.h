// Runs what a Plan says: gathers a unit's parameters into its buffer, reduces its gradients to their owners, steps the
// optimizer on what this rank owns. It computes nothing of the model: that is the caller's, between wait_gather and
// release, and it knows no framework.
//
//   auto engine = Engine::create(plan, comm, {});
//   engine->init([](const Tensor& t, uint64_t first, uint64_t n, void* to) { ... });
//   for each step:
//     engine->run(plan.step(), [&](Act act, int unit) {
//       return act == Act::kForward ? forward(unit) : backward(unit);
//     });
//
// Where a framework's hooks say which unit is used next, a pass is driven by them instead: begin_pass, begin and end of
// each use, end_pass, step.
//
// Gradients are averaged over all ranks, in float, whatever they are computed in and travel as; what is trained is
// owned as float.
//
// Every buffer has an owner. Using a unit whose parameters are not there, or a buffer that another unit has, is an
// error that names both units; nothing is overwritten.
//
// Buffers lie on EngineOptions::device. On the host communication goes on by the communicator's own thread while the
// caller computes, and what waits is the host. On a CUDA device nothing here waits: calls put work into streams and
// return, wait_gather and wait_reduce order the caller's compute stream after the engine's. What the caller computes
// belongs into that stream. The host meets the device where a number has to be known (grad_norm, clipping), where it
// reads or fills what is owned, and with Options::offload in wait_reduce.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "rondo/communicator.h"
#include "rondo/fsdp/device.h"
#include "rondo/fsdp/optimizer.h"
#include "rondo/fsdp/plan.h"

namespace rondo::fsdp {

struct EngineOptions {
  OptimizerConfig optimizer = {};
  /// Gradients are added in the order of ranks, so that any number of ranks, and one process that adds what they would
  /// have contributed, get the same bits.
  bool deterministic = false;
  /// run() scales the gradients of a step so that their norm is at most this; 0: it does not.
  double clip_norm = 0;
  /// Where its buffers lie; nullptr: the host. That of comm's buffers.
  std::shared_ptr<Device> device = {};
};

/// What a rank has done since its step began, or in its last one, in the order of issue; as Plan::communications() says
/// it should be.
using Log = std::vector<Communication>;

/// A stretch of a tensor that this rank owns: elements first .. first + num_elems - 1.
struct Part {
  int unit;
  size_t tensor;  // of the unit; of tied ones the first
  uint64_t first, num_elems;
  Dtype dtype;
  void* master;                     // what the optimizer changes; it and what follows lie on Engine::keeper()
  float* grad = nullptr;            // reduced, between a pass and the end of its step; nullptr: frozen
  std::vector<float*> states = {};  // the optimizer's, as optimizer_state_name counts them
};

/// Since the engine was made, or reset_stats. What is waited for is exposed: it was not hidden behind computing. Times
/// are those of the host, which does not wait for a device.
struct Stats {
  uint64_t gathers = 0, reductions = 0;  // of units
  uint64_t payload_bytes = 0;            // this rank's part of all collectives, as the log counts them
  uint64_t gather_wait_ns = 0, reduce_wait_ns = 0;
};

class RONDO_API Engine {
 public:
  /// Collective over comm's ranks, which must outlive the engine; the ranks compare their plans. Errors:
  /// kInvalidArgument (comm has another size than the plan or lies elsewhere than the device, the optimizer, offload
  /// without a device), kMismatch (another plan), kUnsupported (masters that are trained must be float), kSystem and
  /// kExhausted (memory), those of split.
  static Expected<std::unique_ptr<Engine>> create(const Plan& plan, Communicator& comm, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Fills what this rank owns: elements first .. first + n - 1 of a tensor, in its own type. Called once for each
  /// tensor of which this rank owns a part; of tied ones for the first. `to` is host memory; what lies on a device
  /// passes through a copy of that part.
  using Fill = std::function<void(const Tensor& tensor, uint64_t first, uint64_t n, void* to)>;
  Status init(const Fill& fill);
  /// Reads what this rank owns, likewise.
  using Read = std::function<void(const Tensor& tensor, uint64_t first, uint64_t n, const void* from)>;
  Status read_owned(const Read& read) const;

  /// Of a device: waits for the reductions that were issued, and says how they ended; only then is what parts() show
  /// known to be right. On the host the waits have said so.
  Status settled();

  /// All that this rank owns, in the order of units and tensors. Pointers stay valid as long as the engine. On a device
  /// they are to be used in its compute line; with offload the call waits until nothing reads them.
  std::vector<Part> parts();
  /// To be called after masters were written by way of parts(), in the compute line: gathers them where parameters are
  /// always here. Collective.
  Status masters_changed();
  /// Steps of the optimizer so far: those of a checkpoint go on from there.
  int64_t optimizer_steps() const;
  void set_optimizer_steps(int64_t steps);

  /// Parameters of a unit, whole, in the plan's param type: nullptr while they are not here.
  void* data(int unit, size_t tensor);
  /// Where its gradients are to be written, whole; nullptr outside of begin_grads .. reduce, and of frozen tensors.
  void* grad(int unit, size_t tensor);

  Status gather(int unit);
  Status wait_gather(int unit);
  Status release(int unit);
  /// Takes the unit's gradient buffer, filled with zeros, where it does not hold sums of earlier micro-batches.
  Status begin_grads(int unit);
  /// Averages them over the ranks, for their owners; added to those of earlier micro-batches.
  Status reduce(int unit);
  Status wait_reduce(int unit);
  /// The optimizer, on what this rank owns of the unit. The first call of a step advances its count.
  Status step(int unit);
  /// Ends a step: gradients are forgotten.
  Status finish_step();

  /// Runs a list of actions. compute: kForward and kBackward of a unit; an error of its ends the run, and cancel_pass
  /// has to follow.
  using Compute = std::function<Status(Act act, int unit)>;
  Status run(const std::vector<Action>& actions, const Compute& compute);

  /// A pass as it happens, in place of run(). In begin_pass .. end_pass each use of a unit stands between begin and end
  /// of kForward or kBackward. Between them data() is there, and in backward grad(), filled with zeros or with earlier
  /// micro-batches. begin does what the plan's list has before that use; end gives back, and issues what comes next.
  ///
  /// A forward that is repeated within a unit's use (recomputation) takes nothing more. A unit that is never used
  /// contributes zeros, and ranks may leave out different ones; what is used in forward and not in backward must be so
  /// on all ranks alike. So must units in another order than the plan's, or twice: they are gathered on the spot, and
  /// adopt_order makes it the order of later passes. A unit around others must be one that encloses.
  ///
  /// Errors: kInvalidArgument (begin and end do not match; a buffer is needed by two units in use: both are named; a
  /// pass of kind kTrain was not followed by step or cancel_pass).
  Status begin_pass(PassKind kind);
  Status begin(Act act, int unit);
  Status end(Act act, int unit);
  /// All but the optimizer: afterwards the gradients of parts() are there.
  Status end_pass();
  /// After a pass of kind kTrain: clips, then the optimizer on all units, or `instead`, which changes parts() itself.
  Status step(const std::function<Status()>& instead = {});
  /// Ends a pass or a run that failed: waits for what is under way, gives all back, forgets gradients, also those that
  /// wait for step. To be called on all ranks at the same point: where an error came up on one of them alone, the
  /// others are at another collective, and the communicator has to be aborted.
  Status cancel_pass();
  /// Between end_pass and step: later passes take the order in which units were begun in it, on rank 0. Collective.
  Status adopt_order();
  /// Of later passes; empty: the model's.
  const Order& order() const;

  /// The 2-norm of all gradients, after they are reduced. Collective. fp64 throughout.
  Expected<double> grad_norm();
  /// Scales gradients in the following steps of units so that their norm is at most `most`. Collective.
  Status clip_grad_norm(double most);

  const Plan& plan() const;
  Communicator& communicator() const;
  /// Where its buffers lie.
  Device& device() const;
  /// Where parts() lie: device(), or with offload its host memory.
  Device& keeper() const;
  const OptimizerConfig& optimizer() const;
  /// Of the following steps, as a schedule has it. Errors: kInvalidArgument, as check_optimizer.
  Status set_learning_rate(float lr);
  /// A unit's parameters are whole in its buffer.
  bool is_here(int unit) const;
  const Log& log() const;
  void clear_log();
  Stats stats() const;
  void reset_stats();
  /// Bytes that it has allocated: those of plan().memory(), and, once micro-batches have added up at their owners, one
  /// more set of those units' owned gradients. Norms take 256 KiB beside, which are not counted.
  uint64_t owned_bytes() const;

 private:
  class Impl;
  class Pass;
  Status in_pass() const;
  Status run_all(const std::vector<Action>& actions, const std::function<Status(Act act, int unit)>& compute);
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rondo::fsdp
