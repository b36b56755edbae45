// Sets up a core: the plan, first values, and the states of the module's parameters.
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "core.h"

namespace rondo::torch::internal {
namespace {

using Owner = std::weak_ptr<Core>;

// Its address also identifies storage made by rondo.
void forget(void* owner) { delete static_cast<Owner*>(owner); }

::c10::ScalarType scalar_type(Dtype t) {
  switch (t) {
    case Dtype::kFloat64: return ::torch::kFloat64;
    case Dtype::kFloat16: return ::torch::kFloat16;
    case Dtype::kBfloat16: return ::torch::kBFloat16;
    case Dtype::kInt8: return ::torch::kInt8;
    case Dtype::kUint8: return ::torch::kUInt8;
    case Dtype::kInt32: return ::torch::kInt32;
    case Dtype::kInt64: return ::torch::kInt64;
    default: return ::torch::kFloat32;
  }
}

uint64_t checksum(const ::torch::Tensor& t) {
  uint64_t h = 0xcbf29ce484222325;
  const auto* bytes = static_cast<const uint8_t*>(t.const_data_ptr());
  for (size_t i = 0; i < t.nbytes(); ++i) h = (h ^ bytes[i]) * 0x100000001b3;
  return h;
}

// Replaces a Tensor -> Tensor module in a Sequential. The module registered under its name does not change.
class CalledUnit : public ::torch::nn::Module {
 public:
  CalledUnit(::torch::nn::AnyModule module, std::weak_ptr<Core> core)
      : module_(std::move(module)), core_(std::move(core)) {}
  ::torch::Tensor forward(::torch::Tensor x) {
    return use(core_.lock(), module_.ptr().get(), [&] { return module_.forward<::torch::Tensor>(std::move(x)); });
  }

 private:
  ::torch::nn::AnyModule module_;
  std::weak_ptr<Core> core_;
};

Status of_rank(const Communicator& comm, const Status& status) {
  return Status(status.code(), "rank " + std::to_string(comm.rank()) + ": " + std::string(status.message()));
}

const ::torch::Tensor* first_parameter(const ::torch::nn::Module& module, ::torch::Tensor* found) {
  for (const auto& p : module.named_parameters(false))
    if (p.value().defined()) return &(*found = p.value());
  for (const auto& child : module.children())
    if (first_parameter(*child, found) != nullptr) return found;
  return nullptr;
}

}  // namespace

std::shared_ptr<Core> find(const ::torch::Tensor& parameter) {
  if (!parameter.defined() || !parameter.has_storage()) return nullptr;
  const auto* owner = parameter.storage().data_ptr().cast_context<Owner>(&forget);
  return owner == nullptr ? nullptr : owner->lock();
}

std::shared_ptr<Core> find(const ::torch::nn::Module& module) {
  ::torch::Tensor found;
  const auto* p = first_parameter(module, &found);
  return p == nullptr ? nullptr : find(*p);
}

std::shared_ptr<Core> Core::make(Expected<Collected> collected, Communicator& comm, const Options& options) {
  if (!collected.ok()) throw Error(of_rank(comm, collected.status()));
  std::shared_ptr<Core> core(new Core(std::move(*collected)));
  try {
    core->set_up(comm, options);
  } catch (...) {
    core->take_back();
    throw;
  }
  return core;
}

void Core::set_up(Communicator& comm, const Options& options) {
  const ::c10::InferenceMode normal(false);  // parameters made in inference mode cannot be trained
  fsdp::Options plan_options = options.plan;
  plan_options.nranks = comm.size();
  plan_options.optimizer_bytes = static_cast<uint32_t>(4 * fsdp::optimizer_states(options.engine.optimizer));
  Expected<fsdp::Plan> built = fsdp::Plan::build(all_.model, plan_options);
  if (!built.ok()) throw Error(of_rank(comm, built.status()));
  const fsdp::Plan plan = std::move(*built);
  engine_ = checked(fsdp::Engine::create(plan, comm, options.engine));
  ranges_.assign(plan.units().size(), {all_.entries.size(), 0});
  for (size_t i = 0; i < all_.entries.size(); ++i) {
    auto& [first, last] = ranges_[static_cast<size_t>(all_.entries[i].unit)];
    first = std::min(first, i), last = i + 1;
  }
  bound_.assign(plan.units().size(), 0);
  for (const Entry& e : all_.entries) {
    if (find(e.param) != nullptr)
      misuse("parameter '" + e.path + "' of unit '" + name(e.unit) +
             "' is already sharded: use its Training, or destroy that first");
    if (e.param.is_inference())
      misuse("parameter '" + e.path + "' of unit '" + name(e.unit) +
             "' was made in inference mode and cannot be trained: make the model outside of inference mode");
  }
  fill(comm, options);
  check(engine_->masters_changed());
  always_here_ = plan.options().strategy == fsdp::Strategy::kReplicate ||
                 plan.options().strategy == fsdp::Strategy::kShardOptimizer;
  if (always_here_) {
    always_here_ = false;
    for (size_t u = 0; u < bound_.size(); ++u) bind(static_cast<int>(u));
    bound_.assign(bound_.size(), 0);
    always_here_ = true;
  }
  for (size_t u = 0; u < bound_.size(); ++u) here_.push_back(!engine_->is_here(static_cast<int>(u)));
  follow_buffers();
  call_links();
  engine_->clear_log();
  engine_->reset_stats();
  for (Entry& e : all_.entries) {
    e.param.mutable_grad().reset();
    e.before.reset();
  }
}

// After a failed set-up: restores the original parameters.
void Core::take_back() {
  for (Entry& e : all_.entries) {
    e.away.reset();
    if (e.before.defined()) e.param.unsafeGetTensorImpl()->shallow_copy_from(e.before.getIntrusivePtr());
  }
}

// All ranks learn of missing values before any waits for another's values.
void Core::check_values(Communicator& comm, const Options& options) const {
  const bool asked = options.init != Init::kFromRank0 || comm.rank() == 0;
  const auto without =
      std::find_if(all_.entries.begin(), all_.entries.end(), [](const Entry& e) { return e.param.is_meta(); });
  const bool mine = !options.fill && without != all_.entries.end();
  const std::string why = mine ? "parameter '" + without->path + "' of unit '" + name(without->unit) +
                                     "' has no values (meta device): set options.fill"
                               : "another rank lacks values of parameters (meta device) and has no options.fill";
  int32_t lacks = mine && asked ? 1 : 0;
  check(comm.all_reduce(&lacks, &lacks, 1, Dtype::kInt32, Op::kMax));
  if (lacks != 0) misuse(why);
}

// A rank that fails to make a value goes on without it, so that no other waits. check_made then fails on all ranks.
void Core::make_values(const Entry& e, const Options& options, ::torch::Tensor whole, std::string* failure) {
  if (!failure->empty()) return;
  const std::string what =
      "options.fill threw an exception for parameter '" + e.path + "' of unit '" + name(e.unit) + "'";
  try {
    options.fill(e.path, std::move(whole));
  } catch (const std::exception& thrown) {
    *failure = what + ": " + thrown.what();
  } catch (...) {
    *failure = what;
  }
}

void Core::check_made(Communicator& comm, const std::string& failure) const {
  int32_t failed = failure.empty() ? 0 : comm.rank() + 1;
  check(comm.all_reduce(&failed, &failed, 1, Dtype::kInt32, Op::kMax));
  if (!failure.empty()) misuse(failure + "; the module is unchanged");
  if (failed != 0)
    misuse("options.fill threw an exception on rank " + std::to_string(failed - 1) +
           ", which reports it; the module is unchanged");
}

// Works tensor by tensor: a whole tensor exists on all ranks only until its owners have taken their parts. The old
// parameters stay until nothing can fail any more.
void Core::fill(Communicator& comm, const Options& options) {
  const ::at::NoGradGuard no_grad;
  const bool from_rank0 = options.init == Init::kFromRank0;
  const std::vector<fsdp::Part> parts = engine_->parts();
  auto part = parts.begin();
  std::vector<uint64_t> sums;
  check_values(comm, options);
  std::string failure;
  for (Entry& e : all_.entries) e.before = e.param.detach();
  for (Entry& e : all_.entries) {
    if (!e.is_tied) {
      const bool makes = !from_rank0 || comm.rank() == 0, meta = e.param.is_meta();
      ::torch::Tensor whole = meta || !makes ? ::at::empty(e.param.sizes(), e.param.options().device(::at::kCPU))
                                             : e.param.detach().cpu().contiguous();
      if (meta && makes) make_values(e, options, whole, &failure);
      if (from_rank0 && whole.numel() > 0)
        check(comm.broadcast(whole.const_data_ptr(), whole.mutable_data_ptr(), whole.nbytes(), Dtype::kUint8, 0));
      if (!from_rank0) sums.push_back(checksum(whole));
      const auto* values = static_cast<const std::byte*>(whole.const_data_ptr());
      for (; part != parts.end() && part->unit == e.unit && part->tensor == e.tensor; ++part)
        std::memcpy(part->master, values + part->first * whole.element_size(), part->num_elems * whole.element_size());
    }
    e.away = placeholder(e);
    e.param.unsafeGetTensorImpl()->shallow_copy_from(e.away.getIntrusivePtr());
  }
  check_made(comm, failure);
  if (!from_rank0) compare(comm, sums);
}

void Core::compare(Communicator& comm, const std::vector<uint64_t>& sums) {
  std::vector<uint64_t> all(sums.size() * static_cast<size_t>(comm.size()));
  check(comm.all_gather(sums.data(), all.data(), sums.size(), Dtype::kUint64));
  size_t k = 0;
  for (const Entry& e : all_.entries) {
    if (e.is_tied) continue;
    for (size_t r = 0; r < static_cast<size_t>(comm.size()); ++r)
      if (all[r * sums.size() + k] != sums[k])
        throw Error(of_rank(
            comm, Status(StatusCode::kMismatch, "parameter '" + e.path + "' has different values on rank " +
                                                    std::to_string(r) + ": make them equal, or use Init::kFromRank0")));
    ++k;
  }
}

void Core::call_links() {
  for (const Link& link : all_.links) {
    ::torch::nn::AnyModule& place = *(link.sequential->begin() + static_cast<int64_t>(link.index));
    replaced_.emplace_back(link, place);
    place = ::torch::nn::AnyModule(std::make_shared<CalledUnit>(place, weak_from_this()));
  }
}

Core::~Core() {
  for (auto& [link, module] : replaced_)
    *(link.sequential->begin() + static_cast<int64_t>(link.index)) = std::move(module);
  for (Entry& e : all_.entries)  // no view of a freed buffer may remain
    if (e.away.defined()) e.param.unsafeGetTensorImpl()->shallow_copy_from(e.away.getIntrusivePtr());
}

::torch::TensorOptions Core::options_of(const Entry& e) const {
  const fsdp::UnitPlan& unit = engine_->plan().units()[static_cast<size_t>(e.unit)];
  return ::torch::TensorOptions(scalar_type(unit.segments[unit.placed[e.tensor].segment].param));
}

::torch::Tensor Core::view(void* data, const Entry& e) {
  const ::c10::InferenceMode normal(false);  // a tensor made in inference mode would stay one
  return ::at::for_blob(data, e.param.sizes())
      .context(new Owner(weak_from_this()), &forget)
      .options(options_of(e))
      .make_tensor();
}

// A tensor of its shape and type without memory. It still identifies its core.
::torch::Tensor Core::placeholder(const Entry& e) {
  const auto meta = ::at::Device(::at::kMeta);
  ::torch::Tensor t = ::at::empty({0}, options_of(e).device(meta));
  ::at::DataPtr mark(nullptr, new Owner(weak_from_this()), &forget, meta);
  const auto bytes = static_cast<size_t>(e.param.numel()) * t.element_size();
  t.unsafeGetTensorImpl()->set_storage_keep_dtype(
      ::at::Storage(::at::Storage::use_byte_size_t(), bytes, std::move(mark)));
  t.unsafeGetTensorImpl()->set_sizes_contiguous(e.param.sizes());
  return t;
}

std::vector<::torch::Tensor> Core::shards() {
  const ::c10::InferenceMode normal(false);
  if (shards_.empty())
    for (const fsdp::Part& p : engine_->parts()) {
      if (p.grad == nullptr || p.num_elems == 0) continue;
      shards_.emplace_back(::at::from_blob(p.master, {static_cast<int64_t>(p.num_elems)}), p.grad);
      shards_.back().first.requires_grad_();
    }
  std::vector<::torch::Tensor> all;
  for (auto& [shard, grad] : shards_) {
    shard.mutable_grad() = ::at::from_blob(grad, shard.sizes());
    all.push_back(shard);
  }
  return all;
}

void Core::step() {
  const Status stepped = engine_->step();
  bump_versions();
  check(stepped);
}

// zero_grad may have removed the gradients from the shards.
void Core::step(::torch::optim::Optimizer& optimizer) {
  shards();
  std::exception_ptr thrown;  // the engine must not see exceptions
  const Status stepped = engine_->step([&]() -> Status {
    try {
      optimizer.step();
      return {};
    } catch (...) {
      thrown = std::current_exception();
      return Status(StatusCode::kInvalidArgument, "the optimizer threw an exception");
    }
  });
  bump_versions();
  if (!stepped.ok()) give_up();
  if (thrown) std::rethrow_exception(thrown);
  check(stepped);
}

std::string Core::describe() const {
  std::string text;
  for (const Entry& e : all_.entries)
    text +=
        e.path + ": unit " + std::to_string(e.unit) + " '" + name(e.unit) + "'" + (e.is_tied ? ", tied" : "") + "\n";
  return text;
}

}  // namespace rondo::torch::internal
