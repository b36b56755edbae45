// rondo::torch: fully sharded training of libtorch models, without a change to libtorch and without Python.
//
//   RONDO_TORCH_MODULE(Block);                       // instead of TORCH_MODULE(Block)
//
//   rondo::torch::Options options;
//   options.policy = rondo::torch::wrap_types<BlockImpl>();
//   auto sharded = rondo::torch::fully_shard(model, *comm, options);
//   for (...) {
//     auto loss = sharded(inputs, targets);          // model->forward
//     loss.backward();
//     sharded.step();
//   }
//
// libtorch has no hooks on modules. Therefore a unit must be called through one of these: a holder of
// RONDO_TORCH_MODULE, call(module, ...), a Sequential (needs no change), or wrap_unit for any function. Without
// fully_shard the same model runs as usual. Outside of such a call a unit's parameters keep their shapes but have no
// memory (they are on the meta device): using them is a torch error and never gives wrong numbers. With kReplicate and
// kShardOptimizer they always have memory. A unit must not return its parameters or views of them. It may return clones
// and results.
//
// Errors are thrown as rondo::torch::Error with the Status's text.
// Thread safety: one thread at a time for each Training. Backward must run on the CPU, in the calling thread.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rondo/communicator.h"
#include "rondo/fsdp/engine.h"
#include "rondo/torch/calls.h"
#include "rondo/torch/policy.h"

namespace rondo::torch {

/// The source of the parameters' first values.
enum class Init : uint8_t {
  kFromRank0,  // rank 0's are sent to all ranks, tensor by tensor
  kEqual,      // each rank has the same values; differences are an error
};

struct Options {
  Policy policy = {};
  fsdp::Options plan = {};          // nranks comes from the communicator
  fsdp::EngineOptions engine = {};  // with the optimizer's options
  Init init = Init::kFromRank0;
  /// Makes the values of parameters on the meta device (only on rank 0 for kFromRank0). Only one whole parameter exists
  /// at a time, so a model may be larger than memory. The name is as in named_parameters().
  std::function<void(const std::string& name, ::torch::Tensor whole)> fill = {};
};

/// A training: a plan, its engine, and the parameters that they have taken over. Made by fully_shard. It must outlive
/// every backward of its outputs. After its end the module has no values.
class Training {
 public:
  Training(Training&&) noexcept;
  Training& operator=(Training&&) noexcept;
  ~Training();

  /// Runs the engine's optimizer on this rank's part, then drops the gradients. There is no zero_grad.
  void step();
  /// Runs another optimizer, made over shards().
  void step(::torch::optim::Optimizer& optimizer);
  /// Call this on all ranks instead of step, for example if gradients are not finite. The next pass starts anew.
  void forget_gradients();
  /// This rank's trained parts as flat float tensors, in the order of engine().parts(). backward sets their .grad.
  /// Empty parts are left out.
  std::vector<::torch::Tensor> shards();
  /// Sets the learning rate of the engine's optimizer.
  void set_learning_rate(float lr);

  /// Calls in its lifetime are micro-batches before the last: backward accumulates gradients.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(std::shared_ptr<internal::Core> core);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    std::shared_ptr<internal::Core> core_;
    bool before_;
  };
  NoSync no_sync() { return NoSync(core_); }

  /// Runs any function as a pass: for free-form code, and for models whose entry is not forward. Returns its result.
  template <class F>
  auto run(F&& compute) {
    return internal::use(core_, core_.get(), std::forward<F>(compute));
  }

  /// The 2-norm of all gradients before clipping. Collective.
  double grad_norm();
  const fsdp::Plan& plan() const;
  fsdp::Engine& engine();
  /// "layers.0.weight: unit 1 'layers.0'" for each parameter, in the plan's order.
  std::string describe() const;

 protected:
  friend Training shard_units(std::vector<UnitParameters> units, Communicator& comm, const Options& options);
  explicit Training(std::shared_ptr<internal::Core> core);
  static std::shared_ptr<internal::Core> shard(std::shared_ptr<::torch::nn::Module> module, Communicator& comm,
                                               const Options& options);
  std::shared_ptr<internal::Core> core_;
};

template <class Impl>
class Sharded : public Training {
 public:
  Sharded(std::shared_ptr<Impl> module, Communicator& comm, const Options& options)
      : Training(shard(module, comm, options)), module_(std::move(module)) {}

  /// Calls forward of the module. With gradients this is the forward of a training pass, under NoGradGuard an
  /// evaluation. A forward without backward costs its gathers. The next forward drops it and its accumulated gradients,
  /// when its results are gone. All ranks must agree on this, so evaluate under NoGradGuard.
  template <class... Args>
  auto operator()(Args&&... args) {
    return run([&] { return module_->forward(std::forward<Args>(args)...); });
  }
  Impl* operator->() const { return module_.get(); }
  const std::shared_ptr<Impl>& module() const { return module_; }

 private:
  std::shared_ptr<Impl> module_;
};

/// Takes over the module's parameters. Collective over comm, which must outlive the result. Buffers (BatchNorm's
/// averages) stay on each rank. Tied parameters belong to their outermost unit, which must enclose the others. Throws
/// on all ranks, and then leaves the module unchanged: errors of Plan::build and Engine::create, an unknown path in the
/// policy, ties across units (with both names), different values with Init::kEqual, and exceptions of options.fill.
/// Frozen parameters stay frozen.
template <class Impl>
requires std::derived_from<Impl, ::torch::nn::Module> Sharded<Impl> fully_shard(std::shared_ptr<Impl> module,
                                                                                Communicator& comm,
                                                                                const Options& options = {}) {
  return Sharded<Impl>(std::move(module), comm, options);
}
template <class Impl>
Sharded<Impl> fully_shard(const ::torch::nn::ModuleHolder<Impl>& module, Communicator& comm,
                          const Options& options = {}) {
  return Sharded<Impl>(module.ptr(), comm, options);
}

/// For free-form code: units made by wrap_unit, in the order of forward. Run each pass with Training::run.
Training shard_units(std::vector<UnitParameters> units, Communicator& comm, const Options& options = {});

/// Moves a module's parameters to the meta device, so that Options::fill makes them. libtorch's layers are made with
/// values. For a model larger than memory call this after each layer is made.
void forget_values(::torch::nn::Module& module);

/// Keeps no activations of fn. backward calls it again with the same random numbers. fn should be one unit: then its
/// repeated forward and its backward share one gather.
::torch::Tensor recompute(std::function<::torch::Tensor(::torch::Tensor)> fn, const ::torch::Tensor& input);

}  // namespace rondo::torch
