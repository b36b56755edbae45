// Turns a module into the input of a plan: units, their tensors, and torch's handles of them.
// Thread safety: pure functions of the module.
#pragma once

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "rondo/fsdp/plan.h"
#include "rondo/torch/calls.h"
#include "rondo/torch/policy.h"

namespace rondo::torch::internal {

/// A parameter at one place of its registration. A tied parameter has several entries.
struct Entry {
  ::torch::Tensor param;
  std::string path;
  int unit;
  size_t tensor;                         // index in the plan's unit
  bool is_tied;                          // to an earlier entry
  ::torch::Tensor here = {}, away = {};  // its states during and outside of a use
  ::torch::Tensor before = {};           // its original state, until all are taken over
};

/// An element of a Sequential that calls a unit.
struct Link {
  std::shared_ptr<::torch::nn::SequentialImpl> sequential;
  size_t index;
};

struct Collected {
  fsdp::Model model;
  std::vector<Entry> entries;                    // in the plan's order
  std::unordered_map<const void*, int> unit_of;  // key: the module's address or a free-form unit's key
  std::vector<Link> links;
  int root = -1;  // the outermost unit, if it has parameters
};

/// Units in the order in which modules are registered. O(modules + parameters).
Expected<Collected> collect(const std::shared_ptr<::torch::nn::Module>& module, const Policy& policy);
Expected<Collected> collect(const std::vector<UnitParameters>& units);

}  // namespace rondo::torch::internal
