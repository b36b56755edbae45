// pthread_cancel() of a thread in a call: the call ends normally, then the thread ends, and the communicator can be
// destroyed.
// labels: mp
#include <gtest/gtest.h>
#include <pthread.h>

#include <functional>
#include <optional>
#include <string>

#include "rondo/communicator.h"
#include "support/shared.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

struct CancelledCall {
  std::function<Status()> call;
  std::optional<Status> ended;  // result of the call; empty: it never returned
};

// Makes the call in a thread that was already cancelled, so that the first cancellation point ends it.
void expect_returns(const char* name, StatusCode code, std::function<Status()> fn) {
  CancelledCall call{std::move(fn), std::nullopt};
  pthread_t thread;
  ASSERT_EQ(pthread_create(
                &thread, nullptr,
                [](void* arg) -> void* {
                  auto& mine = *static_cast<CancelledCall*>(arg);
                  pthread_cancel(pthread_self());
                  mine.ended = mine.call();
                  pthread_testcancel();
                  return nullptr;
                },
                &call),
            0);
  void* result = nullptr;
  pthread_join(thread, &result);
  EXPECT_EQ(result, PTHREAD_CANCELED) << name;
  ASSERT_TRUE(call.ended.has_value()) << name << " did not return: the thread ended inside of it";
  EXPECT_EQ(call.ended->code(), code) << name << ": " << call.ended->to_string();
}

class Cancel : public WorldTest {};

TEST_P(Cancel, TheCallReturnsAndTheThreadEndsAfterIt) {
  Shared<SharedCounter> shared;
  SharedCounter& done = *shared;
  SpawnOptions options;
  options.config.deadline_s = 0.2;
  options.config.init_deadline_s = 20;
  spawn_owning(
      GetParam(), 2,
      [&](std::unique_ptr<Communicator> comm) -> Status {
        float x[4] = {1, 1, 1, 1};
        Config soon;
        soon.init_deadline_s = 2;  // of its splits
        soon.deadline_s = 0.2;
        RONDO_TRY_ASSIGN(auto second, comm->split(0, comm->rank(), soon));
        if (comm->rank() == 0) {  // rank 1 makes no call
          expect_returns("split", StatusCode::kTimeout, [&] { return second->split(0, 0).status(); });
          expect_returns("all_reduce", StatusCode::kTimeout,
                         [&] { return comm->all_reduce(x, x, 4, Dtype::kFloat32, Op::kSum); });
          expect_returns("wait", StatusCode::kTimeout, [&] {
            Work work;
            RONDO_TRY(second->all_reduce(x, x, 4, Dtype::kFloat32, Op::kSum, nullptr, &work));
            return work.wait();
          });
          expect_returns("destroy", StatusCode::kOk, [&] {
            comm->abort();
            comm.reset();
            second->abort();
            second.reset();
            return Status();
          });
          done.add();
          return {};
        }
        EXPECT_TRUE(done.wait_at_least(1, 40));
        return {};
      },
      options);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Cancel, ::testing::Values(World::kProcesses, World::kTcp),
                         [](const auto& info) { return std::string(world_name(info.param)); });

}  // namespace
}  // namespace rondo::testing
