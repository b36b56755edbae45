// Calls the C ABI with every wrong argument: each pointer null, each enum out of range, each size 0 or too large. All
// are refused with the argument's name, and the communicator still works.
// labels: unit tsan
// timeout: 60
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "rondo/rondo.h"
#include "rondo/types.h"

namespace rondo::testing {
namespace {

using CCall = std::function<rondo_status()>;

class CApiRefusals : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(rondo_comm_init_all(comms_, 2, nullptr), RONDO_OK) << rondo_last_error(nullptr); }
  void TearDown() override {
    float x[2] = {1, 2};
    ASSERT_EQ(rondo_group_start(), RONDO_OK);
    for (int r = 0; r < 2; ++r)
      EXPECT_EQ(rondo_all_reduce(comms_[r], &x[r], &x[r], 1, RONDO_FLOAT32, RONDO_SUM, nullptr, nullptr), RONDO_OK);
    EXPECT_EQ(rondo_group_end(), RONDO_OK) << "a refusal has broken the communicator: " << rondo_last_error(comms_[0]);
    EXPECT_EQ(x[0], 3);
    for (rondo_comm* comm : comms_) EXPECT_EQ(rondo_comm_destroy(comm), RONDO_OK);
  }
  // Refused as an argument or as unsupported. The message begins with the argument's name, or with rank 0 and the name.
  static void refused(const std::string& what, const std::string& argument, const CCall& call) {
    SCOPED_TRACE(what);
    const rondo_status got = call();
    const std::string text = rondo_last_error(nullptr);
    EXPECT_TRUE(got == RONDO_INVALID_ARGUMENT || got == RONDO_UNSUPPORTED) << got << ": " << text;
    EXPECT_NE(text.find(argument + " "), std::string::npos) << "does not name " << argument << ": " << text;
  }

  rondo_comm* comms_[2] = {};
};

constexpr int kOut[] = {-1, 100, 254, 256, INT_MAX, INT_MIN};  // for every enum; 256 is 0 in a byte

TEST_F(CApiRefusals, EveryNullPointerIsNamed) {
  rondo_comm* const c = comms_[0];
  rondo_comm* made = nullptr;
  rondo_unique_id id{};
  uint64_t counts[2] = {1, 1};
  float x[4] = {}, y[4] = {};
  char text[64];
  double us = -1;
  int number = 0;
  void* memory = nullptr;
  constexpr rondo_dtype kType = RONDO_FLOAT32;
  const std::vector<std::tuple<const char*, const char*, CCall>> cases = {
      {"get_unique_id", "id", [&] { return rondo_get_unique_id(nullptr); }},
      {"init_rank", "comm", [&] { return rondo_comm_init_rank(nullptr, 1, &id, 0, nullptr); }},
      {"init_rank", "id", [&] { return rondo_comm_init_rank(&made, 1, nullptr, 0, nullptr); }},
      {"init_all", "comms", [&] { return rondo_comm_init_all(nullptr, 1, nullptr); }},
      {"init_env", "comm", [&] { return rondo_comm_init_env(nullptr, nullptr); }},
      {"rank", "comm", [&] { return rondo_comm_rank(nullptr, &number); }},
      {"rank", "rank", [&] { return rondo_comm_rank(c, nullptr); }},
      {"size", "comm", [&] { return rondo_comm_size(nullptr, &number); }},
      {"size", "nranks", [&] { return rondo_comm_size(c, nullptr); }},
      {"error", "comm", [&] { return rondo_comm_error(nullptr); }},
      {"abort", "comm", [&] { return rondo_comm_abort(nullptr); }},
      {"finalize", "comm", [&] { return rondo_comm_finalize(nullptr); }},
      {"abort_create", "abort", [&] { return rondo_abort_create(nullptr); }},
      {"abort_raise", "abort", [&] { return rondo_abort_raise(nullptr); }},
      {"split", "comm", [&] { return rondo_comm_split(nullptr, 0, 0, &made, nullptr); }},
      {"split", "part", [&] { return rondo_comm_split(c, 0, 0, nullptr, nullptr); }},
      {"shrink", "comm", [&] { return rondo_comm_shrink(nullptr, nullptr, 0, &made, nullptr); }},
      {"shrink", "smaller", [&] { return rondo_comm_shrink(c, nullptr, 0, nullptr, nullptr); }},
      {"shrink", "excluded", [&] { return rondo_comm_shrink(c, nullptr, 1, &made, nullptr); }},
      {"grow", "comm", [&] { return rondo_comm_grow(nullptr, 3, &id, &made, nullptr); }},
      {"grow", "larger", [&] { return rondo_comm_grow(c, 3, &id, nullptr, nullptr); }},
      {"all_reduce", "comm", [&] { return rondo_all_reduce(nullptr, x, x, 1, kType, RONDO_SUM, nullptr, nullptr); }},
      {"all_reduce", "in", [&] { return rondo_all_reduce(c, nullptr, x, 1, kType, RONDO_SUM, nullptr, nullptr); }},
      {"all_reduce", "out", [&] { return rondo_all_reduce(c, x, nullptr, 1, kType, RONDO_SUM, nullptr, nullptr); }},
      {"reduce_scatter", "in",
       [&] { return rondo_reduce_scatter(c, nullptr, y, 1, kType, RONDO_SUM, nullptr, nullptr); }},
      {"reduce_scatter", "out",
       [&] { return rondo_reduce_scatter(c, x, nullptr, 1, kType, RONDO_SUM, nullptr, nullptr); }},
      {"all_gather", "in", [&] { return rondo_all_gather(c, nullptr, y, 1, kType, nullptr, nullptr); }},
      {"all_gather", "out", [&] { return rondo_all_gather(c, x, nullptr, 1, kType, nullptr, nullptr); }},
      {"broadcast", "in", [&] { return rondo_broadcast(c, nullptr, y, 1, kType, 0, nullptr, nullptr); }},
      {"broadcast", "out", [&] { return rondo_broadcast(c, x, nullptr, 1, kType, 0, nullptr, nullptr); }},
      {"reduce", "in", [&] { return rondo_reduce(c, nullptr, y, 1, kType, RONDO_SUM, 0, nullptr, nullptr); }},
      {"reduce", "out", [&] { return rondo_reduce(c, x, nullptr, 1, kType, RONDO_SUM, 0, nullptr, nullptr); }},
      {"all_to_all", "in", [&] { return rondo_all_to_all(c, nullptr, y, 1, kType, nullptr, nullptr); }},
      {"all_to_all", "out", [&] { return rondo_all_to_all(c, x, nullptr, 1, kType, nullptr, nullptr); }},
      {"gather", "in", [&] { return rondo_gather(c, nullptr, y, 1, kType, 0, nullptr, nullptr); }},
      {"gather", "out", [&] { return rondo_gather(c, x, nullptr, 1, kType, 0, nullptr, nullptr); }},
      {"scatter", "in", [&] { return rondo_scatter(c, nullptr, y, 1, kType, 0, nullptr, nullptr); }},
      {"scatter", "out", [&] { return rondo_scatter(c, x, nullptr, 1, kType, 0, nullptr, nullptr); }},
      {"barrier", "comm", [&] { return rondo_barrier(nullptr, nullptr, nullptr); }},
      {"send", "in", [&] { return rondo_send(c, nullptr, 1, kType, 1, nullptr, nullptr); }},
      {"recv", "out", [&] { return rondo_recv(c, nullptr, 1, kType, 1, nullptr, nullptr); }},
      {"all_gather_v", "counts",
       [&] { return rondo_all_gather_v(c, x, y, nullptr, nullptr, kType, nullptr, nullptr); }},
      {"all_gather_v", "in",
       [&] { return rondo_all_gather_v(c, nullptr, y, counts, nullptr, kType, nullptr, nullptr); }},
      {"reduce_scatter_v", "counts",
       [&] { return rondo_reduce_scatter_v(c, x, y, nullptr, nullptr, kType, RONDO_SUM, nullptr, nullptr); }},
      {"reduce_scatter_v", "out",
       [&] { return rondo_reduce_scatter_v(c, x, nullptr, counts, nullptr, kType, RONDO_SUM, nullptr, nullptr); }},
      {"all_to_all_v", "in_counts",
       [&] { return rondo_all_to_all_v(c, x, nullptr, nullptr, y, counts, nullptr, kType, nullptr, nullptr); }},
      {"all_to_all_v", "out_counts",
       [&] { return rondo_all_to_all_v(c, x, counts, nullptr, y, nullptr, nullptr, kType, nullptr, nullptr); }},
      {"work_wait", "work", [&] { return rondo_work_wait(nullptr); }},
      {"work_test", "work", [&] { return rondo_work_test(nullptr); }},
      {"work_wait_for", "work", [&] { return rondo_work_wait_for(nullptr, 1); }},
      {"work_on_done", "work",
       [&] {
         return rondo_work_on_done(
             nullptr, [](void*, rondo_status, const char*) {}, x);
       }},
      {"alloc", "comm", [&] { return rondo_alloc(nullptr, 8, &memory); }},
      {"alloc", "ptr", [&] { return rondo_alloc(c, 8, nullptr); }},
      {"free", "comm", [&] { return rondo_free(nullptr, x); }},
      {"free", "ptr", [&] { return rondo_free(c, nullptr); }},
      {"register", "comm", [&] { return rondo_register(nullptr, x, 8); }},
      {"register", "ptr", [&] { return rondo_register(c, nullptr, 8); }},
      {"deregister", "comm", [&] { return rondo_deregister(nullptr, x); }},
      {"deregister", "ptr", [&] { return rondo_deregister(c, nullptr); }},
      {"explain_plan", "comm", [&] { return rondo_explain_plan(nullptr, "reduce", 1, kType, RONDO_SUM, text, 8); }},
      {"explain_plan", "collective", [&] { return rondo_explain_plan(c, nullptr, 1, kType, RONDO_SUM, text, 8); }},
      {"explain_plan", "text", [&] { return rondo_explain_plan(c, "reduce", 1, kType, RONDO_SUM, nullptr, 8); }},
      {"forecast_us", "comm",
       [&] { return rondo_forecast_us(nullptr, "reduce", 1, kType, RONDO_SUM, 0, nullptr, &us); }},
      {"forecast_us", "collective",
       [&] { return rondo_forecast_us(c, nullptr, 1, kType, RONDO_SUM, 0, nullptr, &us); }},
      {"forecast_us", "us", [&] { return rondo_forecast_us(c, "reduce", 1, kType, RONDO_SUM, 0, nullptr, nullptr); }},
      {"trace_span", "comm", [&] { return rondo_trace_span(nullptr, "a", "b", 1, 2); }},
      {"trace_span", "track", [&] { return rondo_trace_span(c, nullptr, "b", 1, 2); }},
      {"trace_span", "name", [&] { return rondo_trace_span(c, "a", nullptr, 1, 2); }},
      {"trace_start", "comm", [&] { return rondo_trace_start(nullptr, "/tmp", 0); }},
      {"trace_start", "directory", [&] { return rondo_trace_start(c, nullptr, 0); }},
      {"trace_stop", "comm", [&] { return rondo_trace_stop(nullptr); }},
      {"flight_record", "comm", [&] { return rondo_flight_record(nullptr, "/tmp"); }},
      {"flight_record", "directory", [&] { return rondo_flight_record(c, nullptr); }}};
  for (const auto& [what, argument, call] : cases) refused(what, argument, call);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(memory, nullptr);
}

TEST_F(CApiRefusals, EveryEnumOutOfItsRangeIsNamed) {
  float x[4] = {};
  char text[64];
  rondo_comm* made = nullptr;
  for (const int value : kOut) {
    SCOPED_TRACE(value);
    const auto type = static_cast<rondo_dtype>(value);
    const auto op = static_cast<rondo_op>(value);
    const auto reduce_with = [&](const std::function<void(rondo_call&)>& set) {
      rondo_call c = RONDO_CALL_INIT;
      c.deadline_s = 2;  // rank 1 does not call
      set(c);
      return rondo_all_reduce(comms_[0], x, x, 1, RONDO_FLOAT32, RONDO_SUM, &c, nullptr);
    };
    rondo_config config = RONDO_CONFIG_INIT;
    config.memory = static_cast<rondo_memory>(value);
    const std::vector<std::tuple<const char*, const char*, CCall>> cases = {
        {"all_reduce", "dtype",
         [&] { return rondo_all_reduce(comms_[0], x, x, 1, type, RONDO_SUM, nullptr, nullptr); }},
        {"all_gather", "dtype", [&] { return rondo_all_gather(comms_[0], x, x, 1, type, nullptr, nullptr); }},
        {"send", "dtype", [&] { return rondo_send(comms_[0], x, 1, type, 1, nullptr, nullptr); }},
        {"all_reduce", "op", [&] { return rondo_all_reduce(comms_[0], x, x, 1, RONDO_FLOAT32, op, nullptr, nullptr); }},
        {"reduce", "op", [&] { return rondo_reduce(comms_[0], x, x, 1, RONDO_FLOAT32, op, 0, nullptr, nullptr); }},
        {"explain_plan", "dtype",
         [&] { return rondo_explain_plan(comms_[0], "reduce", 1, type, RONDO_SUM, text, sizeof text); }},
        {"explain_plan", "op",
         [&] { return rondo_explain_plan(comms_[0], "reduce", 1, RONDO_FLOAT32, op, text, sizeof text); }},
        {"call", "wire", [&] { return reduce_with([&](rondo_call& c) { c.wire = type; }); }},
        {"call", "accumulator", [&] { return reduce_with([&](rondo_call& c) { c.accumulator = type; }); }},
        {"call", "output", [&] { return reduce_with([&](rondo_call& c) { c.output = type; }); }},
        {"call", "premul_memory",
         [&] { return reduce_with([&](rondo_call& c) { c.premul_memory = static_cast<rondo_memory>(value); }); }},
        {"broadcast", "root",
         [&] { return rondo_broadcast(comms_[0], x, x, 1, RONDO_FLOAT32, value, nullptr, nullptr); }},
        {"send", "peer", [&] { return rondo_send(comms_[0], x, 1, RONDO_FLOAT32, value, nullptr, nullptr); }},
        {"init_all", "config.memory", [&] { return rondo_comm_init_all(&made, 1, &config); }},
        {"split", "config.memory", [&] { return rondo_comm_split(comms_[0], 0, 0, &made, &config); }}};
    for (const auto& [what, argument, call] : cases) refused(what, argument, call);
  }
  rondo_call c = RONDO_CALL_INIT;
  c.deadline_s = 2;
  for (int bit = 5; bit < 32; ++bit) {
    c.promises = 1u << bit;
    refused("call", "promises",
            [&] { return rondo_all_reduce(comms_[0], x, x, 1, RONDO_FLOAT32, RONDO_SUM, &c, nullptr); });
  }
  EXPECT_EQ(made, nullptr);
}

TEST_F(CApiRefusals, EverySizeThatIsNoneIsNamed) {
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  rondo_comm* const c = comms_[0];
  rondo_comm* made = nullptr;
  rondo_unique_id id{};
  float x[4] = {}, y[4] = {};
  char text[8] = "kept";
  double us = -1;
  void* memory = nullptr;
  const uint64_t huge[2] = {kHuge / 2, kHuge / 2 + 2}, one[2] = {1, 1};
  const std::vector<std::tuple<const char*, const char*, CCall>> cases = {
      {"init_all", "nranks", [&] { return rondo_comm_init_all(&made, 0, nullptr); }},
      {"init_all", "nranks", [&] { return rondo_comm_init_all(&made, INT_MAX, nullptr); }},
      {"init_rank", "nranks", [&] { return rondo_comm_init_rank(&made, 0, &id, 0, nullptr); }},
      {"init_rank", "nranks", [&] { return rondo_comm_init_rank(&made, INT_MAX, &id, 0, nullptr); }},
      {"init_rank", "rank is", [&] { return rondo_comm_init_rank(&made, 2, &id, 2, nullptr); }},
      {"init_rank", "rank is", [&] { return rondo_comm_init_rank(&made, 2, &id, -1, nullptr); }},
      {"shrink", "num_excluded", [&] { return rondo_comm_shrink(c, nullptr, -1, &made, nullptr); }},
      {"alloc", "bytes", [&] { return rondo_alloc(c, 0, &memory); }},
      {"alloc", "bytes", [&] { return rondo_alloc(c, kHuge, &memory); }},
      {"alloc", "bytes", [&] { return rondo_alloc(c, kHuge - 4096, &memory); }},
      {"register", "bytes", [&] { return rondo_register(c, x, 0); }},
      {"explain_plan", "capacity",
       [&] { return rondo_explain_plan(c, "reduce", 1, RONDO_FLOAT32, RONDO_SUM, text, 0); }},
      {"explain_plan", "count_elems",
       [&] { return rondo_explain_plan(c, "reduce", kHuge, RONDO_FLOAT32, RONDO_SUM, text, 8); }},
      {"forecast_us", "count_elems",
       [&] { return rondo_forecast_us(c, "reduce", kHuge, RONDO_FLOAT32, RONDO_SUM, 0, nullptr, &us); }},
      {"forecast_us", "root",
       [&] { return rondo_forecast_us(c, "reduce", 1, RONDO_FLOAT32, RONDO_SUM, 2, nullptr, &us); }},
      {"forecast_us", "collective",
       [&] { return rondo_forecast_us(c, "reduces", 1, RONDO_FLOAT32, RONDO_SUM, 0, nullptr, &us); }},
      {"trace_start", "num_records", [&] { return rondo_trace_start(c, "/tmp", kHuge); }},
      {"trace_start", "num_records", [&] { return rondo_trace_start(c, "/tmp", 1); }},
      {"all_reduce", "count_elems",
       [&] { return rondo_all_reduce(c, x, x, kHuge, RONDO_FLOAT32, RONDO_SUM, nullptr, nullptr); }},
      {"all_gather", "count_elems",
       [&] { return rondo_all_gather(c, x, y, kHuge / 4, RONDO_FLOAT32, nullptr, nullptr); }},
      {"send", "count_elems", [&] { return rondo_send(c, x, kHuge, RONDO_FLOAT32, 1, nullptr, nullptr); }},
      {"all_gather_v", "counts[0]",
       [&] { return rondo_all_gather_v(c, x, y, huge, nullptr, RONDO_FLOAT32, nullptr, nullptr); }},
      {"all_gather_v", "offsets[0]",
       [&] { return rondo_all_gather_v(c, x, y, one, huge, RONDO_FLOAT32, nullptr, nullptr); }}};
  for (const auto& [what, argument, call] : cases) refused(what, argument, call);
  EXPECT_EQ(us, -1);
  EXPECT_STREQ(text, "kept");
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(memory, nullptr);
}

TEST_F(CApiRefusals, AStructHasOneSize) {
  float x[4] = {};
  rondo_comm* made = nullptr;
  for (size_t bytes = 0; bytes <= sizeof(rondo_config) + 16; ++bytes) {
    rondo_config config = RONDO_CONFIG_INIT;
    config.size_bytes = bytes;
    if (bytes == sizeof config) continue;
    refused("init_all", "config.size_bytes", [&] { return rondo_comm_init_all(&made, 1, &config); });
  }
  for (size_t bytes = 0; bytes <= sizeof(rondo_call) + 16; ++bytes) {
    rondo_call call = RONDO_CALL_INIT;
    call.size_bytes = bytes;
    call.deadline_s = 2;
    if (bytes == sizeof call) continue;
    refused("all_reduce", "call.size_bytes",
            [&] { return rondo_all_reduce(comms_[0], x, x, 1, RONDO_FLOAT32, RONDO_SUM, &call, nullptr); });
  }
  EXPECT_EQ(made, nullptr);
}

TEST_F(CApiRefusals, EveryTimeThatIsNoneIsNamed) {
  float x[4] = {};
  rondo_comm* made = nullptr;
  for (const double seconds : {-1.0, static_cast<double>(NAN), -static_cast<double>(INFINITY)}) {
    rondo_call call = RONDO_CALL_INIT;
    call.deadline_s = seconds;
    refused("all_reduce", "deadline_s",
            [&] { return rondo_all_reduce(comms_[0], x, x, 1, RONDO_FLOAT32, RONDO_SUM, &call, nullptr); });
    rondo_config config = RONDO_CONFIG_INIT;
    config.deadline_s = seconds;
    refused("init_all", "config.deadline_s", [&] { return rondo_comm_init_all(&made, 1, &config); });
    config = RONDO_CONFIG_INIT;
    config.init_deadline_s = seconds;
    refused("init_all", "config.init_deadline_s", [&] { return rondo_comm_init_all(&made, 1, &config); });
  }
  // No deadline is a valid deadline.
  rondo_call call = RONDO_CALL_INIT;
  call.deadline_s = INFINITY;
  rondo_work* work[2] = {};
  for (int r = 0; r < 2; ++r)
    ASSERT_EQ(rondo_all_reduce(comms_[r], &x[r], &x[r], 1, RONDO_FLOAT32, RONDO_SUM, &call, &work[r]), RONDO_OK);
  for (int r = 0; r < 2; ++r) EXPECT_EQ(rondo_work_wait(work[r]), RONDO_OK) << rondo_last_error(nullptr);
}

TEST_F(CApiRefusals, EveryCollectiveIsExplainedOrRefused) {
  for (rondo_comm* comm : comms_)
    for (int i = 0; i < kNumCollectives; ++i) {
      const auto collective = static_cast<Collective>(i);
      const std::string name(collective_name(collective));
      char text[512] = "";
      const auto explain = [&] {
        return rondo_explain_plan(comm, name.c_str(), 100, RONDO_FLOAT32, RONDO_SUM, text, sizeof text);
      };
      if (is_point_to_point(collective)) refused(name, "collective", explain);
      else EXPECT_EQ(explain(), RONDO_OK) << name << ": " << rondo_last_error(comm);
      EXPECT_EQ(text[0] != 0, !is_point_to_point(collective)) << name;
    }
}

// The k-th alloc of each rank is one collective call. The first rank defines its size.
TEST_F(CApiRefusals, ThreadsThatAllocateDifferentSizesAreTold) {
  void* memory[2] = {};
  const auto alloc = [&](int rank, uint64_t bytes) { return rondo_alloc(comms_[rank], bytes, &memory[rank]); };
  EXPECT_EQ(alloc(0, 5000), RONDO_OK);
  EXPECT_EQ(alloc(1, 6000), RONDO_OK) << "both take two pages: " << rondo_last_error(comms_[1]);
  EXPECT_EQ(alloc(1, 4096), RONDO_OK);
  memory[0] = nullptr;
  EXPECT_EQ(alloc(0, 12288), RONDO_MISMATCH);
  const std::string text = rondo_last_error(comms_[0]);
  for (const char* words : {"rank 0", "12288 here", "4096 on rank 1"})
    EXPECT_NE(text.find(words), std::string::npos) << text;
  EXPECT_EQ(memory[0], nullptr);
  EXPECT_EQ(alloc(0, 8192), RONDO_OK) << "the next one";
  EXPECT_EQ(alloc(1, 8192), RONDO_OK) << rondo_last_error(comms_[1]);
}

}  // namespace
}  // namespace rondo::testing
