// The reference for sharded training: one process computes the ranks' micro-batches one after the other, adds their
// gradients in that order, and uses the same optimizer. Deterministic sharded training gives the same bits.
//
// Thread safety: one thread at a time; compare() may be called by several.
#pragma once

#include <rondo/fsdp/optimizer.h>
#include <rondo/torch/fully_shard.h>

#include <array>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

class OneProcess {
 public:
  /// model: trained from its current values.
  OneProcess(torch::nn::Module& model, int nranks) : nranks_(nranks) {
    std::set<const void*> seen;  // counts tied parameters once
    for (auto& p : model.named_parameters())
      if (seen.insert(p.value().unsafeGetTensorImpl()).second) parameters_.push_back({p.key(), p.value(), {}, {}});
    for (Parameter& p : parameters_) p.states = {torch::zeros_like(p.value), torch::zeros_like(p.value)};
  }

  /// loss(rank): the loss of that rank's micro-batch.
  void step(const rondo::fsdp::OptimizerConfig& optimizer, const std::function<torch::Tensor(int)>& loss) {
    ++steps_;
    for (int r = 0; r < nranks_; ++r) {
      for (Parameter& p : parameters_) p.value.mutable_grad() = torch::zeros_like(p.value);
      loss(r).backward();
      for (Parameter& p : parameters_) p.sum = r == 0 ? p.value.grad() : p.sum + p.value.grad();
    }
    const torch::NoGradGuard no_grad;
    for (Parameter& p : parameters_) {
      const torch::Tensor mean = p.sum / nranks_;
      float* states[2] = {p.states[0].data_ptr<float>(), p.states[1].data_ptr<float>()};
      rondo::fsdp::optimizer_step(optimizer, steps_, 1, static_cast<uint64_t>(mean.numel()), p.value.data_ptr<float>(),
                                  mean.data_ptr<float>(), states);
    }
  }

  /// The largest difference between this rank's part and the reference. Throws if it exceeds `most`.
  double compare(rondo::torch::Training& sharded, double most) const {
    double largest = 0;
    for (const rondo::fsdp::Part& part : sharded.engine().parts()) {
      const auto& unit = sharded.plan().units()[static_cast<size_t>(part.unit)];
      const std::string name = rondo::fsdp::full_name(unit, unit.tensors[part.tensor]);
      if (part.num_elems == 0) continue;
      const auto count = static_cast<int64_t>(part.num_elems);
      const auto mine = torch::from_blob(part.master, {count});
      const auto other = find(name).detach().flatten().narrow(0, static_cast<int64_t>(part.first), count);
      const double off = (mine - other).abs().max().item<double>();
      if (!(off <= most)) throw std::runtime_error(name + " differs from one process by " + std::to_string(off));
      largest = std::max(largest, off);
    }
    return largest;
  }

 private:
  struct Parameter {
    std::string name;
    torch::Tensor value, sum;
    std::array<torch::Tensor, 2> states;
  };
  const torch::Tensor& find(const std::string& name) const {
    for (const Parameter& p : parameters_)
      if (p.name == name) return p.value;
    throw std::runtime_error("one process has no " + name);
  }

  int nranks_;
  int64_t steps_ = 0;
  std::vector<Parameter> parameters_;
};

/// Throws if `holds` is false.
inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("check failed: " + what);
}
