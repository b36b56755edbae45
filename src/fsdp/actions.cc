// The order of a training step, and the check of what makes it safe.
#include <fmt/format.h>

#include <algorithm>

#include "rondo/fsdp/plan.h"

namespace rondo::fsdp {
namespace {

// Writes a step down, knowing at each moment who holds which shared buffer.
class Script {
 public:
  explicit Script(const Plan& plan, bool has_root, bool reduces)
      : plan_(plan),
        o_(plan.options()),
        units_(plan.units()),
        first_(has_root ? 1 : 0),
        last_(static_cast<int>(units_.size()) - 1),
        reduces_(reduces),
        gathers_(o_.strategy == Strategy::kShardGradients || o_.strategy == Strategy::kShardAll),
        holder_(static_cast<size_t>(plan.num_data_buffers()), -1),
        reducing_(static_cast<size_t>(plan.num_grad_buffers()), -1),
        gathered_(units_.size(), false) {}

  std::vector<Action> write() {
    forward();
    backward();
    finish();
    return std::move(actions_);
  }

 private:
  void add(Act act, int unit) { actions_.push_back({act, unit}); }
  const UnitPlan& unit(int u) const { return units_[static_cast<size_t>(u)]; }
  int& holder(int u) { return holder_[static_cast<size_t>(unit(u).data_buffer)]; }
  bool has(int u) const { return gathered_[static_cast<size_t>(u)]; }

  void gather(int u) {
    add(Act::kGather, u);
    holder(u) = u;
    gathered_[static_cast<size_t>(u)] = true;
  }
  void release(int u) {
    add(Act::kRelease, u);
    holder(u) = -1;
    gathered_[static_cast<size_t>(u)] = false;
  }
  // As far ahead as buffers are free.
  void gather_ahead(int from, int to, int by) {
    for (int u = from; u != to + by && u >= first_ && u <= last_; u += by) {
      if (has(u)) continue;
      if (holder(u) >= 0) return;
      gather(u);
    }
  }

  void forward() {
    if (gathers_ && first_ == 1) gather(0);
    if (first_ == 1) {
      if (gathers_) add(Act::kWaitGather, 0);
      // The first unit's gather is under way while the root begins.
      if (gathers_) gather_ahead(first_, std::min(first_ + o_.forward_prefetch - 1, last_), 1);
      add(Act::kForward, 0);
    }
    for (int u = first_; u <= last_; ++u) {
      if (gathers_) {
        if (!has(u)) gather(u);
        gather_ahead(u + 1, std::min(u + o_.forward_prefetch, last_), 1);
        add(Act::kWaitGather, u);
      }
      add(Act::kForward, u);
      const bool stays = o_.strategy != Strategy::kShardAll || (u == last_ && o_.keep_last);
      if (!stays) release(u);
    }
  }

  void backward() {
    for (int u = last_; u >= first_; --u) {
      const bool again = o_.strategy == Strategy::kShardAll;
      if (again) {
        const bool kept = u == last_ && o_.keep_last;
        if (!has(u)) gather(u);
        if (!kept) add(Act::kWaitGather, u);
        if (o_.backward_order == BackwardPrefetch::kPre) gather_ahead(u - 1, u - o_.backward_prefetch, -1);
      }
      compute_gradients(u);
      if (gathers_) release(u);
      if (again && o_.backward_order == BackwardPrefetch::kPost) gather_ahead(u - 1, u - o_.backward_prefetch, -1);
      reduce(u);
    }
    if (first_ == 0) return;
    compute_gradients(0);
    if (gathers_) release(0);
    reduce(0);
  }

  bool casts() const {
    return std::any_of(units_.begin(), units_.end(), [](const UnitPlan& u) {
      return std::any_of(u.segments.begin(), u.segments.end(), [](const Segment& s) { return s.param != s.master; });
    });
  }
  void wait_for_reduction(size_t buffer) {
    int& pending = reducing_[buffer];
    if (pending < 0) return;
    add(Act::kWaitReduce, pending);
    pending = -1;
  }
  void compute_gradients(int u) {
    const int buffer = unit(u).grad_buffer;
    if (buffer >= 0) wait_for_reduction(static_cast<size_t>(buffer));
    add(Act::kBackward, u);
  }
  // Gradients that others take the place of are reduced in every micro-batch, and added to what their owners have.
  void reduce(int u) {
    if (unit(u).grad_buffer < 0 || (!reduces_ && unit(u).keeps_grads)) return;
    add(Act::kReduce, u);
    reducing_[static_cast<size_t>(unit(u).grad_buffer)] = u;
    order_.push_back(u);
  }

  void finish() {
    for (const int u : order_)
      if (reducing_[static_cast<size_t>(unit(u).grad_buffer)] == u)
        wait_for_reduction(static_cast<size_t>(unit(u).grad_buffer));
    if (!reduces_) return;
    for (int u = 0; u <= last_; ++u)
      if (unit(u).grad_buffer >= 0) add(Act::kStep, u);
    if (o_.strategy != Strategy::kShardOptimizer && !(o_.strategy == Strategy::kReplicate && casts())) return;
    for (int u = 0; u <= last_; ++u) gather(u);  // what their owners have changed
    for (int u = 0; u <= last_; ++u) add(Act::kWaitGather, u);
  }

  const Plan& plan_;
  const Options& o_;
  const std::vector<UnitPlan>& units_;
  const int first_, last_;
  const bool reduces_, gathers_;
  std::vector<Action> actions_;
  std::vector<int> holder_, reducing_;
  std::vector<bool> gathered_;
  std::vector<int> order_;  // of reductions
};

}  // namespace

std::vector<Action> Plan::step(bool reduces) const { return Script(*this, has_root_, reduces).write(); }

Status check_actions(const Plan& plan, const std::vector<Action>& actions) {
  const auto& units = plan.units();
  const bool resident_from_start =
      plan.options().strategy == Strategy::kReplicate || plan.options().strategy == Strategy::kShardOptimizer;
  enum class State : uint8_t { kAway, kComing, kHere };
  std::vector<State> state(units.size(), resident_from_start ? State::kHere : State::kAway);
  std::vector<int> holder(static_cast<size_t>(plan.num_data_buffers()), -1);
  std::vector<int> writer(static_cast<size_t>(plan.num_grad_buffers()), -1), reducing = writer;
  auto name = [&](int u) { return fmt::format("unit {} '{}'", u, units[static_cast<size_t>(u)].name); };
  auto wrong = [&](size_t at, const std::string& why) {
    return Status(StatusCode::kInternal, fmt::format("action {}: {}", at, why));
  };
  for (size_t i = 0; i < actions.size(); ++i) {
    const auto [act, u] = actions[i];
    if (u < 0 || static_cast<size_t>(u) >= units.size()) return wrong(i, fmt::format("there is no unit {}", u));
    const UnitPlan& unit = units[static_cast<size_t>(u)];
    State& s = state[static_cast<size_t>(u)];
    int& held = holder[static_cast<size_t>(unit.data_buffer)];
    int nobody = -1;
    int& written = unit.grad_buffer >= 0 ? writer[static_cast<size_t>(unit.grad_buffer)] : nobody;
    int none = -1;
    int& reduced = unit.grad_buffer >= 0 ? reducing[static_cast<size_t>(unit.grad_buffer)] : none;
    switch (act) {
      case Act::kGather:
        if (held >= 0 && held != u)
          return wrong(i, fmt::format("{} is gathered over {}, which uses the buffer", name(u), name(held)));
        held = u;
        s = State::kComing;
        break;
      case Act::kWaitGather:
        if (s == State::kAway) return wrong(i, fmt::format("{} is waited for, and not gathered", name(u)));
        s = State::kHere;
        break;
      case Act::kForward:
      case Act::kBackward:
        if (s != State::kHere) return wrong(i, fmt::format("{} is used before its gather was waited for", name(u)));
        if (act == Act::kForward || unit.grad_buffer < 0) break;
        if (reduced >= 0)
          return wrong(i, fmt::format("gradients of {} are written over those of {}, which are being "
                                      "reduced",
                                      name(u), name(reduced)));
        if (written >= 0 && written != u)
          return wrong(i, fmt::format("gradients of {} are written over those of {}, which were not reduced", name(u),
                                      name(written)));
        written = u;
        break;
      case Act::kRelease:
        if (held != u) return wrong(i, fmt::format("{} is released, and not held", name(u)));
        held = -1;
        s = State::kAway;
        break;
      case Act::kReduce:
        if (written != u) return wrong(i, fmt::format("{} is reduced before its gradients are there", name(u)));
        written = -1;
        reduced = u;
        break;
      case Act::kWaitReduce:
        if (reduced != u) return wrong(i, fmt::format("the reduction of {} is waited for, and not under way", name(u)));
        reduced = -1;
        break;
      case Act::kStep:
        if (reduced == u || written == u)
          return wrong(i, fmt::format("{} is changed before its gradients are reduced", name(u)));
        break;
    }
  }
  return {};
}

}  // namespace rondo::fsdp
