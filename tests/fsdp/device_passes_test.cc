// Passes on fake devices: same bits as one process, with the ranks' own parts on the device or in host memory.
// labels: unit tsan
// timeout: 240
// links: host_kernels
#include "fsdp/fake_device.h"
#include "fsdp/hooks.h"

namespace rondo::fsdp::testing {
namespace {

class FsdpDevicePass : public ::testing::TestWithParam<bool> {};  // offload
INSTANTIATE_TEST_SUITE_P(Offload, FsdpDevicePass, ::testing::Bool());

TEST_P(FsdpDevicePass, PassesByHooks) {
  for (const Strategy strategy : kStrategies)
    for (const Hooks& hooks :
         {Hooks{}, Hooks{.recompute = true}, Hooks{.dawdling = true}, Hooks{.late_forward = true}}) {
      Setting s;
      s.plan = {.nranks = 2, .strategy = strategy, .offload = GetParam()};
      s.by = by_hooks(hooks);
      s.as_planned = !hooks.late_forward;
      expect_same_on_devices(s);
    }
}

TEST_P(FsdpDevicePass, UnitsThatARankLeavesOutContributeZeros) {
  Setting s;
  s.net.layers = 4;
  s.net.skips = [](int rank, int layer) { return layer == rank; };
  s.plan = {.nranks = 2, .offload = GetParam()};
  s.optimizer.lr = 0.01f;
  s.by = by_hooks({});
  expect_same_on_devices(s, {}, 1e-6f);
}

// The other ranks adopt rank 0's order. A caller's optimizer changes the values of parts().
TEST_P(FsdpDevicePass, AnOrderAdoptedAndAnOptimizerOfTheCallers) {
  Setting s;
  s.plan = {.nranks = 2, .offload = GetParam()};
  s.optimizer = {.rule = Rule::kSgd, .lr = 0.5f};
  s.by = by_hooks({.adopt = true, .own_optimizer = true});
  expect_same_on_devices(s, {300, 300});
}

TEST_P(FsdpDevicePass, ACancelledPassLeavesTheEngineUsable) {
  for (const Strategy strategy : kStrategies) {
    Setting s;
    s.plan = {.nranks = 2, .strategy = strategy, .offload = GetParam()};
    s.as_planned = false;
    s.by = [](Engine& e, const TinyNet& net, int step, int micro_batches, int rank) -> Status {
      PassOn pass(e, net, 5);
      RONDO_TRY(e.begin_pass(PassKind::kTrain));
      RONDO_TRY(e.begin(Act::kForward, 0));
      for (int l = 0; l < net.layers; ++l) RONDO_TRY(forward_of(e, net, pass, l, rank, l + 1));
      RONDO_TRY(e.end(Act::kForward, 0));
      RONDO_TRY(e.begin(Act::kBackward, net.layers));
      compute(e, [at = floats(e.grad(net.layers, 0))] { at[0] = 1e9f; });
      RONDO_TRY(e.end(Act::kBackward, net.layers));
      RONDO_TRY(e.begin(Act::kBackward, net.layers - 1));
      RONDO_TRY(e.cancel_pass());
      return by_hooks({})(e, net, step, micro_batches, rank);
    };
    expect_same_on_devices(s);
  }
}

}  // namespace
}  // namespace rondo::fsdp::testing
