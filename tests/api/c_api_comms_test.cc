// The C ABI for communicators made from communicators: every function, its refusals, structs of another size.
// labels: unit tsan
// timeout: 60
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <thread>

#include "rondo/rondo.h"

namespace rondo::testing {
namespace {

// Both ranks of a pair, each in its own thread.
template <class Fn>
void on_both(rondo_comm* comms[2], Fn fn) {
  std::thread other([&] { fn(comms[1], 1); });
  fn(comms[0], 0);
  other.join();
}

void expect_sum(rondo_comm* comm, float expected) {
  float x = 1;
  EXPECT_EQ(rondo_all_reduce(comm, &x, &x, 1, RONDO_FLOAT32, RONDO_SUM, nullptr, nullptr), RONDO_OK)
      << rondo_last_error(comm);
  EXPECT_EQ(x, expected);
}

bool says(const rondo_comm* comm, const char* word) { return std::strstr(rondo_last_error(comm), word) != nullptr; }

class CApiComms : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(rondo_comm_init_all(comms_, 2, nullptr), RONDO_OK) << rondo_last_error(nullptr); }
  void TearDown() override {
    for (rondo_comm* comm : comms_) EXPECT_EQ(rondo_comm_destroy(comm), RONDO_OK);
  }
  rondo_comm* comms_[2] = {};
};

TEST_F(CApiComms, SplitShrinkAndFinalize) {
  on_both(comms_, [](rondo_comm* comm, int rank) {
    rondo_comm *pair = nullptr, *alone = nullptr, *none = comm, *again = nullptr;
    ASSERT_EQ(rondo_comm_split(comm, 0, -rank, &pair, nullptr), RONDO_OK) << rondo_last_error(comm);
    int new_rank = -1;
    EXPECT_EQ(rondo_comm_rank(pair, &new_rank), RONDO_OK);
    EXPECT_EQ(new_rank, 1 - rank);
    expect_sum(pair, 2);
    ASSERT_EQ(rondo_comm_split(comm, rank, 0, &alone, nullptr), RONDO_OK);
    expect_sum(alone, 1);
    ASSERT_EQ(rondo_comm_split(comm, RONDO_NO_COLOUR, 0, &none, nullptr), RONDO_OK);
    EXPECT_EQ(none, nullptr);
    ASSERT_EQ(rondo_comm_shrink(pair, nullptr, 0, &again, nullptr), RONDO_OK) << rondo_last_error(pair);
    expect_sum(again, 2);
    EXPECT_EQ(rondo_comm_finalize(pair), RONDO_OK);
    float x = 1;
    EXPECT_EQ(rondo_all_reduce(pair, &x, &x, 1, RONDO_FLOAT32, RONDO_SUM, nullptr, nullptr), RONDO_INVALID_ARGUMENT);
    EXPECT_TRUE(says(pair, "finalized")) << rondo_last_error(pair);
    for (rondo_comm* c : {alone, pair, again}) EXPECT_EQ(rondo_comm_destroy(c), RONDO_OK);
    if (rank == 0) {
      const int other = 1;
      rondo_comm* rest = nullptr;
      ASSERT_EQ(rondo_comm_shrink(comm, &other, 1, &rest, nullptr), RONDO_OK) << rondo_last_error(comm);
      expect_sum(rest, 1);
      EXPECT_EQ(rondo_comm_destroy(rest), RONDO_OK);
    }
  });
}

TEST_F(CApiComms, GrowMeetsANewcomer) {
  rondo_unique_id id;
  ASSERT_EQ(rondo_get_unique_id(&id), RONDO_OK);
  std::thread newcomer([&] {
    rondo_comm* comm = nullptr;
    ASSERT_EQ(rondo_comm_init_rank(&comm, 3, &id, 2, nullptr), RONDO_OK) << rondo_last_error(nullptr);
    expect_sum(comm, 3);
    EXPECT_EQ(rondo_comm_destroy(comm), RONDO_OK);
  });
  on_both(comms_, [&](rondo_comm* comm, int rank) {
    rondo_comm* larger = nullptr;
    ASSERT_EQ(rondo_comm_grow(comm, 3, rank == 0 ? &id : nullptr, &larger, nullptr), RONDO_OK) << rondo_last_error(comm);
    expect_sum(larger, 3);
    EXPECT_EQ(rondo_comm_destroy(larger), RONDO_OK);
  });
  newcomer.join();
}

TEST_F(CApiComms, NullAndNonsenseAreRefused) {
  rondo_comm* out = nullptr;
  rondo_unique_id id = {};
  EXPECT_EQ(rondo_comm_split(nullptr, 0, 0, &out, nullptr), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_comm_split(comms_[0], 0, 0, nullptr, nullptr), RONDO_INVALID_ARGUMENT);
  EXPECT_TRUE(says(comms_[0], "part")) << rondo_last_error(comms_[0]);
  EXPECT_EQ(rondo_comm_shrink(comms_[0], nullptr, 1, &out, nullptr), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_comm_shrink(comms_[0], nullptr, -1, &out, nullptr), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_comm_shrink(comms_[0], nullptr, 0, nullptr, nullptr), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_comm_grow(comms_[0], 3, &id, nullptr, nullptr), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_comm_grow(nullptr, 3, &id, &out, nullptr), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_comm_finalize(nullptr), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_abort_create(nullptr), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_abort_raise(nullptr), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_abort_free(nullptr), RONDO_OK);
}

TEST_F(CApiComms, AnAbortHandleEndsAnInit) {
  rondo_abort* abort = nullptr;
  ASSERT_EQ(rondo_abort_create(&abort), RONDO_OK);
  rondo_unique_id id;
  ASSERT_EQ(rondo_get_unique_id(&id), RONDO_OK);
  rondo_config config = RONDO_CONFIG_INIT;
  config.abort = abort;
  std::thread raiser([abort] { EXPECT_EQ(rondo_abort_raise(abort), RONDO_OK); });
  rondo_comm* comm = nullptr;
  EXPECT_EQ(rondo_comm_init_rank(&comm, 2, &id, 0, &config), RONDO_ABORTED) << rondo_last_error(nullptr);
  raiser.join();
  // Already raised: a waiting call ends at once.
  EXPECT_EQ(rondo_comm_init_rank(&comm, 2, &id, 1, &config), RONDO_ABORTED) << rondo_last_error(nullptr);
  EXPECT_EQ(rondo_abort_free(abort), RONDO_OK);
}

TEST_F(CApiComms, AConfigOfAnotherSizeIsRefused) {
  rondo_config config = RONDO_CONFIG_INIT;
  rondo_comm* comm = nullptr;
  for (const size_t bytes :
       {size_t{0}, offsetof(rondo_config, abort), sizeof(rondo_config) - 8, sizeof(rondo_config) + 8}) {
    config.size_bytes = bytes;
    EXPECT_EQ(rondo_comm_init_all(&comm, 1, &config), RONDO_INVALID_ARGUMENT);
    EXPECT_TRUE(says(nullptr, "config.size_bytes")) << rondo_last_error(nullptr);
  }
  config = RONDO_CONFIG_INIT;
  config.settings = "proto = nothing";
  EXPECT_EQ(rondo_comm_init_all(&comm, 1, &config), RONDO_INVALID_ARGUMENT);
  EXPECT_TRUE(says(nullptr, "config.settings:1")) << rondo_last_error(nullptr);
}

TEST_F(CApiComms, AWorkThatFailedMayOutliveItsCommunicator) {
  float x = 1;
  rondo_work* work = nullptr;
  ASSERT_EQ(rondo_all_reduce(comms_[0], &x, &x, 1, RONDO_FLOAT32, RONDO_SUM, nullptr, &work), RONDO_OK);
  ASSERT_EQ(rondo_comm_abort(comms_[0]), RONDO_OK);
  ASSERT_EQ(rondo_comm_destroy(comms_[0]), RONDO_OK);
  comms_[0] = nullptr;
  EXPECT_EQ(rondo_work_test(work), RONDO_ABORTED);
  EXPECT_EQ(rondo_work_wait(work), RONDO_ABORTED);
  EXPECT_TRUE(says(nullptr, "aborted")) << rondo_last_error(nullptr);
}

}  // namespace
}  // namespace rondo::testing
