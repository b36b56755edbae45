// One pass over the model, driven by the caller's uses of units. The plan's list gives the order. begin() runs all
// actions of the list before that use. end() then runs the following actions that need no waiting.
//
//   list     gather 1, gather 2, wait 1, FORWARD 1, release 1, gather 3, wait 2, FORWARD 2, ...
//            '------- begin(1) -------'             '------ end(1) ----' '-- begin(2)
//
// A unit that the caller skips takes part in all communication and contributes zeros. Therefore ranks may skip
// different units, as long as the uses of a rank do not overlap. A unit out of order is gathered at once, by an extra
// gather that is in no list. Its gradients are also reduced at once, unless it has its own gradient buffer; then the
// reduction waits for the list. Thread safety: one thread at a time.
#pragma once

#include <functional>
#include <vector>

#include "fsdp/engine_impl.h"

namespace rondo::fsdp {

class Engine::Pass {
 public:
  Pass(Engine& engine, Impl& impl, PassKind kind);

  Status begin(Act act, int unit);
  Status end(Act act, int unit);
  /// Runs all actions before the optimizer.
  Status finish();
  /// Runs the optimizer, or `instead`, and then gathers the changed parameters.
  Status step(const std::function<Status()>& instead);

  enum class Stage : uint8_t { kOpen, kFailed, kEnded };
  Stage stage() const { return stage_; }
  PassKind kind() const { return kind_; }
  /// The order in which units began forward and ended backward.
  const Order& seen() const { return seen_; }

 private:
  struct Use {
    int forward = 0;  // number of begun and not ended uses
    bool in_backward = false;
    bool forward_seen = false;
    bool backward_seen = false;
    uint64_t forward_since = 0, backward_since = 0;  // on trace_clock()
    bool off_list = false;                           // the last begin was out of order
    bool release_due = false, reduce_due = false;    // the list reached this action while the unit was in use
    bool used() const { return forward > 0 || in_backward; }
  };

  Use& use(int u) { return uses_[static_cast<size_t>(u)]; }
  size_t find(Act act, int u) const;
  Status come_to(Act act, int u);
  Status advance(size_t to);
  Status advance_eagerly();
  Status perform(const Action& a);
  Status fetch(int u);
  Status take_grads(int u);
  Status check_enclosed(int u) const;
  Status let_go(int u);
  Status end_forward(int u);
  Status end_backward(int u);

  Engine& engine_;
  Impl& impl_;
  const PassKind kind_;
  const std::vector<Action> actions_;
  size_t next_ = 0;
  std::vector<Use> uses_;
  Order seen_;
  bool backward_ = false;  // backward has begun
  Stage stage_ = Stage::kOpen;
};

}  // namespace rondo::fsdp
