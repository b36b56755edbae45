// Generates the actions of a pass and checks that their order is safe.
#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "rondo/fsdp/plan.h"

namespace rondo::fsdp {
namespace {

// Generates the actions and tracks the holder of each shared buffer.
class Script {
 public:
  Script(const Plan& plan, PassKind kind, const Order& order)
      : o_(plan.options()),
        units_(plan.units()),
        kind_(kind),
        gathers_(o_.strategy == Strategy::kShardGradients || o_.strategy == Strategy::kShardAll),
        again_(o_.strategy == Strategy::kShardAll),
        holder_(static_cast<size_t>(plan.num_data_buffers()), -1),
        reducing_(static_cast<size_t>(plan.num_grad_buffers()), -1),
        gathered_(units_.size(), !gathers_) {
    std::vector<int> model(units_.size());
    std::iota(model.begin(), model.end(), 0);
    forward_ = complete(order.forward, model);
    std::ranges::reverse(model);
    std::vector<int> once;
    for (const int u : order.backward)
      if (std::ranges::find(once, u) == once.end()) once.push_back(u);
    backward_ = complete(std::move(once), model);
  }

  std::vector<Action> write() {
    forward();
    if (kind_ != PassKind::kForwardOnly) {
      backward();
      finish();
    }
    return std::move(actions_);
  }

 private:
  // Inserts the units that `order` leaves out, in model order.
  static std::vector<int> complete(std::vector<int> order, const std::vector<int>& model) {
    std::erase_if(order, [&](int u) { return std::ranges::find(model, u) == model.end(); });
    for (const int u : model)
      if (std::ranges::find(order, u) == order.end()) order.push_back(u);
    return order;
  }

  void add(Act act, int unit) { actions_.push_back({act, unit}); }
  const UnitPlan& unit(int u) const { return units_[static_cast<size_t>(u)]; }
  int& holder(int u) { return holder_[static_cast<size_t>(unit(u).data_buffer)]; }
  bool has(int u) const { return gathered_[static_cast<size_t>(u)]; }

  void gather(int u) {
    add(Act::kGather, u);
    holder(u) = u;
    gathered_[static_cast<size_t>(u)] = true;
    waited_for_.erase(u);
  }
  void wait(int u) {
    if (gathers_ && waited_for_.insert(u).second) add(Act::kWaitGather, u);
  }
  void release(int u) {
    if (!gathers_ || !has(u)) return;
    add(Act::kRelease, u);
    holder(u) = -1;
    gathered_[static_cast<size_t>(u)] = false;
  }
  // Gathers the units after position `from`, as long as buffers are free.
  void gather_ahead(const std::vector<int>& order, size_t from, int depth) {
    const size_t end = std::min(order.size(), from + 1 + static_cast<size_t>(depth));
    for (size_t i = from + 1; i < end; ++i) {
      if (has(order[i])) continue;
      if (holder(order[i]) >= 0) return;
      gather(order[i]);
    }
  }

  void forward() {
    for (size_t i = 0; i < forward_.size(); ++i) {
      const int u = forward_[i];
      if (!has(u)) gather(u);
      gather_ahead(forward_, i, o_.forward_prefetch);
      wait(u);
      add(Act::kForward, u);
      const bool last = i + 1 == forward_.size();
      const bool kept = last && o_.keep_last && kind_ != PassKind::kForwardOnly && backward_.front() == u;
      const bool stays = unit(u).resident || kept;
      if (!stays) release(u);
    }
    for (size_t u = 0; kind_ == PassKind::kForwardOnly && u < units_.size(); ++u) release(static_cast<int>(u));
  }

  void backward() {
    for (size_t i = 0; i < backward_.size(); ++i) {
      const int u = backward_[i];
      if (!has(u)) gather(u);
      if (again_ && o_.backward_order == BackwardPrefetch::kPre) gather_ahead(backward_, i, o_.backward_prefetch);
      wait(u);
      if (const int buffer = unit(u).grad_buffer; buffer >= 0) wait_for_reduction(static_cast<size_t>(buffer));
      add(Act::kBackward, u);
      release(u);
      if (again_ && o_.backward_order == BackwardPrefetch::kPost) gather_ahead(backward_, i, o_.backward_prefetch);
      reduce(u);
    }
  }

  bool casts() const {
    return std::ranges::any_of(units_, [](const UnitPlan& u) {
      return std::ranges::any_of(u.segments, [](const Segment& s) { return s.param != s.master; });
    });
  }
  void wait_for_reduction(size_t buffer) {
    int& pending = reducing_[buffer];
    if (pending < 0) return;
    add(Act::kWaitReduce, pending);
    pending = -1;
  }
  // Gradients in a shared buffer are reduced in every micro-batch and added to the owners' sums.
  void reduce(int u) {
    if (unit(u).grad_buffer < 0 || (kind_ == PassKind::kAccumulate && unit(u).keeps_grads)) return;
    add(Act::kReduce, u);
    reducing_[static_cast<size_t>(unit(u).grad_buffer)] = u;
    order_.push_back(u);
  }

  void finish() {
    for (const int u : order_)
      if (reducing_[static_cast<size_t>(unit(u).grad_buffer)] == u)
        wait_for_reduction(static_cast<size_t>(unit(u).grad_buffer));
    if (kind_ == PassKind::kAccumulate) return;
    const int num_units = static_cast<int>(units_.size());
    for (int u = 0; u < num_units; ++u)
      if (unit(u).grad_buffer >= 0) add(Act::kStep, u);
    if (o_.strategy != Strategy::kShardOptimizer && !(o_.strategy == Strategy::kReplicate && (casts() || o_.offload)))
      return;
    for (int u = 0; u < num_units; ++u) gather(u);  // gathers the values that the owners changed
    for (int u = 0; u < num_units; ++u) add(Act::kWaitGather, u);
  }

  const Options& o_;
  const std::vector<UnitPlan>& units_;
  const PassKind kind_;
  const bool gathers_, again_;  // gathers in forward; gathers again in backward
  std::vector<int> forward_, backward_;
  std::vector<Action> actions_;
  std::vector<int> holder_, reducing_;
  std::vector<bool> gathered_;
  std::set<int> waited_for_;
  std::vector<int> order_;  // order of reductions
};

// Checks a list of actions one by one; it tracks which unit uses each buffer.
class ActionChecker {
 public:
  explicit ActionChecker(const Plan& plan)
      : units_(plan.units()),
        state_(units_.size(),
               plan.options().strategy == Strategy::kReplicate || plan.options().strategy == Strategy::kShardOptimizer
                   ? State::kHere
                   : State::kAway),
        holder_(static_cast<size_t>(plan.num_data_buffers()), -1),
        has_gradients_(units_.size(), false),
        writer_(static_cast<size_t>(plan.num_grad_buffers()), -1),
        reducing_(writer_) {}

  /// Checks the next action: empty, or the error.
  std::string play(Action action) {
    const auto [act, u] = action;
    if (u < 0 || static_cast<size_t>(u) >= units_.size()) return fmt::format("there is no unit {}", u);
    const UnitPlan& unit = units_[static_cast<size_t>(u)];
    State& s = state_[static_cast<size_t>(u)];
    int& held = holder_[static_cast<size_t>(unit.data_buffer)];
    int nobody = -1, none = -1;  // for a unit without gradients
    int& written = unit.grad_buffer >= 0 ? writer_[static_cast<size_t>(unit.grad_buffer)] : nobody;
    int& reduced = unit.grad_buffer >= 0 ? reducing_[static_cast<size_t>(unit.grad_buffer)] : none;
    switch (act) {
      case Act::kGather:
        if (held >= 0 && held != u)
          return fmt::format("{} is gathered over {}, which uses the buffer", name(u), name(held));
        held = u;
        s = State::kComing;
        break;
      case Act::kWaitGather:
        if (s == State::kAway) return fmt::format("{} is waited for before it is gathered", name(u));
        s = State::kHere;
        break;
      case Act::kRelease:
        if (held != u) return fmt::format("{} is released but not held", name(u));
        held = -1;
        s = State::kAway;
        break;
      case Act::kForward:
      case Act::kBackward:
        if (s != State::kHere) return fmt::format("{} is used before its gather was waited for", name(u));
        if (act == Act::kForward) break;
        if (reduced >= 0)
          return fmt::format("gradients of {} are written over those of {}, which are being reduced", name(u),
                             name(reduced));
        if (written >= 0 && written != u)
          return fmt::format("gradients of {} are written over those of {}, which were not reduced", name(u),
                             name(written));
        written = u;
        break;
      case Act::kReduce:
        if (written != u) return fmt::format("{} is reduced before its gradients are written", name(u));
        written = -1;
        reduced = u;
        break;
      case Act::kWaitReduce:
        if (reduced != u) return fmt::format("the reduction of {} is waited for but not under way", name(u));
        reduced = -1;
        has_gradients_[static_cast<size_t>(u)] = true;
        break;
      case Act::kStep:
        if (reduced == u || written == u) return fmt::format("{} is changed before its gradients are reduced", name(u));
        if (!has_gradients_[static_cast<size_t>(u)])
          return fmt::format("{} is changed but its gradients are never reduced", name(u));
        break;
    }
    return {};
  }

 private:
  enum class State : uint8_t { kAway, kComing, kHere };

  std::string name(int u) const { return fmt::format("unit {} '{}'", u, units_[static_cast<size_t>(u)].name); }

  const std::vector<UnitPlan>& units_;
  std::vector<State> state_;
  std::vector<int> holder_;  // of each data buffer
  std::vector<bool> has_gradients_;
  std::vector<int> writer_, reducing_;  // of each gradient buffer
};

}  // namespace

std::vector<Action> Plan::pass(PassKind kind, const Order& order) const { return Script(*this, kind, order).write(); }

Status check_actions(const Plan& plan, const std::vector<Action>& actions) {
  ActionChecker checker(plan);
  for (size_t i = 0; i < actions.size(); ++i)
    if (const std::string why = checker.play(actions[i]); !why.empty())
      return make_error(StatusCode::kInternal, "action {}: {}", i, why);
  return {};
}

}  // namespace rondo::fsdp
