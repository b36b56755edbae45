// Selects the units of a libtorch model: the parts that are gathered and released together. A policy is called for
// every module except the outermost, inner modules first. A unit has the parameters of its module without those of
// inner units. The remaining parameters belong to the outermost unit, which stays from the start of forward to the end
// of backward. Thread safety: plain values.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace rondo::torch {

/// A module that could become a unit.
struct Candidate {
  const ::torch::nn::Module& module;
  const std::string& path;  // from the outermost module: "blocks.0"
  uint64_t num_elems;       // without those of inner units
};

struct Policy {
  std::function<bool(const Candidate&)> wraps = {};  // empty: no module
  /// Paths of modules that must exist. Each becomes a unit.
  std::vector<std::string> paths = {};
};

/// One unit: all parameters are gathered together. Sharding saves only optimizer state and gradients.
inline Policy one_unit() { return {}; }

/// Modules of these types: wrap_types<BlockImpl>().
template <class... Modules>
Policy wrap_types() {
  return {[](const Candidate& c) { return ((dynamic_cast<const Modules*>(&c.module) != nullptr) || ...); }};
}

/// Modules with at least this many own elements. Smaller ones join the enclosing unit.
inline Policy min_params(uint64_t num_elems) {
  return {[num_elems](const Candidate& c) { return c.num_elems >= num_elems && c.num_elems > 0; }};
}

/// The modules at these paths, named as in named_modules().
inline Policy wrap_paths(std::vector<std::string> paths) { return {{}, std::move(paths)}; }

}  // namespace rondo::torch
