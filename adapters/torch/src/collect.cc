#include "collect.h"

#include <algorithm>
#include <functional>
#include <set>

namespace rondo::torch::internal {
namespace {

using ::torch::nn::Module;

Status refusal(std::string why) { return Status(StatusCode::kInvalidArgument, std::move(why)); }

Expected<Dtype> dtype_of(const ::torch::Tensor& t, const std::string& path) {
  switch (t.scalar_type()) {
    case ::torch::kFloat32: return Dtype::kFloat32;
    case ::torch::kFloat64: return Dtype::kFloat64;
    case ::torch::kFloat16: return Dtype::kFloat16;
    case ::torch::kBFloat16: return Dtype::kBfloat16;
    case ::torch::kInt8: return Dtype::kInt8;
    case ::torch::kUInt8: return Dtype::kUint8;
    case ::torch::kInt32: return Dtype::kInt32;
    case ::torch::kInt64: return Dtype::kInt64;
    default: break;
  }
  return Status(StatusCode::kUnsupported, "parameter '" + path + "' has type " + ::c10::toString(t.scalar_type()) +
                                              ": make it float, bfloat16, half or an integer, or a buffer");
}

// Equal for tensors in the same memory. Parameters without memory (meta, no elements) are identified by their tensor.
const void* identity(const ::torch::Tensor& t) {
  if (t.numel() == 0 || t.is_meta()) return t.unsafeGetTensorImpl();
  return t.const_data_ptr();
}

// The path of an inner module begins with the outer path and a dot.
std::string relative(const std::string& path, const std::string& unit) {
  return unit.empty() ? path : path.substr(unit.size() + 1);
}
std::string join(const std::string& path, const std::string& name) { return path.empty() ? name : path + "." + name; }

class Collector {
 public:
  explicit Collector(const Policy& policy) : policy_(policy), missing_(policy.paths.begin(), policy.paths.end()) {}

  Expected<Collected> run(const std::shared_ptr<Module>& module) {
    decide(*module, "", true);
    if (!missing_.empty())
      return refusal("the policy names '" + *missing_.begin() + "', but the model has no module at that path");
    assign(module, "", -1);
    return finish();
  }

  Expected<Collected> run(const std::vector<UnitParameters>& units) {
    for (const UnitParameters& u : units) {
      const int index = add_unit(u.name, -1);
      if (!out_.unit_of.emplace(u.key.get(), index).second) return refusal("unit '" + u.name + "' is given twice");
      for (const auto& [name, parameter] : u.parameters) places_.push_back({parameter, join(u.name, name), index});
    }
    return finish();
  }

 private:
  struct Place {
    ::torch::Tensor parameter;
    std::string path;
    int unit;
  };

  // Inner modules first. Returns the number of elements that no inner unit has taken.
  uint64_t decide(Module& module, const std::string& path, bool outermost) {
    if (!decided_.insert(&module).second) return 0;
    uint64_t elems = 0;
    for (const auto& child : module.named_children()) elems += decide(*child.value(), join(path, child.key()), false);
    for (const auto& p : module.named_parameters(false))
      if (p.value().defined()) elems += static_cast<uint64_t>(p.value().numel());
    const bool named = missing_.erase(path) > 0;
    if (!outermost && (named || (policy_.wraps && policy_.wraps({module, path, elems})))) {
      chosen_.insert(&module);
      return 0;
    }
    return elems;
  }

  int add_unit(const std::string& name, int within) {
    names_.push_back(name);
    within_.push_back(within);
    return static_cast<int>(names_.size()) - 1;
  }

  // Outer modules first: the order of units.
  void assign(const std::shared_ptr<Module>& module, const std::string& path, int within) {
    const auto known = out_.unit_of.find(module.get());
    if (known != out_.unit_of.end()) return;  // registered in a second place
    int unit = within;
    if (within < 0 || chosen_.count(module.get()) > 0) {
      unit = add_unit(path, within);
      if (within >= 0) out_.unit_of.emplace(module.get(), unit);
    }
    for (const auto& p : module->named_parameters(false))
      if (p.value().defined()) places_.push_back({p.value(), join(path, p.key()), unit});
    if (auto sequential = std::dynamic_pointer_cast<::torch::nn::SequentialImpl>(module))
      for (size_t i = 0; i < sequential->size(); ++i)
        if (chosen_.count(sequential->ptr(i).get()) > 0) out_.links.push_back({sequential, i});
    for (const auto& child : module->named_children()) assign(child.value(), join(path, child.key()), unit);
  }

  bool encloses(int outer, int inner) const {
    while (inner >= 0 && inner != outer) inner = within_[static_cast<size_t>(inner)];
    return inner == outer;
  }

  // Tied parameters belong to the unit that encloses the others.
  Status settle_ties() {
    std::unordered_map<const void*, const Place*> outermost;
    for (const Place& p : places_) {
      const Place*& o = outermost[identity(p.parameter)];
      if (o == nullptr || (p.unit != o->unit && encloses(p.unit, o->unit))) o = &p;
    }
    for (Place& p : places_) {
      const Place& o = *outermost[identity(p.parameter)];
      if (!encloses(o.unit, p.unit))
        return refusal("parameters '" + o.path + "' and '" + p.path + "' are tied but in different units, '" +
                       name(o.unit) + "' and '" + name(p.unit) +
                       "', and neither encloses the other: wrap neither, so that both are in the enclosing unit");
      owner_.push_back(o.unit);
    }
    return {};
  }
  const std::string& name(int unit) const { return names_[static_cast<size_t>(unit)]; }

  // Removes units without parameters and renumbers the others.
  Expected<Collected> finish() {
    RONDO_TRY(settle_ties());
    std::vector<int> index(names_.size(), -1);
    std::vector<bool> has(names_.size());
    for (const int u : owner_) has[static_cast<size_t>(u)] = true;
    for (size_t u = 0; u < names_.size(); ++u) {
      if (!has[u]) continue;
      index[u] = static_cast<int>(out_.model.units.size());
      out_.model.units.push_back({names_[u], {}});
    }
    for (size_t u = 0; u < names_.size(); ++u)
      for (int w = within_[u]; w >= 0 && has[u]; w = within_[static_cast<size_t>(w)])
        if (has[static_cast<size_t>(w)])
          out_.model.units[static_cast<size_t>(index[static_cast<size_t>(w)])].encloses = true;
    const bool modules = !decided_.empty();
    if (modules && has[0]) out_.root = 0, out_.model.has_root = true;
    for (auto& [key, unit] : out_.unit_of) unit = index[static_cast<size_t>(unit)];
    std::erase_if(out_.unit_of, [](const auto& u) { return u.second < 0; });
    std::erase_if(out_.links, [&](const Link& l) { return out_.unit_of.count(l.sequential->ptr(l.index).get()) == 0; });
    for (size_t i = 0; i < places_.size(); ++i) RONDO_TRY(add_entry(places_[i], owner_[i], index));
    std::stable_sort(out_.entries.begin(), out_.entries.end(),
                     [](const Entry& a, const Entry& b) { return a.unit < b.unit; });
    return std::move(out_);
  }

  Status add_entry(const Place& p, int owner, const std::vector<int>& index) {
    const int unit = index[static_cast<size_t>(owner)];
    fsdp::Unit& u = out_.model.units[static_cast<size_t>(unit)];
    RONDO_TRY_ASSIGN(const Dtype dtype, dtype_of(p.parameter, p.path));
    fsdp::Tensor t;
    t.name = relative(p.path, name(owner));
    t.dtype = dtype;
    t.trainable = p.parameter.requires_grad();
    for (const int64_t d : p.parameter.sizes()) t.shape.push_back(static_cast<uint64_t>(d));
    const auto [first, is_first] = first_.try_emplace(identity(p.parameter), t.name, p);
    if (!is_first) {
      const Place& o = first->second.second;
      if (o.parameter.sizes() != p.parameter.sizes() || o.parameter.strides() != p.parameter.strides())
        return refusal(
            "parameters '" + o.path + "' and '" + p.path +
            "' share memory but have different layouts: tie the whole parameter, and transpose it in forward");
      t.tied_to = first->second.first;
    }
    out_.entries.push_back({p.parameter, p.path, unit, u.tensors.size(), !is_first});
    u.tensors.push_back(std::move(t));
    return {};
  }

  const Policy& policy_;
  std::set<std::string> missing_;
  std::set<const Module*> decided_, chosen_;
  std::vector<std::string> names_;  // of units, outer before inner
  std::vector<int> within_;         // the enclosing unit, or -1
  std::vector<Place> places_;
  std::vector<int> owner_;  // by place
  std::unordered_map<const void*, std::pair<std::string, Place>> first_;
  Collected out_;
};

}  // namespace

Expected<Collected> collect(const std::shared_ptr<Module>& module, const Policy& policy) {
  return Collector(policy).run(module);
}

Expected<Collected> collect(const std::vector<UnitParameters>& units) {
  const Policy none;
  return Collector(none).run(units);
}

}  // namespace rondo::torch::internal
