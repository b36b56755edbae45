// One pass over the model as it happens: the plan's list, followed by what the caller uses next. The parts of the list
// that lie before a use are done when it comes; what needs no waiting is done as soon as a use ends.
//
//   list     gather 1, gather 2, wait 1, FORWARD 1, release 1, gather 3, wait 2, FORWARD 2, ...
//            '------- begin(1) -------'             '------ end(1) ----' '-- begin(2)
//
// A unit that is passed over takes part in all communication and contributes zeros: so ranks may leave out different
// ones, as long as the uses of a rank do not overlap. A unit out of order gets its parameters on the spot, by a gather
// that no list has, and its gradients are reduced on the spot, but for those that have a buffer of their own: they wait
// for the list.
//
// Thread safety: one thread at a time.
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
  /// All up to the optimizer.
  Status finish();
  /// The rest: the optimizer, or what is called in its place, and gathers of what it has changed.
  Status step(const std::function<Status()>& instead);

  enum class Stage : uint8_t { kOpen, kFailed, kEnded };
  Stage stage() const { return stage_; }
  PassKind kind() const { return kind_; }
  /// In which order units were begun in forward, and ended in backward.
  const Order& seen() const { return seen_; }

 private:
  struct Use {
    int forward = 0;  // begun, and not ended
    bool in_backward = false;
    bool forward_seen = false;
    bool backward_seen = false;
    uint64_t forward_since = 0, backward_since = 0;  // on trace_clock()
    bool off_list = false;                           // the last begin was out of order
    bool release_due = false, reduce_due = false;    // the list has come to it while the unit was in use
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
  bool backward_ = false;  // has begun
  Stage stage_ = Stage::kOpen;
};

}  // namespace rondo::fsdp
