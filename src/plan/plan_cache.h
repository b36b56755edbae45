// PlanCache: plans by the shape of their calls. It has sets of four plans, the newest first. A repeated call costs one
// look-up in a set.
// Thread safety: none; it belongs to its owner's thread.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "plan/call.h"

namespace rondo {

/// P has a `request` and a `may_be_direct`. `may_be_direct` is true if the plan was made while peers could reach
/// buffers.
template <class P>
class PlanCache {
 public:
  /// Returns the plan of a shape; nullptr if there is none.
  const std::shared_ptr<P>* find(const CallShape& shape, bool may_be_direct) const {
    const std::shared_ptr<P>* set = &plans_[set_of(shape)];
    for (size_t i = 0; i < kWays; ++i)
      if (set[i] != nullptr && set[i]->request == shape && set[i]->may_be_direct == may_be_direct) [[likely]]
        return &set[i];
    return nullptr;
  }
  /// Adds a plan. The oldest plan of its set is dropped.
  const std::shared_ptr<P>* add(std::shared_ptr<P> plan) {
    std::shared_ptr<P>* set = &plans_[set_of(plan->request)];
    std::move_backward(set, set + kWays - 1, set + kWays);
    set[0] = std::move(plan);
    return set;
  }
  void clear() { std::fill(plans_.begin(), plans_.end(), nullptr); }

 private:
  static constexpr size_t kSets = 512, kWays = 4;
  static size_t set_of(const CallShape& s) {
    const uint64_t h = (s.count_elems * 0x9E3779B97F4A7C15u) ^ (static_cast<uint64_t>(s.collective) << 32) ^
                       (static_cast<uint64_t>(s.dtype) << 40) ^ (static_cast<uint64_t>(s.op) << 48) ^
                       (static_cast<uint64_t>(s.row) << 52) ^ (static_cast<uint64_t>(s.root) << 16) ^
                       reinterpret_cast<uintptr_t>(s.algorithm);
    return static_cast<size_t>(h ^ h >> 31) % kSets * kWays;
  }
  std::vector<std::shared_ptr<P>> plans_ = std::vector<std::shared_ptr<P>>(kSets * kWays);
};

}  // namespace rondo
