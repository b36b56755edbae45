// Which parts of a libtorch model are gathered and released together: its *units*. A policy is asked about every module
// but the outermost, inner ones first; the parameters of a unit are those of its module less those of units within it.
// What no unit takes belongs to the outermost one, which stays from the start of forward to the end of backward.
//
// Thread safety: plain values.
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
  const std::string& path;  // from the outermost: "blocks.0"
  uint64_t num_elems;       // of its parameters, without those of units within it
};

struct Policy {
  std::function<bool(const Candidate&)> wraps = {};  // empty: none
  /// Modules that must be there; each becomes a unit.
  std::vector<std::string> paths = {};
};

/// One unit: everything is gathered at once, and nothing is saved but optimizer state and gradients.
inline Policy one_unit() { return {}; }

/// Modules of these types: wrap_types<BlockImpl>().
template <class... Modules>
Policy wrap_types() {
  return {[](const Candidate& c) { return ((dynamic_cast<const Modules*>(&c.module) != nullptr) || ...); }};
}

/// Modules that have at least so many elements of their own; smaller ones join the unit around them.
inline Policy min_params(uint64_t num_elems) {
  return {[num_elems](const Candidate& c) { return c.num_elems >= num_elems && c.num_elems > 0; }};
}

/// The modules at these paths, as named_modules() tells them.
inline Policy wrap_paths(std::vector<std::string> paths) { return {{}, std::move(paths)}; }

}  // namespace rondo::torch
