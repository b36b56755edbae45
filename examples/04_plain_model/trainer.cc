#include "trainer.h"

#include <bit>
#include <chrono>

#include "bfloat16.h"

namespace plain {
namespace {

using rondo::Dtype;
using rondo::Expected;
using rondo::Status;
using rondo::fsdp::Act;
using rondo::fsdp::Tensor;
using rondo::fsdp::UnitPlan;

// The index of the tensor that provides the memory of `tensor`: the one it is tied to, else itself.
size_t storage_of(const UnitPlan& unit, size_t tensor) {
  if (unit.tensors[tensor].tied_to.empty()) return tensor;
  size_t t = 0;
  while (unit.tensors[t].name != unit.tensors[tensor].tied_to) ++t;
  return t;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Trainer::Trainer(rondo::fsdp::Engine& engine, rondo::Communicator& comm, Transformer& net)
    : engine_(engine), comm_(comm), net_(net) {
  size_t most = 0;
  for (const UnitPlan& u : engine.plan().units()) most = std::max(most, u.tensors.size());
  wide_.resize(most), grads_.resize(most);
}

Status Trainer::init() {
  return engine_.init([](const Tensor& t, uint64_t first, uint64_t n, void* to) {
    for (uint64_t i = 0; i < n; ++i) static_cast<float*>(to)[i] = Transformer::initial_value(t, first + i);
  });
}

Status Trainer::step(const std::vector<MicroBatch>& micro_batches) {
  loss_ = 0;
  const float share = 1 / static_cast<float>(micro_batches.size());  // the engine averages over ranks
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    net_.start(micro_batches[m].tokens, micro_batches[m].targets);
    const bool last = m + 1 == micro_batches.size();
    RONDO_TRY(engine_.run(engine_.plan().step(last), [&](Act act, int unit) { return compute(act, unit, share); }));
    loss_ += net_.loss() * static_cast<double>(share);
  }
  return {};
}

// run() calls it between the gather of a unit and its release.
Status Trainer::compute(Act act, int unit, float scale) {
  const double start = seconds_now();
  if (act == Act::kForward) net_.forward(unit, parameters(unit));
  if (act == Act::kBackward) {
    if (static_cast<size_t>(unit) + 1 == engine_.plan().units().size()) net_.begin_backward(parameters(0), scale);
    net_.backward(unit, parameters(unit), zero_gradients(unit));
    hand_over_gradients(unit);
  }
  compute_s_ += seconds_now() - start;
  return {};
}

Transformer::Parameters Trainer::parameters(int unit) {
  const UnitPlan& plan = engine_.plan().units()[static_cast<size_t>(unit)];
  Transformer::Parameters p;
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    const void* here = engine_.data(unit, t);
    if (plan.segments[plan.placed[t].segment].param == Dtype::kFloat32) {
      p.push_back(static_cast<const float*>(here));
      continue;
    }
    const auto* narrow = static_cast<const uint16_t*>(here);
    wide_[t].resize(plan.placed[t].num_elems);
    for (size_t i = 0; i < wide_[t].size(); ++i) wide_[t][i] = widened(narrow[i]);
    p.push_back(wide_[t].data());
  }
  return p;
}

Transformer::Gradients Trainer::zero_gradients(int unit) {
  const UnitPlan& plan = engine_.plan().units()[static_cast<size_t>(unit)];
  Transformer::Gradients g;
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    const size_t at = storage_of(plan, t);
    if (at == t) grads_[t].assign(plan.placed[t].num_elems, 0.0f);
    g.push_back(grads_[at].data());
  }
  return g;
}

void Trainer::hand_over_gradients(int unit) {
  const UnitPlan& plan = engine_.plan().units()[static_cast<size_t>(unit)];
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    if (storage_of(plan, t) != t) continue;
    void* to = engine_.grad(unit, t);
    const std::vector<float>& from = grads_[t];
    if (plan.segments[plan.placed[t].segment].param == Dtype::kFloat32) {
      for (size_t i = 0; i < from.size(); ++i) static_cast<float*>(to)[i] += from[i];
    } else {
      auto* narrow = static_cast<uint16_t*>(to);
      for (size_t i = 0; i < from.size(); ++i) narrow[i] = narrowed(widened(narrow[i]) + from[i]);
    }
  }
}

Expected<double> Trainer::mean_loss() {
  double mean = loss_;
  RONDO_TRY(comm_.all_reduce(&mean, &mean, 1, Dtype::kFloat64, rondo::Op::kAvg));
  return mean;
}

// A sum over elements does not depend on their owners. If nothing is sharded, all ranks own all elements: one counts.
Expected<uint64_t> Trainer::parameter_hash() {
  uint64_t sum = 0;
  RONDO_TRY(engine_.read_owned([&](const Tensor& t, uint64_t first, uint64_t n, const void* from) {
    uint64_t name = 7;
    for (const char c : t.name) name = name * 131 + static_cast<uint8_t>(c);
    for (uint64_t i = 0; i < n; ++i) {
      uint64_t x =
          (name ^ (first + i) * 0x9e3779b97f4a7c15) + std::bit_cast<uint32_t>(static_cast<const float*>(from)[i]);
      x ^= x >> 31, x *= 0xd6e8feb86659fd93, x ^= x >> 29, x *= 0x94d049bb133111eb;
      sum += x ^ x >> 32;
    }
  }));
  if (comm_.rank() >= engine_.plan().shard_ranks()) sum = 0;
  RONDO_TRY(comm_.all_reduce(&sum, &sum, 1, Dtype::kUint64, rondo::Op::kSum));
  return sum;
}

}  // namespace plain
