// The engine on a fake device shared by processes: copies and flags in streams carry the data.
// labels: mp
// timeout: 120
// again with: FAKE_CUDA=queues=32,operations=16,late,delay_us=50
// links: host_kernels
#include "fsdp/fake_device.h"
#include "fsdp/hooks.h"

namespace rondo::fsdp::testing {
namespace {

TEST(FsdpDeviceProcesses, TrainAsOneProcessDoes) {
  for (const Strategy strategy : kStrategies)
    for (const bool offload : {false, true}) {
      rondo::testing::EmulatedCuda cuda(rondo::testing::FakeMachine::uniform(1));  // before processes are forked
      Setting s;
      s.plan = {.nranks = 2, .strategy = strategy, .offload = offload};
      s.memory = rondo::Memory::kCuda;
      s.communicator = "p2p_level = sys\n";
      s.device = [](Communicator& comm) { return std::make_shared<FakeDevice>(comm, Delays{500, 500}); };
      s.by = by_hooks({});
      expect_same_training(World::kProcesses, s);
    }
}

}  // namespace
}  // namespace rondo::fsdp::testing
