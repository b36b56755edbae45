// rondo::torch: fully sharded training of libtorch models, without a change to libtorch and without Python.
//
//   RONDO_TORCH_MODULE(Block);                       // where TORCH_MODULE(Block) was
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
// libtorch has no hooks on modules, so a unit has to be called through something that knows of it: a holder made by
// RONDO_TORCH_MODULE, call(module, ...), a Sequential (nothing to change), or wrap_unit for any function. The same
// model without fully_shard runs as ever. Outside of such a call the parameters of a unit have their shapes, and no
// memory (they are on the meta device): to use them there is an error of torch's and never wrong numbers. With
// kReplicate and kShardOptimizer they are always there.
//
// A unit may not return its parameters or views of them: a clone, or what is computed from them.
//
// Errors are thrown, as torch does it: rondo::torch::Error, whose text is the Status's.
//
// Thread safety: one thread at a time for each Training; backward must run on the CPU, in the thread that calls it.
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

/// Where the first values of parameters come from.
enum class Init : uint8_t {
  kFromRank0,  // rank 0's are sent to all, tensor by tensor
  kEqual,      // each rank has made the same: compared, and an error where they differ
};

struct Options {
  Policy policy = {};
  fsdp::Options plan = {};          // nranks is the communicator's
  fsdp::EngineOptions engine = {};  // the optimizer's among them
  Init init = Init::kFromRank0;
  /// Makes the values of parameters on the meta device (called on rank 0 alone with kFromRank0): one of them is whole
  /// at a time, and no more, so a model may be larger than memory. The name is that of named_parameters().
  std::function<void(const std::string& name, ::torch::Tensor whole)> fill = {};
};

/// What trains: a plan, its engine, and the parameters that they have taken over. Made by fully_shard. It must outlive
/// backward of what was computed with it; afterwards the module has no values any more.
class Training {
 public:
  Training(Training&&) noexcept;
  Training& operator=(Training&&) noexcept;
  ~Training();

  /// The engine's optimizer, on what this rank owns. Gradients are then forgotten: there is no zero_grad.
  void step();
  /// Another optimizer, made over shards().
  void step(::torch::optim::Optimizer& optimizer);
  /// In place of a step, where gradients are not finite say: on all ranks. The next pass begins anew.
  void forget_gradients();
  /// What this rank owns, as flat float tensors whose .grad is set by backward: in the order of engine().parts(), of
  /// those that are trained. Empty ones are left out.
  std::vector<::torch::Tensor> shards();
  /// The learning rate of the engine's optimizer from now on.
  void set_learning_rate(float lr);

  /// What is called in its lifetime is a micro-batch before the last: its backward adds gradients up.
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

  /// Any function as a pass: for free-form code, and for models whose entry is not forward. Returns what it returns.
  template <class F>
  auto run(F&& compute) {
    return internal::use(core_, core_.get(), std::forward<F>(compute));
  }

  /// The 2-norm of all gradients, before they are clipped. Collective.
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

  /// forward of the module. With gradients it is the forward of a training pass, under NoGradGuard an evaluation. A
  /// forward whose backward never comes costs its gathers; the next one drops it, and gradients that have added up,
  /// once its results are gone: on all ranks alike, so evaluate under NoGradGuard.
  template <class... Args>
  auto operator()(Args&&... args) {
    return run([&] { return module_->forward(std::forward<Args>(args)...); });
  }
  Impl* operator->() const { return module_.get(); }
  const std::shared_ptr<Impl>& module() const { return module_; }

 private:
  std::shared_ptr<Impl> module_;
};

/// Takes the module's parameters over. Collective over comm, which must outlive what is returned. Buffers (BatchNorm's
/// averages) stay as they are on each rank. Parameters that are registered in several places (tied) belong to the
/// outermost unit that has them, which must enclose the others. Throws: those of Plan::build and Engine::create, a path
/// of the policy that does not exist, ties across units (both names), Init::kEqual and values that are not, and what
/// options.fill throws, on all ranks; the module is then as it was. Parameters that are frozen now stay so.
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

/// Free-form code: units made by wrap_unit, in the order of forward. Each pass is a call of Training::run.
Training shard_units(std::vector<UnitParameters> units, Communicator& comm, const Options& options = {});

/// Moves a module's parameters to the meta device, for Options::fill to make them. libtorch's own layers are made with
/// values, so a model larger than memory forgets each layer when it is made.
void forget_values(::torch::nn::Module& module);

/// Keeps no activations of fn: backward calls it once more, with the random numbers that it had. fn should be one unit:
/// what it computes again is on the way to its gradients and is gathered no second time.
::torch::Tensor recompute(std::function<::torch::Tensor(::torch::Tensor)> fn, const ::torch::Tensor& input);

}  // namespace rondo::torch
