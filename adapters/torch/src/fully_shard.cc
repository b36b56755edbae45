#include "rondo/torch/fully_shard.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <mutex>

#include "core.h"

namespace rondo::torch {
namespace internal {

Use::Use(std::shared_ptr<Core> core, const void* key) : core_(std::move(core)), call_(core_->enter(key)) {
  pass_ = core_->pass();
}
Use::~Use() {
  if (core_ != nullptr) core_->fail(pass_, call_);
}
void Use::leave(const std::vector<::torch::Tensor>& outputs) {
  const std::shared_ptr<Core> core = std::move(core_);
  try {
    core->leave(pass_, call_, outputs);
  } catch (...) {
    core->give_up();
    throw;
  }
}

}  // namespace internal

namespace {

using ::torch::Tensor;
using ::torch::autograd::AutogradContext;
using ::torch::autograd::variable_list;

struct Held : ::torch::CustomClassHolder {
  std::function<Tensor(Tensor)> function;
  Tensor random;  // state of the CPU's generator before forward
};

Tensor random_state() {
  auto generator = ::at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}
void set_random_state(const Tensor& state) {
  auto generator = ::at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// The second input has no elements. It adds the output to a graph if the first input would not.
struct Recompute : ::torch::autograd::Function<Recompute> {
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const Tensor& /*graph*/,
                        const ::c10::intrusive_ptr<Held>& held) {
    ctx->save_for_backward({input});
    ctx->saved_data["held"] = ::c10::IValue::make_capsule(held);
    return held->function(input);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto held = ::c10::static_intrusive_pointer_cast<Held>(ctx->saved_data["held"].toCapsule());
    const Tensor saved = ctx->get_saved_variables()[0];
    Tensor input = saved.detach().requires_grad_(saved.requires_grad());
    const Tensor now = random_state();
    set_random_state(held->random);
    {
      const ::at::AutoGradMode records(true);
      const Tensor output = held->function(input);
      set_random_state(now);
      if (output.requires_grad()) ::torch::autograd::backward({output}, {grads[0]});
    }
    return {input.grad(), Tensor(), Tensor()};
  }
};

}  // namespace

void forget_values(::torch::nn::Module& module) {
  for (Tensor& p : module.parameters()) {
    const Tensor away = ::at::empty(p.sizes(), p.options().device(::at::kMeta));
    p.unsafeGetTensorImpl()->shallow_copy_from(away.getIntrusivePtr());  // set_data would refuse this
  }
}

Tensor recompute(std::function<Tensor(Tensor)> fn, const Tensor& input) {
  if (!::at::GradMode::is_enabled()) return fn(input);
  auto held = ::c10::make_intrusive<Held>();
  held->function = std::move(fn);
  held->random = random_state();
  return Recompute::apply(input, ::at::empty({0}).requires_grad_(), held);
}

Training::Training(std::shared_ptr<internal::Core> core) : core_(std::move(core)) {}
Training::Training(Training&&) noexcept = default;
Training& Training::operator=(Training&&) noexcept = default;
Training::~Training() = default;

std::shared_ptr<internal::Core> Training::shard(std::shared_ptr<::torch::nn::Module> module, Communicator& comm,
                                                const Options& options) {
  return internal::Core::make(internal::collect(module, options.policy), comm, options);
}

Training shard_units(std::vector<UnitParameters> units, Communicator& comm, const Options& options) {
  return Training(internal::Core::make(internal::collect(units), comm, options));
}

void Training::step() { core_->step(); }
void Training::step(::torch::optim::Optimizer& optimizer) { core_->step(optimizer); }
void Training::forget_gradients() { core_->give_up(); }
std::vector<Tensor> Training::shards() { return core_->shards(); }
void Training::set_learning_rate(float lr) { internal::check(core_->engine().set_learning_rate(lr)); }
double Training::grad_norm() { return internal::checked(core_->engine().grad_norm()); }
const fsdp::Plan& Training::plan() const { return core_->engine().plan(); }
fsdp::Engine& Training::engine() { return core_->engine(); }
std::string Training::describe() const { return core_->describe(); }

Training::NoSync::NoSync(std::shared_ptr<internal::Core> core) : core_(std::move(core)), before_(core_->accumulates) {
  core_->accumulates = true;
}
Training::NoSync::~NoSync() { core_->accumulates = before_; }

}  // namespace rondo::torch
