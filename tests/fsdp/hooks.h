// Trains a TinyNet by begin and end of uses, like a framework's hooks.
#pragma once

#include "fsdp/training.h"

namespace rondo::fsdp::testing {

inline float* floats(void* p) { return static_cast<float*>(p); }

/// Variants of a framework's hooks.
struct Hooks {
  bool recompute = false;        // runs forward again within backward
  bool recompute_first = false;  // runs forward again before backward begins, as autograd's recomputation does
  bool overlapping = false;      // a unit's backward begins before the next higher one's has ended
  std::vector<int> order = {};   // order of layers in forward, by unit; empty: model order
  bool adopt = false;
  bool own_optimizer = false;  // SGD without momentum, by parts()
  bool dawdling = false;       // ranks are delayed by random times
  bool detached = false;       // a rank leaves units out only in backward
  bool late_forward = false;   // repeats the last layer's forward after its backward
};

inline Status forward_of(Engine& e, const TinyNet& net, PassOn& pass, int layer, int rank, int unit,
                         bool detached = false) {
  if (net.skipped(rank, layer)) {
    pass.skip_layer(layer);
    if (!detached) return {};
    RONDO_TRY(e.begin(Act::kForward, unit));
    return e.end(Act::kForward, unit);
  }
  RONDO_TRY(e.begin(Act::kForward, unit));
  pass.forward_layer(layer, floats(e.data(unit, 0)), floats(e.data(unit, 1)));
  return e.end(Act::kForward, unit);
}

inline Status one_pass(Engine& e, const TinyNet& net, const Hooks& hooks, uint64_t data, int rank) {
  PassOn pass(e, net, data);
  std::mt19937 random(static_cast<uint32_t>(data));
  auto pause = [&] {
    if (hooks.dawdling) dawdle(random);
  };
  const int first = net.first();
  auto unit_of = [&](int layer) {
    return hooks.order.empty() ? first + layer : hooks.order[static_cast<size_t>(layer)];
  };
  if (net.root) RONDO_TRY(e.begin(Act::kForward, 0));
  for (int l = 0; l < net.layers; ++l) {
    RONDO_TRY(forward_of(e, net, pass, l, rank, unit_of(l), hooks.detached));
    pause();
  }
  if (net.root) {
    RONDO_TRY(e.end(Act::kForward, 0));
    RONDO_TRY(e.begin(Act::kBackward, 0));
  }
  pass.start_backward(net.root ? floats(e.data(0, 0)) : nullptr);
  if (net.root) pass.backward_head(floats(e.grad(0, 0)));
  int open = -1;
  for (int l = net.layers - 1; l >= 0; --l) {
    if (net.skipped(rank, l)) continue;
    const int u = unit_of(l);
    if (hooks.recompute_first) RONDO_TRY(forward_of(e, net, pass, l, rank, u));
    RONDO_TRY(e.begin(Act::kBackward, u));
    if (open >= 0) RONDO_TRY(e.end(Act::kBackward, open));
    if (hooks.recompute) RONDO_TRY(forward_of(e, net, pass, l, rank, u));
    pause();
    pass.backward_layer(l, floats(e.data(u, 0)), floats(e.grad(u, 0)), floats(e.grad(u, 1)));
    if (hooks.overlapping) open = u;
    else RONDO_TRY(e.end(Act::kBackward, u));
    if (!hooks.late_forward || l + 1 < net.layers) continue;
    RONDO_TRY(e.begin(Act::kForward, u));
    RONDO_TRY(e.end(Act::kForward, u));
  }
  if (open >= 0) RONDO_TRY(e.end(Act::kBackward, open));
  return net.root ? e.end(Act::kBackward, 0) : Status();
}

inline Step by_hooks(const Hooks& hooks) {
  return [hooks](Engine& e, const TinyNet& net, int step, int micro_batches, int rank) -> Status {
    for (int m = 0; m < micro_batches; ++m) {
      RONDO_TRY(e.begin_pass(m + 1 == micro_batches ? PassKind::kTrain : PassKind::kAccumulate));
      RONDO_TRY(one_pass(e, net, hooks, static_cast<uint64_t>((step * 100 + m) * 100 + rank), rank));
      RONDO_TRY(e.end_pass());
    }
    if (hooks.adopt && step == 1) RONDO_TRY(e.adopt_order());
    if (!hooks.own_optimizer) return e.step();
    return e.step([&]() -> Status {
      change_parts(e, [parts = e.parts(), lr = e.optimizer().lr] {
        for (const Part& p : parts)
          for (uint64_t i = 0; i < p.num_elems; ++i) static_cast<float*>(p.master)[i] -= lr * p.grad[i];
      });
      return {};
    });
  };
}

constexpr Strategy kStrategies[] = {Strategy::kReplicate, Strategy::kShardOptimizer, Strategy::kShardGradients,
                                    Strategy::kShardAll};

}  // namespace rondo::fsdp::testing
