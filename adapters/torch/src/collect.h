// From a module to what a plan is made of: units, their tensors, and the handles through which torch reaches them.
//
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

/// A parameter as it is registered in one place. Tied ones are several entries.
struct Entry {
  ::torch::Tensor param;
  std::string path;
  int unit;
  size_t tensor;                         // of the unit in the plan
  bool is_tied;                          // to an entry before
  ::torch::Tensor here = {}, away = {};  // what it is made to be
  ::torch::Tensor before = {};           // what it was, until all are taken over
};

/// A place of a Sequential that calls a unit.
struct Link {
  std::shared_ptr<::torch::nn::SequentialImpl> sequential;
  size_t index;
};

struct Collected {
  fsdp::Model model;
  std::vector<Entry> entries;                    // in the plan's order
  std::unordered_map<const void*, int> unit_of;  // by the module's address, or a free-form unit's key
  std::vector<Link> links;
  int root = -1;  // the outermost unit, where it has parameters
};

/// Units in the order in which modules are registered. O(modules + parameters).
Expected<Collected> collect(const std::shared_ptr<::torch::nn::Module>& module, const Policy& policy);
Expected<Collected> collect(const std::vector<UnitParameters>& units);

}  // namespace rondo::torch::internal
