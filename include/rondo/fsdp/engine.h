// Runs a Plan: gathers a unit's parameters into its buffer, reduces its gradients to their owners, and steps the
// optimizer on the part that this rank owns. The caller computes the model, between wait_gather and release. The engine
// depends on no framework.
//
//   auto engine = Engine::create(plan, comm, {});
//   engine->init([](const Tensor& t, uint64_t first, uint64_t n, void* to) { ... });
//   for each step:
//     engine->run(plan.step(), [&](Act act, int unit) {
//       return act == Act::kForward ? forward(unit) : backward(unit);
//     });
//
// If a framework's hooks determine the order of units, call begin_pass, begin and end of each use, end_pass, step
// instead.
//
// Gradients are averaged over all ranks in float, in whatever types they are computed and sent. Trained parameters are
// owned as float.
//
// Every buffer has an owner. Using a unit whose parameters are not gathered, or a buffer of another unit, is an error
// that names both units; nothing is overwritten.
//
// Buffers are on EngineOptions::device. On the host, the communicator's own thread communicates while the caller
// computes, and waits block the host. On a CUDA device, calls put work into streams and return; wait_gather and
// wait_reduce order the caller's compute stream after the engine's. The caller must compute in that stream. The host
// waits for the device only for numbers (grad_norm, clipping), to read or fill owned data, and in wait_reduce with
// Options::offload.
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
  /// Adds gradients in rank order. Any number of ranks, or one process that adds the same contributions, gives the same
  /// bits.
  bool deterministic = false;
  /// run() scales the gradients of a step to at most this norm; 0: no scaling.
  double clip_norm = 0;
  /// The device of its buffers, equal to comm's; nullptr: the host.
  std::shared_ptr<Device> device = {};
};

/// This rank's communication since its step began, or in its last step, in issue order. It should equal
/// Plan::communications().
using Log = std::vector<Communication>;

/// A range of a tensor that this rank owns: elements first .. first + num_elems - 1.
struct Part {
  int unit;
  size_t tensor;  // of the unit; the first of tied ones
  uint64_t first, num_elems;
  Dtype dtype;
  void* master;                     // the optimizer updates it; it and the following are on Engine::owner()
  float* grad = nullptr;            // reduced, between a pass and the end of its step; nullptr: frozen
  std::vector<float*> states = {};  // the optimizer's, numbered as in optimizer_state_name
};

/// Since the engine was made, or reset_stats. Wait times are exposed: computing did not hide them. Times are the
/// host's, which does not wait for a device.
struct Stats {
  uint64_t gathers = 0, reductions = 0;  // of units
  uint64_t payload_bytes = 0;            // this rank's part of all collectives, as in the log
  uint64_t gather_wait_ns = 0, reduce_wait_ns = 0;
};

class RONDO_API Engine {
 public:
  /// Collective over comm's ranks; comm must outlive the engine. The ranks compare their plans. Errors:
  /// kInvalidArgument (comm's size differs from the plan's or its memory from the device's, the optimizer, offload
  /// without a device), kMismatch (another plan), kUnsupported (trained masters must be float), kSystem and kExhausted
  /// (memory), those of split.
  static Expected<std::unique_ptr<Engine>> create(const Plan& plan, Communicator& comm, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Fills owned parameters: elements first .. first + n - 1 of a tensor, in its own type. Called once per tensor that
  /// this rank owns a part of; of tied ones for the first. `to` is host memory; parts on a device go through a copy.
  using Fill = std::function<void(const Tensor& tensor, uint64_t first, uint64_t n, void* to)>;
  Status init(const Fill& fill);
  /// Reads the owned parameters in the same way.
  using Read = std::function<void(const Tensor& tensor, uint64_t first, uint64_t n, const void* from)>;
  Status read_owned(const Read& read) const;

  /// On a device: waits for the issued reductions and returns their status. Only then is the content of parts() valid.
  /// On the host wait_reduce has already reported it.
  Status settled();

  /// All parts that this rank owns, in the order of units and tensors. Pointers stay valid as long as the engine. On a
  /// device use them in its compute line only. With offload the call waits until nothing reads them.
  std::vector<Part> parts();
  /// Call it after writing masters through parts(), in the compute line. It gathers them if parameters are resident.
  /// Collective.
  Status masters_changed();
  /// Optimizer steps so far. A loaded checkpoint continues its count.
  int64_t optimizer_steps() const;
  void set_optimizer_steps(int64_t steps);

  /// A unit's whole parameters in the plan's param type; nullptr while they are not gathered.
  void* data(int unit, size_t tensor);
  /// Buffer for its whole gradients; nullptr outside of begin_grads .. reduce, and for frozen tensors.
  void* grad(int unit, size_t tensor);

  Status gather(int unit);
  Status wait_gather(int unit);
  Status release(int unit);
  /// Takes the unit's gradient buffer. Fills it with zeros unless it holds sums of earlier micro-batches.
  Status begin_grads(int unit);
  /// Averages the gradients over the ranks, to their owners, and adds them to those of earlier micro-batches.
  Status reduce(int unit);
  Status wait_reduce(int unit);
  /// Runs the optimizer on this rank's part of the unit. The first call in a step advances its step count.
  Status step(int unit);
  /// Ends a step and discards gradients.
  Status finish_step();

  /// Runs a list of actions. compute is called for kForward and kBackward of a unit. Its error ends the run;
  /// cancel_pass must follow.
  using Compute = std::function<Status(Act act, int unit)>;
  Status run(const std::vector<Action>& actions, const Compute& compute);

  /// Runs a pass in the order of the caller's hooks, in place of run(). Between begin_pass and end_pass, call begin and
  /// end (kForward or kBackward) around each use of a unit. Between them data() is valid, and in backward grad(),
  /// filled with zeros or with sums of earlier micro-batches. begin performs the plan's actions that precede the use.
  /// end returns buffers and issues the next communication.
  ///
  /// A forward repeated within a unit's use (recomputation) takes no further buffers. A unit that is never used
  /// contributes zeros; ranks may leave out different ones. All ranks must agree on units used in forward but not in
  /// backward, twice, or in another order than the plan's. The last two are gathered on demand, and adopt_order keeps a
  /// new order for later passes. A unit around others must have `encloses`.
  ///
  /// Errors: kInvalidArgument (begin and end do not match; two units in use need one buffer: both are named; a pass of
  /// kind kTrain was not followed by step or cancel_pass).
  Status begin_pass(PassKind kind);
  Status begin(Act act, int unit);
  Status end(Act act, int unit);
  /// Everything but the optimizer: afterwards the gradients of parts() are valid.
  Status end_pass();
  /// After a pass of kind kTrain: clips, then runs the optimizer on all units, or `instead`, which updates parts()
  /// itself.
  Status step(const std::function<Status()>& instead = {});
  /// Ends a failed pass or run: waits for pending communication, returns all buffers and discards gradients, including
  /// those that wait for step. Call it on all ranks at the same point. If the error occurred on one rank only, the
  /// others wait in another collective; abort the communicator.
  Status cancel_pass();
  /// Between end_pass and step: later passes use the order in which rank 0 began the units of this pass. Collective.
  Status adopt_order();
  /// The order of later passes; empty: the model's.
  const Order& order() const;

  /// The 2-norm of all gradients, after they are reduced. Collective. fp64 throughout.
  Expected<double> grad_norm();
  /// Scales gradients in the following steps of units so that their norm is at most `most`. Collective.
  Status clip_grad_norm(double most);

  const Plan& plan() const;
  Communicator& communicator() const;
  /// The device of its buffers.
  Device& device() const;
  /// The device of parts(): device(), or with offload its host memory.
  Device& owner() const;
  const OptimizerConfig& optimizer() const;
  /// For the following steps, from a learning rate schedule. Errors: kInvalidArgument, as check_optimizer.
  Status set_learning_rate(float lr);
  /// The unit's whole parameters are in its buffer.
  bool is_here(int unit) const;
  const Log& log() const;
  void clear_log();
  Stats stats() const;
  void reset_stats();
  /// Bytes allocated: plan().memory(), and, after micro-batches were added up at their owners, one more set of those
  /// units' owned gradients. Norms take 256 KiB more, not counted.
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
