// The planner: equal on all ranks, follows settings and promises, and explains its choice.
// labels: unit
#include "plan/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "api/communicator_impl.h"
#include "plan/environment_variable.h"
#include "rondo/communicator.h"

namespace rondo {
namespace {

using testing::EnvironmentVariable;

std::vector<std::unique_ptr<Communicator>> make(int nranks) {
  auto comms = Communicator::init_all(nranks);
  EXPECT_TRUE(comms.ok()) << comms.status().to_string();
  return std::move(*comms);
}

TEST(Planner, AllRanksChooseAlike) {
  for (int nranks : {2, 3, 4, 7, 16}) {
    const auto comms = make(nranks);
    for (Collective c : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather})
      for (uint64_t count : {1u, 13u, 100u, 5000u, 40000u, 300000u, 9000000u}) {
        const std::string first = comms[0]->explain_plan(c, count, Dtype::kFloat32, Op::kSum);
        for (const auto& comm : comms) EXPECT_EQ(comm->explain_plan(c, count, Dtype::kFloat32, Op::kSum), first);
        EXPECT_NE(first.find("forecast"), std::string::npos) << first;
      }
  }
}

// The tools' forced candidate runs on every rank until they release it.
TEST(Planner, EveryCandidateCanBeForced) {
  const auto comms = make(3);
  CallShape request;
  request.count_elems = 50000;
  auto explain = [&](size_t rank) {
    return comms[rank]->explain_plan(request.collective, request.count_elems, request.dtype, request.op);
  };
  const std::string free_choice = explain(0);
  const std::vector<Candidate> all = impl_of(*comms[0]).planner().candidates(request).value();
  EXPECT_GE(all.size(), 6u);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.forecast_ns < b.forecast_ns;
  }));
  EXPECT_TRUE(free_choice.starts_with(all[0].algorithm->name)) << free_choice;
  for (const Candidate& c : all) {
    for (const auto& comm : comms) impl_of(*comm).planner().force(&c);
    const std::string said = explain(0);
    EXPECT_TRUE(said.starts_with(c.algorithm->name)) << said;
    if (!c.algorithm->direct) {
      EXPECT_NE(said.find("messages of " + std::to_string(c.message_bytes) + " B"), std::string::npos) << said;
    }
    EXPECT_EQ(explain(2), said);
    for (const auto& comm : comms) impl_of(*comm).planner().force(nullptr);
  }
  EXPECT_EQ(explain(0), free_choice);
}

// The built-in constants are of a processor on which a short lap is faster.
TEST(Planner, BuiltInConstantsKeepShortLaps) {
  const EnvironmentVariable off("RONDO_CALIBRATION", "off");
  const auto comms = make(2);
  Planner& planner = impl_of(*comms[0]).planner();
  if (planner.settings().ranks_per_core > 1) GTEST_SKIP() << "one CPU";
  CallShape request;
  size_t whole = 0;
  for (request.count_elems = 128; request.count_elems <= uint64_t{16} << 20; request.count_elems *= 2) {
    const std::vector<Candidate> all = planner.candidates(request, /*staged_only=*/true).value();
    whole += static_cast<size_t>(std::ranges::count_if(all, [](const Candidate& c) { return c.whole_ring; }));
    EXPECT_FALSE(all[0].whole_ring) << request.count_elems;
  }
  EXPECT_GT(whole, 0u) << "no candidate uses the whole ring";
}

TEST(Planner, LapsStayInCaches) {
  EXPECT_EQ(lap_bytes(uint32_t{1024}, 32), 32u << 10);
  EXPECT_EQ(lap_bytes(uint32_t{16 << 10}, 32), 512u << 10);
  EXPECT_EQ(lap_bytes(uint32_t{48 << 10}, 32), 512u << 10);
  EXPECT_EQ(lap_bytes(uint32_t{64 << 10}, 32), 512u << 10);
  EXPECT_EQ(lap_bytes(uint32_t{512 << 10}, 8), kRingMessages * (512u << 10));  // never fewer messages than that
  EXPECT_EQ(lap_bytes(uint32_t{4096}, 8), 8u * 4096);
  const EnvironmentVariable off("RONDO_CALIBRATION", "off");
  const auto comms = make(2);
  Planner& planner = impl_of(*comms[0]).planner();
  if (planner.settings().ranks_per_core > 1) GTEST_SKIP() << "one CPU";
  CallShape request;
  request.count_elems = 1 << 20;
  int forms[2][2] = {};
  const std::vector<Candidate> all = planner.candidates(request, /*staged_only=*/true).value();
  for (const Candidate& c : all) {
    if (c.algorithm->name != "ring") continue;
    ++forms[c.message_bytes > 16384][c.whole_ring];
    planner.force(&c);
    const auto plan = planner.plan(request);
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    EXPECT_EQ((**plan)->program->lap_bytes, c.whole_ring ? UINT32_MAX : kLapBytes) << c.message_bytes;
  }
  EXPECT_EQ(forms[0][0], 1);  // short messages in a lap, long ones in a lap, long ones in the whole ring
  EXPECT_EQ(forms[0][1], 0);
  EXPECT_EQ(forms[1][0], 1);
  EXPECT_EQ(forms[1][1], 1);
}

TEST(Planner, SettingIsObeyedWhereItCanServeAndSaidWhereItCannot) {
  const EnvironmentVariable tree("RONDO_ALGO", "tree");
  const auto comms = make(4);
  EXPECT_TRUE(comms[0]->explain_plan(Collective::kAllReduce, 1000, Dtype::kFloat32, Op::kSum).starts_with("tree"));
  const std::string other = comms[0]->explain_plan(Collective::kAllGather, 1000, Dtype::kFloat32, Op::kSum);
  EXPECT_NE(other.find("RONDO_ALGO=tree cannot serve this all_gather"), std::string::npos) << other;
}

TEST(Planner, ProtocolSetting) {
  const EnvironmentVariable algorithm("RONDO_ALGO", "ring"), simple("RONDO_PROTO", "simple");
  const auto comms = make(3);
  const std::string why = comms[0]->explain_plan(Collective::kAllReduce, 6, Dtype::kFloat32, Op::kSum);
  EXPECT_TRUE(why.starts_with("ring simple")) << why;
}

TEST(Planner, BadSettingsAreNamed) {
  for (const auto& [name, value] : {std::pair{"RONDO_ALGO", "rang"},
                                    {"RONDO_PROTO", "lightning"},
                                    {"RONDO_TIMEOUT_S", "soon"},
                                    {"RONDO_MESSAGE_BYTES", "12"},
                                    {"RONDO_SIMD", "mmx"}}) {
    const EnvironmentVariable bad(name, value);
    const auto comms = Communicator::init_all(2);
    ASSERT_FALSE(comms.ok()) << name;
    EXPECT_EQ(comms.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(comms.status().message().find(std::string(name) + "=" + value), std::string_view::npos)
        << comms.status().to_string();
  }
}

// Across slow links the planner takes one crossing for short messages, and the fewest bytes for long ones.
TEST(Planner, OnSeveralHostsTakesWhatCrossesLeast) {
  const EnvironmentVariable hosts("RONDO_HOSTS", "3x2");
  const auto comms = make(6);
  const auto hop = static_cast<size_t>(CostTerm::kHostHop), byte = static_cast<size_t>(CostTerm::kHostByte);
  for (const Collective c : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                             Collective::kBroadcast, Collective::kReduce}) {
    CallShape request;
    request.collective = c;
    for (const uint64_t count : {uint64_t{1}, uint64_t{500}, uint64_t{8} << 20}) {
      request.count_elems = count;
      const std::vector<Candidate> all = impl_of(*comms[0]).planner().candidates(request).value();
      for (const Candidate& other : all) {
        EXPECT_FALSE(other.algorithm->direct);
        if (count <= 500) EXPECT_LE(all[0].counts[hop], other.counts[hop]) << other.algorithm->name;
        else
          EXPECT_LE(all[0].counts[byte], 1.01 * other.counts[byte])
              << other.algorithm->name << " " << static_cast<int>(c);
      }
    }
  }
}

TEST(Planner, PromiseOfRankOrderRestrictsOrRefuses) {
  auto comms = make(1);
  float x = 1, y = 0;
  CallOptions options;
  options.promises = RONDO_PROMISE_RANK_ORDER;
  EXPECT_TRUE(comms[0]->all_reduce(&x, &y, 1, Dtype::kFloat32, Op::kSum, &options).ok());
  options.algorithm = "ring";
  const Status refused = comms[0]->all_reduce(&x, &y, 1, Dtype::kFloat32, Op::kSum, &options);
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.message().find("rank order"), std::string_view::npos) << refused.to_string();
}

}  // namespace
}  // namespace rondo
