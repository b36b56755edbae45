// labels: mp
// timeout: 120
#include "fsdp/engine_suite.h"
#include "rondo/fsdp/checkpoint.h"
#include "support/forked_child.h"

namespace rondo::fsdp::testing {
namespace {

// An engine's memory belongs to the process, so a child may read its copy. Collective calls are refused.
TEST(FsdpForks, TheChildIsRefusedAndTheParentTrainsOn) {
  for (const World world : {World::kProcesses, World::kTcp})
    for (const Strategy strategy : {Strategy::kShardAll, Strategy::kReplicate}) {
      Setting s;
      s.plan.nranks = 3;
      s.plan.strategy = strategy;
      s.by = [](Engine& engine, const TinyNet& net, int step, int micro_batches, int rank) -> Status {
        RONDO_TRY(train_step(engine, net, step, micro_batches, rank));
        const std::string wrong = rondo::testing::in_child([&]() -> std::string {
          std::string text;
          const auto refused = [&text](const char* call, const Status& status) {
            if (status.message().find("forked") == std::string_view::npos)
              text += std::string(call) + ": " + (status.ok() ? "ok" : status.to_string()) + "; ";
          };
          refused("train_step", train_step(engine, net, step + 1, micro_batches, rank));
          const std::string folder = ::testing::TempDir() + "/of_a_child";
          refused("save", save(engine, folder));
          refused("save_full", save_full(engine, folder));
          refused("load", load(engine, folder).status());
          refused("create", Engine::create(engine.plan(), engine.communicator(), {}).status());
          if (std::filesystem::exists(folder)) text += "a file was written";
          return text;
        });
        EXPECT_EQ(wrong, "");
        return {};
      };
      expect_same_training(world, s);
    }
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Processes, FsdpEngine, ::testing::Values(World::kProcesses));

}  // namespace rondo::fsdp::testing
