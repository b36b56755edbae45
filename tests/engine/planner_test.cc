// The planner: alike on all ranks, obedient to settings and promises, and able to say why.
// labels: unit
#include "engine/planner.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "rondo/communicator.h"

namespace rondo {
namespace {

class Setting {  // an environment variable for the time of a scope
 public:
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name_); }

 private:
  const char* name_;
};

std::vector<std::unique_ptr<Communicator>> make(int nranks) {
  auto comms = Communicator::init_all(nranks);
  EXPECT_TRUE(comms.ok()) << comms.status().to_string();
  return std::move(*comms);
}

TEST(Planner, AllRanksChooseAlike) {
  for (int nranks : {2, 3, 4, 7, 16}) {
    const auto comms = make(nranks);
    for (Collective c : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather})
      for (uint64_t count : {1u, 13u, 100u, 5000u, 300000u}) {
        const std::string first = comms[0]->explain_plan(c, count, Dtype::kFloat32, Op::kSum);
        for (const auto& comm : comms) EXPECT_EQ(comm->explain_plan(c, count, Dtype::kFloat32, Op::kSum), first);
        EXPECT_NE(first.find("forecast"), std::string::npos) << first;
      }
  }
}

TEST(Planner, SettingIsObeyedWhereItCanServeAndSaidWhereItCannot) {
  const Setting tree("RONDO_ALGO", "tree");
  const auto comms = make(4);
  EXPECT_TRUE(comms[0]->explain_plan(Collective::kAllReduce, 1000, Dtype::kFloat32, Op::kSum).starts_with("tree"));
  const std::string other = comms[0]->explain_plan(Collective::kAllGather, 1000, Dtype::kFloat32, Op::kSum);
  EXPECT_NE(other.find("RONDO_ALGO=tree cannot serve this all_gather"), std::string::npos) << other;
}

TEST(Planner, ProtocolSetting) {
  const Setting algorithm("RONDO_ALGO", "ring"), simple("RONDO_PROTO", "simple");
  const auto comms = make(3);
  const std::string why = comms[0]->explain_plan(Collective::kAllReduce, 6, Dtype::kFloat32, Op::kSum);
  EXPECT_TRUE(why.starts_with("ring simple")) << why;
}

TEST(Planner, BadSettingsAreNamed) {
  for (const auto& [name, value] : {std::pair{"RONDO_ALGO", "rang"}, {"RONDO_PROTO", "ll"}, {"RONDO_TIMEOUT_S", "soon"},
                                    {"RONDO_MESSAGE_BYTES", "12"}, {"RONDO_SIMD", "mmx"}}) {
    const Setting bad(name, value);
    const auto comms = Communicator::init_all(2);
    ASSERT_FALSE(comms.ok()) << name;
    EXPECT_EQ(comms.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(comms.status().message().find(std::string(name) + "=" + value), std::string_view::npos)
        << comms.status().to_string();
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
