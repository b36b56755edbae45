// The engine on fake devices: same bits as one process, with every strategy, prefetch, number of buffers and optimizer,
// whichever line is late, with the ranks' own parts on the device or in host memory.
// labels: unit tsan
// timeout: 240
// links: host_kernels
#include "fsdp/fake_device.h"
#include "fsdp/hooks.h"
#include "support/shared.h"

namespace rondo::fsdp::testing {
namespace {

class FsdpDevice : public ::testing::TestWithParam<bool> {};  // offload
INSTANTIATE_TEST_SUITE_P(Offload, FsdpDevice, ::testing::Bool());

TEST_P(FsdpDevice, EveryStrategyTrainsAsOneProcessDoes) {
  for (const int n : {1, 2, 3})
    for (const Strategy strategy : kStrategies) {
      Setting s;
      s.net.root = n != 2;
      s.plan = {.nranks = n, .strategy = strategy, .offload = GetParam()};
      expect_same_on_devices(s);
    }
}

TEST_P(FsdpDevice, PrefetchAndBuffersChangeNoBit) {
  for (const BackwardPrefetch order : {BackwardPrefetch::kPre, BackwardPrefetch::kPost})
    for (const int ahead : {0, 2})
      for (const int buffers : {1, 3}) {
        Setting s;
        s.net.layers = 4;
        s.plan = {.nranks = 2,
                  .forward_prefetch = ahead,
                  .backward_prefetch = ahead,
                  .backward_order = order,
                  .data_buffers = buffers,
                  .grad_buffers = buffers,
                  .offload = GetParam()};
        expect_same_on_devices(s);
      }
}

TEST_P(FsdpDevice, MicroBatchesAddUp) {
  for (const Strategy strategy : kStrategies) {
    Setting s;
    s.net.root = false;
    s.plan = {.nranks = 2, .strategy = strategy, .offload = GetParam()};
    s.micro_batches = 3;
    s.optimizer.lr = 0.01f;
    const bool whole = strategy == Strategy::kReplicate || strategy == Strategy::kShardOptimizer;
    expect_same_on_devices(s, {}, whole ? 1e-6f : 0);
  }
}

TEST_P(FsdpDevice, HybridTrainsAsOneProcessDoes) {
  Setting s;
  s.plan = {.nranks = 4, .shard_ranks = 2, .offload = GetParam()};
  s.optimizer.lr = 0.01f;
  expect_same_on_devices(s, {}, 1e-6f);  // first within the groups, then across
}

TEST_P(FsdpDevice, EveryOptimizer) {
  for (const Rule rule : {Rule::kSgd, Rule::kAdam, Rule::kAdamW, Rule::kAdadelta})
    for (const float momentum : {0.0f, 0.9f}) {
      if (rule != Rule::kSgd && momentum == 0) continue;
      Setting s;
      s.plan = {.nranks = 2, .offload = GetParam()};
      s.optimizer = {.rule = rule};
      s.optimizer.lr = 0.05f;
      s.optimizer.weight_decay = 0.01f;
      s.optimizer.momentum = momentum;
      expect_same_on_devices(s);
    }
}

// Each line in turn lags behind the other: only events keep compute and communication in order.
TEST_P(FsdpDevice, WhicheverLineIsLateTheBitsStay) {
  for (const Delays& delays : {Delays{2000, 0}, Delays{0, 2000}, Delays{500, 500}})
    for (const Strategy strategy : kStrategies)
      for (const bool hooks : {false, true}) {
        // Under a sanitizer half of them, with all pairs.
        if (rondo::testing::kSanitized && (hooks == (delays.compute_us == 0)) == (static_cast<int>(strategy) % 2 == 0))
          continue;
        Setting s;
        s.net = {.layers = 4, .root = hooks};
        s.plan = {.nranks = 2, .strategy = strategy, .offload = GetParam()};
        s.steps = 3;
        s.micro_batches = hooks ? 1 : 2;
        if (hooks) s.by = by_hooks({});
        const bool whole = strategy == Strategy::kReplicate || strategy == Strategy::kShardOptimizer;
        s.optimizer.lr = whole && !hooks ? 0.01f : 1;
        expect_same_on_devices(s, delays, whole && !hooks ? 1e-6f : 0);
      }
}

}  // namespace
}  // namespace rondo::fsdp::testing
