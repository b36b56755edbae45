// The C ABI: every function of rondo.h, its refusals, and rondo_last_error. One thread drives two ranks.
// labels: unit tsan
// timeout: 60
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "rondo/rondo.h"
#include "rondo/status.h"
#include "support/shared.h"

namespace rondo::testing {
namespace {

class CApi : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(rondo_comm_init_all(comms_, 2, nullptr), RONDO_OK) << rondo_last_error(nullptr); }
  void TearDown() override {
    for (rondo_comm* comm : comms_) EXPECT_EQ(rondo_comm_destroy(comm), RONDO_OK);
  }
  // Checks the refusal's code and the words in its message.
  void refused(rondo_status got, rondo_status wanted, std::initializer_list<const char*> words,
               const rondo_comm* comm) {
    const std::string text = rondo_last_error(comm);
    EXPECT_EQ(got, wanted) << text;
    for (const char* word : words)
      EXPECT_NE(text.find(word), std::string::npos) << "no \"" << word << "\" in: " << text;
  }
  void refused(rondo_status got, rondo_status wanted, std::initializer_list<const char*> words) {
    refused(got, wanted, words, comms_[0]);
  }
  // Both ranks sum: the communicator works.
  void expect_works() {
    float x[2][3] = {{1, 2, 3}, {10, 20, 30}};
    ASSERT_EQ(rondo_group_start(), RONDO_OK);
    for (int r = 0; r < 2; ++r)
      ASSERT_EQ(rondo_all_reduce(comms_[r], x[r], x[r], 3, RONDO_FLOAT32, RONDO_SUM, nullptr, nullptr), RONDO_OK);
    ASSERT_EQ(rondo_group_end(), RONDO_OK) << rondo_last_error(comms_[0]);
    for (int r = 0; r < 2; ++r)
      for (int i = 0; i < 3; ++i) EXPECT_EQ(x[r][i], 11 * (i + 1));
  }
  rondo_comm* comms_[2] = {};
};

TEST_F(CApi, VersionAndStatusTexts) {
  EXPECT_STREQ(rondo_version(), "0.1.0");
#define RONDO_X(name, value, text, remedy) EXPECT_STREQ(rondo_status_string(static_cast<rondo_status>(value)), text);
  RONDO_STATUS_CODES(RONDO_X)
#undef RONDO_X
  EXPECT_NE(rondo_status_string(static_cast<rondo_status>(12345)), nullptr);
}

TEST_F(CApi, RankSizeAndError) {
  for (int r = 0; r < 2; ++r) {
    int rank = -1, size = -1;
    EXPECT_EQ(rondo_comm_rank(comms_[r], &rank), RONDO_OK);
    EXPECT_EQ(rondo_comm_size(comms_[r], &size), RONDO_OK);
    EXPECT_EQ(rank, r);
    EXPECT_EQ(size, 2);
    EXPECT_EQ(rondo_comm_error(comms_[r]), RONDO_OK);
  }
  int unused = 0;
  EXPECT_EQ(rondo_comm_rank(nullptr, &unused), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_comm_size(comms_[0], nullptr), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_comm_error(nullptr), RONDO_INVALID_ARGUMENT);
}

TEST_F(CApi, TheThreeCollectives) {
  const float in[2][4] = {{1, 2, 3, 4}, {10, 20, 30, 40}};
  float sum[2][4] = {}, half[2][2] = {}, all[2][8] = {};
  ASSERT_EQ(rondo_group_start(), RONDO_OK);
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(rondo_all_reduce(comms_[r], in[r], sum[r], 4, RONDO_FLOAT32, RONDO_SUM, nullptr, nullptr), RONDO_OK);
    EXPECT_EQ(rondo_reduce_scatter(comms_[r], in[r], half[r], 2, RONDO_FLOAT32, RONDO_MAX, nullptr, nullptr), RONDO_OK);
    EXPECT_EQ(rondo_all_gather(comms_[r], in[r], all[r], 4, RONDO_FLOAT32, nullptr, nullptr), RONDO_OK);
  }
  ASSERT_EQ(rondo_group_end(), RONDO_OK) << rondo_last_error(comms_[0]);
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(sum[r][3], 44);
    EXPECT_EQ(half[r][0], in[1][2 * r]);
    EXPECT_EQ(std::memcmp(all[r], in, sizeof(in)), 0);
  }
}

TEST_F(CApi, RootedCollectivesAndAllToAll) {
  const float in[2][4] = {{1, 2, 3, 4}, {10, 20, 30, 40}};
  float given[2][4] = {}, sum[4] = {}, swapped[2][4] = {}, gathered[8] = {}, part[2][2] = {};
  ASSERT_EQ(rondo_group_start(), RONDO_OK);
  for (int r = 0; r < 2; ++r) {  // buffers that a rank does not use are NULL
    const bool is_root = r == 1;
    EXPECT_EQ(rondo_broadcast(comms_[r], is_root ? in[r] : nullptr, given[r], 4, RONDO_FLOAT32, 1, nullptr, nullptr), RONDO_OK);
    EXPECT_EQ(rondo_reduce(comms_[r], in[r], is_root ? sum : nullptr, 4, RONDO_FLOAT32, RONDO_SUM, 1, nullptr, nullptr), RONDO_OK);
    EXPECT_EQ(rondo_all_to_all(comms_[r], in[r], swapped[r], 2, RONDO_FLOAT32, nullptr, nullptr), RONDO_OK);
    EXPECT_EQ(rondo_gather(comms_[r], in[r], is_root ? gathered : nullptr, 4, RONDO_FLOAT32, 1, nullptr, nullptr), RONDO_OK);
    EXPECT_EQ(rondo_scatter(comms_[r], is_root ? in[r] : nullptr, part[r], 2, RONDO_FLOAT32, 1, nullptr, nullptr), RONDO_OK);
    EXPECT_EQ(rondo_barrier(comms_[r], nullptr, nullptr), RONDO_OK);
  }
  ASSERT_EQ(rondo_group_end(), RONDO_OK) << rondo_last_error(comms_[0]);
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(std::memcmp(given[r], in[1], sizeof in[1]), 0);
    EXPECT_EQ(swapped[r][0], in[0][2 * r]);
    EXPECT_EQ(swapped[r][3], in[1][2 * r + 1]);
    EXPECT_EQ(part[r][1], in[1][2 * r + 1]);
  }
  EXPECT_EQ(sum[2], 33);
  EXPECT_EQ(std::memcmp(gathered, in, sizeof in), 0);
  refused(rondo_reduce(comms_[0], in[0], nullptr, 4, RONDO_FLOAT32, RONDO_SUM, 2, nullptr, nullptr),
          RONDO_INVALID_ARGUMENT, {"root is 2", "rank 0"});
}

TEST_F(CApi, MessagesAndVariableCounts) {
  const int32_t in[2][3] = {{1, 2, 3}, {10, 20, 30}};
  const uint64_t counts[2] = {1, 2}, one_each[2] = {1, 1}, apart[2] = {2, 0};
  int32_t got[2][3] = {}, all[2][3] = {}, sum[2][2] = {}, swapped[2][2] = {};
  ASSERT_EQ(rondo_group_start(), RONDO_OK);
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(rondo_send(comms_[r], in[r], 3, RONDO_INT32, 1 - r, nullptr, nullptr), RONDO_OK);
    EXPECT_EQ(rondo_recv(comms_[r], got[r], 3, RONDO_INT32, 1 - r, nullptr, nullptr), RONDO_OK);
    EXPECT_EQ(rondo_all_gather_v(comms_[r], in[r], all[r], counts, nullptr, RONDO_INT32, nullptr, nullptr), RONDO_OK);
    EXPECT_EQ(rondo_reduce_scatter_v(comms_[r], in[r], sum[r], counts, nullptr, RONDO_INT32, RONDO_SUM, nullptr, nullptr),
              RONDO_OK);
    EXPECT_EQ(rondo_all_to_all_v(comms_[r], in[r], one_each, apart, swapped[r], one_each, nullptr, RONDO_INT32, nullptr,
                                 nullptr),
              RONDO_OK);
  }
  ASSERT_EQ(rondo_group_end(), RONDO_OK) << rondo_last_error(comms_[0]);
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(std::memcmp(got[r], in[1 - r], sizeof in[0]), 0);
    EXPECT_EQ(all[r][0], 1);
    EXPECT_EQ(all[r][2], 20);
    EXPECT_EQ(swapped[r][0], in[0][apart[r]]);
    EXPECT_EQ(swapped[r][1], in[1][apart[r]]);
  }
  EXPECT_EQ(sum[0][0], 11);
  EXPECT_EQ(sum[1][0], 22);
  EXPECT_EQ(sum[1][1], 33);
}

TEST_F(CApi, WorkIsTestedAndWaitedForOrFreed) {
  float x[2] = {1, 2}, y[2] = {1, 2};
  rondo_work* work[2] = {};
  rondo_work* freed[2] = {};
  ASSERT_EQ(rondo_all_reduce(comms_[0], &x[0], &x[0], 1, RONDO_FLOAT32, RONDO_SUM, nullptr, &work[0]), RONDO_OK);
  ASSERT_NE(work[0], nullptr);
  EXPECT_EQ(rondo_work_test(work[0]), RONDO_IN_PROGRESS) << "rank 1 has not called";
  ASSERT_EQ(rondo_all_reduce(comms_[1], &x[1], &x[1], 1, RONDO_FLOAT32, RONDO_SUM, nullptr, &work[1]), RONDO_OK);
  for (int r = 0; r < 2; ++r)
    ASSERT_EQ(rondo_all_reduce(comms_[r], &y[r], &y[r], 1, RONDO_FLOAT32, RONDO_PROD, nullptr, &freed[r]), RONDO_OK);
  for (int r = 0; r < 2; ++r) EXPECT_EQ(rondo_work_free(freed[r]), RONDO_OK);
  for (int r = 0; r < 2; ++r) EXPECT_EQ(rondo_work_wait(work[r]), RONDO_OK);
  EXPECT_EQ(x[0], 3);
  EXPECT_EQ(x[1], 3);
  EXPECT_EQ(rondo_work_wait(nullptr), RONDO_INVALID_ARGUMENT);
  EXPECT_EQ(rondo_work_test(nullptr), RONDO_INVALID_ARGUMENT);
  for (rondo_comm*& comm : comms_) {  // waits for the freed work
    EXPECT_EQ(rondo_comm_destroy(comm), RONDO_OK);
    comm = nullptr;
  }
  EXPECT_EQ(y[0], 2);
  EXPECT_EQ(y[1], 2);
}

TEST_F(CApi, AWorkIsWaitedForAWhileAndTellsItsEnd) {
  struct Heard {
    std::atomic<int> times{0};
    rondo_status status = RONDO_IN_PROGRESS;
    std::string error = "none";
    static void hears(void* arg, rondo_status status, const char* error) {
      auto& h = *static_cast<Heard*>(arg);
      h.status = status;
      h.error = error;
      ++h.times;
    }
    void wait() const {
      const Stopwatch watch;
      while (times == 0 && watch.seconds() < 20) std::this_thread::yield();
    }
  } done, failed;
  float x[2] = {1, 2};
  rondo_work* work[2] = {};
  ASSERT_EQ(rondo_all_reduce(comms_[0], &x[0], &x[0], 1, RONDO_FLOAT32, RONDO_SUM, nullptr, &work[0]), RONDO_OK);
  ASSERT_EQ(rondo_work_on_done(work[0], Heard::hears, &done), RONDO_OK);
  refused(rondo_work_on_done(work[0], nullptr, &done), RONDO_INVALID_ARGUMENT, {"fn"}, nullptr);
  EXPECT_EQ(rondo_work_wait_for(work[0], 0.01), RONDO_IN_PROGRESS) << "rank 1 has not called";
  refused(rondo_work_wait_for(work[0], -1), RONDO_INVALID_ARGUMENT, {"seconds"});
  EXPECT_EQ(done.times, 0);
  ASSERT_EQ(rondo_all_reduce(comms_[1], &x[1], &x[1], 1, RONDO_FLOAT32, RONDO_SUM, nullptr, &work[1]), RONDO_OK);
  for (rondo_work* w : work) EXPECT_EQ(rondo_work_wait_for(w, 20), RONDO_OK);
  for (rondo_work* w : work) EXPECT_EQ(rondo_work_free(w), RONDO_OK) << "wait_for does not free it";
  done.wait();
  EXPECT_EQ(done.times, 1);
  EXPECT_EQ(done.status, RONDO_OK);
  EXPECT_EQ(done.error, "");
  EXPECT_EQ(x[0] + x[1], 6);

  ASSERT_EQ(rondo_all_reduce(comms_[0], &x[0], &x[0], 1, RONDO_FLOAT32, RONDO_SUM, nullptr, &work[0]), RONDO_OK);
  ASSERT_EQ(rondo_work_on_done(work[0], Heard::hears, &failed), RONDO_OK);
  EXPECT_EQ(rondo_comm_abort(comms_[1]), RONDO_OK);
  failed.wait();
  EXPECT_EQ(failed.times, 1);
  EXPECT_EQ(failed.status, RONDO_ABORTED);
  EXPECT_NE(failed.error.find("rank 1"), std::string::npos) << failed.error;
  EXPECT_EQ(rondo_work_free(work[0]), RONDO_OK);
}

TEST_F(CApi, BadArgumentsAreRefusedByName) {
  float x[4] = {};
  const auto call = [&](rondo_comm* comm, const void* in, void* out, int dtype, int op) {
    return rondo_all_reduce(comm, in, out, 4, static_cast<rondo_dtype>(dtype), static_cast<rondo_op>(op), nullptr,
                            nullptr);
  };
  refused(call(nullptr, x, x, RONDO_FLOAT32, RONDO_SUM), RONDO_INVALID_ARGUMENT, {"comm"}, nullptr);
  refused(call(comms_[0], nullptr, x, RONDO_FLOAT32, RONDO_SUM), RONDO_INVALID_ARGUMENT, {"in", "rank 0"});
  refused(call(comms_[0], x, nullptr, RONDO_FLOAT32, RONDO_SUM), RONDO_INVALID_ARGUMENT, {"out", "rank 0"});
  refused(call(comms_[0], x, x, 12, RONDO_SUM), RONDO_INVALID_ARGUMENT, {"dtype", "12"});
  refused(call(comms_[0], x, x, -1, RONDO_SUM), RONDO_INVALID_ARGUMENT, {"dtype"});
  refused(call(comms_[0], x, x, RONDO_DTYPE_DEFAULT, RONDO_SUM), RONDO_INVALID_ARGUMENT, {"dtype", "255"});
  refused(call(comms_[0], x, x, 256 + RONDO_FLOAT32, RONDO_SUM), RONDO_INVALID_ARGUMENT, {"dtype"});
  refused(call(comms_[0], x, x, RONDO_FLOAT32, 9), RONDO_INVALID_ARGUMENT, {"op", "9"});
  refused(call(comms_[0], x, x, RONDO_FLOAT32, RONDO_BXOR), RONDO_UNSUPPORTED, {"bxor", "float", "integer"});
  refused(call(comms_[0], x, x, RONDO_FLOAT32, 256), RONDO_INVALID_ARGUMENT, {"op"});
  EXPECT_EQ(rondo_comm_error(comms_[0]), RONDO_OK) << "a refusal does not break the communicator";
  expect_works();
}

TEST_F(CApi, TheCallsFieldsAreCheckedByName) {
  float x[4] = {};
  const auto call = [&](const rondo_call& c) {
    return rondo_all_reduce(comms_[0], x, x, 4, RONDO_FLOAT32, RONDO_SUM, &c, nullptr);
  };
  rondo_call c = RONDO_CALL_INIT;
  c.size_bytes = sizeof(rondo_call) + 8;
  refused(call(c), RONDO_INVALID_ARGUMENT, {"size_bytes"});
  c.size_bytes = 0;
  refused(call(c), RONDO_INVALID_ARGUMENT, {"size_bytes"});
  c = RONDO_CALL_INIT;
  c.stream = x;
  refused(call(c), RONDO_UNSUPPORTED, {"stream"});
  c = RONDO_CALL_INIT;
  c.launch_event = x;
  refused(call(c), RONDO_UNSUPPORTED, {"launch_event", "rank 0"});
  c = RONDO_CALL_INIT;
  c.min_blocks = 3, c.max_blocks = 2;
  refused(call(c), RONDO_INVALID_ARGUMENT, {"max_blocks", "rank 0"});
  c.size_bytes = offsetof(rondo_call, max_blocks);  // no release had a shorter struct
  refused(call(c), RONDO_INVALID_ARGUMENT, {"size_bytes"});
  c = RONDO_CALL_INIT;
  c.wire = RONDO_INT8;
  refused(call(c), RONDO_UNSUPPORTED, {"wire", "int8"});
  c = RONDO_CALL_INIT;
  c.accumulator = static_cast<rondo_dtype>(100);
  refused(call(c), RONDO_INVALID_ARGUMENT, {"accumulator", "100"});
  c = RONDO_CALL_INIT;
  c.wire = static_cast<rondo_dtype>(256 + RONDO_FLOAT32);
  refused(call(c), RONDO_INVALID_ARGUMENT, {"wire"});
  c = RONDO_CALL_INIT;
  c.promises = 1u << 31;
  refused(call(c), RONDO_UNSUPPORTED, {"promises"});
  c = RONDO_CALL_INIT;
  c.deadline_s = -1;
  refused(call(c), RONDO_INVALID_ARGUMENT, {"deadline_s"});
  c.deadline_s = NAN;
  refused(call(c), RONDO_INVALID_ARGUMENT, {"deadline_s"});
  c = RONDO_CALL_INIT;
  c.algorithm = "semaphore_flags";
  refused(call(c), RONDO_INVALID_ARGUMENT, {"algorithm", "semaphore_flags"});
  expect_works();
}

TEST_F(CApi, ACallNamesWhatTheDefaultsAre) {
  float x[2] = {1, 2};
  rondo_call c = RONDO_CALL_INIT;
  c.wire = RONDO_FLOAT32, c.accumulator = RONDO_FLOAT32, c.output = RONDO_FLOAT32;
  c.algorithm = "ring";
  c.promises = RONDO_PROMISE_SAME_BITS_PER_RUN;
  c.deadline_s = 20;
  c.tag = 7;
  const float scales[2] = {2, 3};
  ASSERT_EQ(rondo_group_start(), RONDO_OK);
  for (int r = 0; r < 2; ++r) {
    c.premul = &scales[r];
    ASSERT_EQ(rondo_all_reduce(comms_[r], &x[r], &x[r], 1, RONDO_FLOAT32, RONDO_PREMUL_SUM, &c, nullptr), RONDO_OK)
        << rondo_last_error(comms_[r]);
  }
  ASSERT_EQ(rondo_group_end(), RONDO_OK) << rondo_last_error(comms_[0]);
  EXPECT_EQ(x[0], 1 * 2 + 2 * 3);
  EXPECT_EQ(x[1], x[0]);
}

TEST_F(CApi, MakingACommunicatorChecksItsArguments) {
  rondo_comm* comm = nullptr;
  rondo_unique_id id{};
  rondo_config config = RONDO_CONFIG_INIT;
  refused(rondo_comm_init_all(nullptr, 2, nullptr), RONDO_INVALID_ARGUMENT, {"comms"}, nullptr);
  refused(rondo_comm_init_all(&comm, 0, nullptr), RONDO_INVALID_ARGUMENT, {"nranks", "0"}, nullptr);
  refused(rondo_comm_init_all(&comm, -3, nullptr), RONDO_INVALID_ARGUMENT, {"nranks", "-3"}, nullptr);
  // Refused before anything of that size is made or read: there are no devices.
  const int device = 0;
  config.devices = &device;
  refused(rondo_comm_init_all(&comm, 1 << 28, &config), RONDO_INVALID_ARGUMENT, {"nranks", "268435456", "65535"},
          nullptr);
  config.devices = nullptr;
  config.size_bytes += 1;
  refused(rondo_comm_init_all(&comm, 1, &config), RONDO_INVALID_ARGUMENT, {"size_bytes"}, nullptr);
  refused(rondo_get_unique_id(nullptr), RONDO_INVALID_ARGUMENT, {"id"}, nullptr);
  refused(rondo_comm_init_rank(&comm, 2, nullptr, 0, nullptr), RONDO_INVALID_ARGUMENT, {"id"}, nullptr);
  ASSERT_EQ(rondo_get_unique_id(&id), RONDO_OK) << rondo_last_error(nullptr);
  refused(rondo_comm_init_rank(&comm, 2, &id, 2, nullptr), RONDO_INVALID_ARGUMENT, {"rank", "2"}, nullptr);
  refused(rondo_comm_init_rank(&comm, 2, &id, -1, nullptr), RONDO_INVALID_ARGUMENT, {"rank", "-1"}, nullptr);
  for (const int nranks : {65536, 1 << 28, std::numeric_limits<int>::max()})
    refused(rondo_comm_init_rank(&comm, nranks, &id, 1, nullptr), RONDO_INVALID_ARGUMENT,
            {"rank 1", ("nranks is " + std::to_string(nranks)).c_str(), "65535"}, nullptr);
  refused(rondo_comm_shrink(comms_[0], &device, 1 << 28, &comm, nullptr), RONDO_INVALID_ARGUMENT,
          {"rank 0", "num_excluded is 268435456"});
  refused(rondo_comm_init_rank(nullptr, 1, &id, 0, nullptr), RONDO_INVALID_ARGUMENT, {"comm"}, nullptr);
  EXPECT_EQ(comm, nullptr) << "a refusal sets no communicator";
  ASSERT_EQ(rondo_comm_init_rank(&comm, 1, &id, 0, nullptr), RONDO_OK) << rondo_last_error(nullptr);
  EXPECT_EQ(rondo_comm_destroy(comm), RONDO_OK);
  EXPECT_EQ(rondo_comm_destroy(nullptr), RONDO_OK);
}

TEST_F(CApi, AnIncompleteCommunicatorTimesOut) {
  rondo_unique_id id{};
  ASSERT_EQ(rondo_get_unique_id(&id), RONDO_OK) << rondo_last_error(nullptr);
  rondo_config config = RONDO_CONFIG_INIT;
  config.init_deadline_s = 0.5;
  rondo_comm* comm = nullptr;
  const Stopwatch watch;
  refused(rondo_comm_init_rank(&comm, 2, &id, 0, &config), RONDO_TIMEOUT, {"rank", "RONDO_INIT_TIMEOUT_S"}, nullptr);
  EXPECT_EQ(std::string(rondo_last_error(nullptr)).find("RONDO_TIMEOUT_S"), std::string::npos) << "is another deadline";
  EXPECT_LT(watch.seconds(), 5);
  EXPECT_EQ(comm, nullptr);
}

TEST_F(CApi, AllocAndFree) {
  void* memory[2] = {};
  // Collective: one thread cannot be both ranks of a blocking call, so this communicator has one rank.
  rondo_comm* alone = nullptr;
  ASSERT_EQ(rondo_comm_init_all(&alone, 1, nullptr), RONDO_OK);
  ASSERT_EQ(rondo_alloc(alone, 5000, &memory[0]), RONDO_OK) << rondo_last_error(alone);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory[0]) % 4096, 0u);
  EXPECT_EQ(rondo_free(alone, memory[0]), RONDO_OK);
  refused(rondo_alloc(alone, 5000, nullptr), RONDO_INVALID_ARGUMENT, {"ptr"}, alone);
  refused(rondo_free(alone, &memory), RONDO_INVALID_ARGUMENT, {"ptr"}, alone);
  EXPECT_EQ(rondo_comm_destroy(alone), RONDO_OK);
}

// Threads access one another's host memory directly, so registering does nothing and is not collective.
TEST_F(CApi, RegisterAndDeregister) {
  float memory[10] = {};
  EXPECT_EQ(rondo_register(comms_[0], memory, sizeof memory), RONDO_OK) << rondo_last_error(comms_[0]);
  EXPECT_EQ(rondo_deregister(comms_[0], memory), RONDO_OK) << rondo_last_error(comms_[0]);
  refused(rondo_register(comms_[0], nullptr, 4), RONDO_INVALID_ARGUMENT, {"ptr"}, comms_[0]);
  refused(rondo_register(comms_[0], memory, 0), RONDO_INVALID_ARGUMENT, {"bytes"}, comms_[0]);
  refused(rondo_register(nullptr, memory, 4), RONDO_INVALID_ARGUMENT, {"comm"}, nullptr);
  refused(rondo_deregister(nullptr, memory), RONDO_INVALID_ARGUMENT, {"comm"}, nullptr);
}

TEST_F(CApi, ExplainPlanFitsItsBuffer) {
  char text[512];
  ASSERT_EQ(rondo_explain_plan(comms_[0], "all_reduce", 1000, RONDO_FLOAT32, RONDO_SUM, text, sizeof(text)), RONDO_OK);
  EXPECT_GT(std::strlen(text), 0u);
  char cut[8];
  std::memset(cut, 'x', sizeof(cut));
  ASSERT_EQ(rondo_explain_plan(comms_[0], "all_reduce", 1000, RONDO_FLOAT32, RONDO_SUM, cut, 4), RONDO_OK);
  EXPECT_EQ(cut[3], 0);
  EXPECT_EQ(cut[4], 'x');
  refused(rondo_explain_plan(comms_[0], "all_dance", 1, RONDO_FLOAT32, RONDO_SUM, text, sizeof(text)),
          RONDO_INVALID_ARGUMENT, {"collective", "all_dance"});
}

TEST_F(CApi, ForecastGrowsWithTheCall) {
  const auto forecast = [&](uint64_t count, const rondo_call* call) {
    double us = -1;
    EXPECT_EQ(rondo_forecast_us(comms_[0], "all_reduce", count, RONDO_FLOAT32, RONDO_SUM, 0, call, &us), RONDO_OK);
    return us;
  };
  EXPECT_GT(forecast(1, nullptr), 0);
  EXPECT_GT(forecast(1 << 20, nullptr), forecast(1, nullptr));
  rondo_call ring = RONDO_CALL_INIT;
  ring.algorithm = "ring";
  EXPECT_GE(forecast(1 << 20, &ring), forecast(1 << 20, nullptr)) << "the planner takes the least";
  double us = -1;
  refused(rondo_forecast_us(comms_[0], "all_dance", 1, RONDO_FLOAT32, RONDO_SUM, 0, nullptr, &us),
          RONDO_INVALID_ARGUMENT, {"collective", "all_dance"});
  EXPECT_EQ(us, -1);
}

TEST_F(CApi, TransportHasAName) {
  EXPECT_STREQ(rondo_comm_transport(comms_[0]), "inproc");
  EXPECT_EQ(rondo_comm_transport(nullptr), nullptr);
}

TEST_F(CApi, AbortIsHeardByTheOtherRank) {
  float x = 1;
  EXPECT_EQ(rondo_comm_abort(comms_[1]), RONDO_OK);
  rondo_call c = RONDO_CALL_INIT;
  c.deadline_s = 10;
  refused(rondo_all_reduce(comms_[0], &x, &x, 1, RONDO_FLOAT32, RONDO_SUM, &c, nullptr), RONDO_ABORTED, {"rank 1"});
  EXPECT_EQ(rondo_comm_error(comms_[0]), RONDO_ABORTED);
}

}  // namespace
}  // namespace rondo::testing
