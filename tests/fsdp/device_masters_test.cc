// The caller's changes of masters, on a device in the compute line or with offload on the host, and gathers of them: in
// call order, however late a line is.
// labels: unit tsan
// timeout: 60
// links: host_kernels
#include <span>

#include "fsdp/fake_device.h"
#include "fsdp/hooks.h"

namespace rondo::fsdp::testing {
namespace {

template <class Fn>
void on_two_ranks(Strategy strategy, bool offload, Delays delays, const Fn& fn) {
  rondo::testing::EmulatedCuda cuda(rondo::testing::FakeMachine::uniform(2));
  rondo::testing::SpawnOptions options;
  options.config = rondo::testing::device_config("device_blocks = -3");
  spawn(
      World::kThreads, 2,
      [&](Communicator& comm) {
        const auto plan = Plan::build(TinyNet().model(), {.nranks = 2, .strategy = strategy, .offload = offload});
        ASSERT_TRUE(plan.ok());
        auto made = Engine::create(*plan, comm,
                                   {.optimizer = {.rule = Rule::kSgd, .lr = 1},
                                    .deterministic = true,
                                    .device = std::make_shared<FakeDevice>(comm, delays)});
        ASSERT_TRUE(made.ok()) << made.status().to_string();
        fill(**made);
        fn(**made, comm.rank());
      },
      options);
  EXPECT_EQ(cuda.fake().leaks(), "");
}

void set_all(const std::vector<Part>& parts, float value) {
  for (const Part& p : parts) std::fill_n(static_cast<float*>(p.master), p.num_elems, value);
}
void set_late(Engine& e, float value) {
  compute(e, [parts = e.parts(), value] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    set_all(parts, value);
  });
}

// Whole parameters, when their gather is done.
void expect_all(Engine& e, float value) {
  ASSERT_TRUE(e.device().synchronize(Line::kCompute).ok());
  for (int u = 0; u < 4; ++u)
    for (size_t t = 0; t < e.plan().units()[static_cast<size_t>(u)].tensors.size(); ++t) {
      const float* const p = floats(e.data(u, t));
      ASSERT_NE(p, nullptr);
      const uint64_t n = e.plan().units()[static_cast<size_t>(u)].placed[t].num_elems;
      EXPECT_EQ(std::count(p, p + n, value), static_cast<ptrdiff_t>(n)) << "unit " << u << ", tensor " << t;
    }
}

TEST(FsdpDeviceMasters, ChangedInTheComputeLineAndGathered) {
  on_two_ranks(Strategy::kShardOptimizer, false, {}, [](Engine& e, Rank) {
    for (const float value : {1.0f, 2.0f}) {
      set_late(e, value);
      ASSERT_TRUE(e.masters_changed().ok());
      expect_all(e, value);
    }
  });
}

TEST(FsdpDeviceMasters, ChangedByAnOptimizerOfTheCallers) {
  on_two_ranks(Strategy::kShardOptimizer, false, {}, [](Engine& e, Rank) {
    for (const float value : {1.0f, 2.0f}) {
      ASSERT_TRUE(e.begin_pass(PassKind::kTrain).ok());
      ASSERT_TRUE(e.end_pass().ok());
      const Status stepped = e.step([&]() -> Status {
        set_late(e, value);
        return {};
      });
      ASSERT_TRUE(stepped.ok()) << stepped.to_string();
      expect_all(e, value);
    }
  });
}

// A gather's copies of the host's masters are done when parts() returns.
TEST(FsdpDeviceMasters, OffloadedOnesMayBeChangedAfterParts) {
  on_two_ranks(Strategy::kShardOptimizer, true, {0, 20000}, [](Engine& e, Rank) {
    set_all(e.parts(), 3);
    ASSERT_TRUE(e.masters_changed().ok());
    set_all(e.parts(), 4);
    expect_all(e, 3);
  });
}

// The last step's parameters are read before the next ones come, even if nothing is released in between.
TEST(FsdpDeviceMasters, ReadLateAndGatheredAnew) {
  for (const bool offload : {false, true})
    on_two_ranks(Strategy::kShardOptimizer, offload, {}, [&](Engine& e, Rank) {
      change_parts(e, [parts = e.parts()] { set_all(parts, 5); });
      ASSERT_TRUE(e.masters_changed().ok());
      int64_t seen = 0, all = 0;
      std::vector<std::span<const float>> whole;
      for (int u = 0; u < 4; ++u) {
        whole.emplace_back(floats(e.data(u, 0)), e.plan().units()[static_cast<size_t>(u)].placed[0].num_elems);
        all += static_cast<int64_t>(whole.back().size());
      }
      compute(e, [&seen, whole] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        for (const auto& w : whole) seen += std::count(w.begin(), w.end(), 5.0f);
      });
      change_parts(e, [parts = e.parts()] { set_all(parts, 6); });
      ASSERT_TRUE(e.masters_changed().ok());
      expect_all(e, 6);
      EXPECT_EQ(seen, all);
    });
}

}  // namespace
}  // namespace rondo::fsdp::testing
