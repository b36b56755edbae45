// Conformance for ranks on several real or pretended hosts (RONDO_HOSTS): every row that depends on hosts, and the
// planner's choice, gives the oracle's bits on uniform, ragged and mixed layouts. The layout is also right for parts,
// survivors and concurrent communicators.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "api/communicator_impl.h"
#include "api/parts.h"
#include "conformance/conformance_cases.h"

namespace rondo::testing {

inline HostLayout layout_of(const char* text) { return *HostLayout::parse(text); }

inline Config on_hosts(const std::string& text) {
  Config config;
  config.settings = "hosts = " + text;
  return config;
}

inline SpawnOptions spawned_on(const std::string& text) {
  SpawnOptions options;
  options.config = on_hosts(text);
  return options;
}

/// Rows that depend on hosts, the planner's choice, and a few of the other rows.
inline std::vector<Case> host_cases(int nranks) {
  std::vector<Case> cases = product_cases(nranks);
  size_t seen = 0;
  std::erase_if(cases, [&](const Case& c) {
    if (c.algorithm == nullptr) return false;
    if (c.algorithm->direct) return true;  // not possible on several hosts
    return !depends_on_hosts(*c.algorithm) && seen++ % 16 != 0;
  });
  return cases;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HostConformance);
class HostConformance : public ::testing::TestWithParam<std::tuple<World, const char*>> {
 protected:
  World world() const { return std::get<0>(GetParam()); }
  const char* text() const { return std::get<1>(GetParam()); }
};

TEST_P(HostConformance, EveryTypeOpAndSize) {
  const int nranks = layout_of(text()).nranks();
  run_cases(world(), nranks, Memory::kHeap, host_cases(nranks), on_hosts(text()));
}

TEST_P(HostConformance, SeveralMebibytes) {
  const int nranks = layout_of(text()).nranks();
  std::vector<Case> cases = large_cases(nranks, kSanitized ? 300000 : 3 << 20);
  std::erase_if(cases, [](const Case& c) { return c.algorithm != nullptr && !depends_on_hosts(*c.algorithm); });
  run_cases(world(), nranks, Memory::kHeap, cases, on_hosts(text()));
}

inline std::string host_conformance_name(const ::testing::TestParamInfo<std::tuple<World, const char*>>& info) {
  std::string name = std::string(world_name(std::get<0>(info.param))) + "_" + std::get<1>(info.param);
  for (char& c : name)
    if (c == '+' || c == ',') c = '_';
  return name;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Hosts);
class Hosts : public ::testing::TestWithParam<World> {};

TEST_P(Hosts, AreThoseOfTheParts) {
  spawn(
      GetParam(), 6,
      [](Communicator& comm) {
        const Rank r = comm.rank();
        EXPECT_EQ(impl_of(comm).hosts(), layout_of("0,1,2,0,1,2"));
        const Comm pairs = split_or_fail(comm, r % 3, 0);  // both ranks of a host
        EXPECT_EQ(impl_of(*pairs).hosts(), HostLayout(2));
        const Comm across = split_or_fail(comm, r / 3, 0);
        EXPECT_EQ(impl_of(*across).hosts(), layout_of("3x1"));
        const Comm reversed = split_or_fail(comm, 0, -r);
        EXPECT_EQ(impl_of(*reversed).hosts(), layout_of("0,1,2,0,1,2"));
        const Comm some = split_or_fail(comm, r == 4 ? kNoColour : 0, 0);
        if (some != nullptr) {
          EXPECT_EQ(impl_of(*some).hosts(), layout_of("0,1,2,0,2"));
          const Comm of_part = split_or_fail(*some, some->rank() == 0 ? 1 : 0, 0);
          EXPECT_EQ(impl_of(*of_part).hosts(), some->rank() == 0 ? HostLayout(1) : layout_of("0,1,2,1"));
          EXPECT_TRUE(works(*of_part));
          EXPECT_TRUE(works(*some, 100000));
        }
        for (Communicator* c : {pairs.get(), across.get(), reversed.get()}) EXPECT_TRUE(works(*c, 3000));
      },
      spawned_on("0,1,2,0,1,2"));
}

TEST_P(Hosts, AreThoseOfTheSurvivors) {
  spawn_owning(
      GetParam(), 5,
      [](Comm comm) {
        const Rank r = comm->rank();
        EXPECT_EQ(impl_of(*comm).hosts(), layout_of("3+2"));
        if (r == 1 || r == 2) return;  // destroys its communicator
        const Comm made = shrink_or_fail(*comm);
        ASSERT_NE(made, nullptr);
        EXPECT_EQ(impl_of(*made).hosts(), layout_of("1+2"));
        CallOptions named;
        named.algorithm = "hierarchical";
        std::vector<float> data(1000, static_cast<float>(made->rank() + 1));
        EXPECT_TRUE(made->all_reduce(data.data(), data.data(), data.size(), Dtype::kFloat32, Op::kSum, &named).ok());
        EXPECT_EQ(data.front(), 6);
        EXPECT_EQ(data.back(), 6);
      },
      spawned_on("3+2"));
}

TEST_P(Hosts, OfAPartMayBeSaidAnew) {
  spawn(GetParam(), 4, [](Communicator& comm) {
    EXPECT_TRUE(impl_of(comm).hosts().one_host());
    const auto part = comm.split(0, 0, on_hosts("2x2"));
    ASSERT_TRUE(part.ok()) << part.status().to_string();
    EXPECT_EQ(impl_of(**part).hosts(), layout_of("2x2"));
    EXPECT_TRUE(works(**part, 5000));
    EXPECT_TRUE(impl_of(comm).hosts().one_host()) << "the parent stays as it was";
    const auto wrong = comm.split(0, 0, on_hosts("2x3"));
    EXPECT_EQ(wrong.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(wrong.status().message().find("RONDO_HOSTS=2x3 does not describe the hosts of 4 ranks"),
              std::string_view::npos)
        << wrong.status().to_string();
  });
}

TEST_P(Hosts, DifferAtOnceFromCommunicatorToCommunicator) {
  spawn(GetParam(), 6, [](Communicator& comm) {
    const auto a = comm.split(0, 0, on_hosts("2x3")), b = comm.split(0, 0, on_hosts("0,1,0,1,0,2"));
    ASSERT_TRUE(a.ok() && b.ok());
    constexpr uint64_t kCount = 20000;
    for (const char* name : {"hierarchical", "hierarchical_one_shot", "ring", "tree"}) {
      CallOptions named;
      named.algorithm = name;
      std::vector<int32_t> x(kCount, comm.rank()), y(kCount, 1), z(kCount, 2);
      Work on_a, on_b, on_all;  // all three at once
      EXPECT_TRUE((*a)->all_reduce(x.data(), x.data(), kCount, Dtype::kInt32, Op::kSum, &named, &on_a).ok());
      EXPECT_TRUE((*b)->all_reduce(y.data(), y.data(), kCount, Dtype::kInt32, Op::kSum, &named, &on_b).ok());
      EXPECT_TRUE(comm.all_reduce(z.data(), z.data(), kCount, Dtype::kInt32, Op::kSum, nullptr, &on_all).ok());
      for (Work* work : {&on_a, &on_b, &on_all}) EXPECT_TRUE(work->wait().ok()) << name;
      for (const uint64_t at : {uint64_t{0}, kCount / 2, kCount - 1}) {
        EXPECT_EQ(x[at], 15) << name;
        EXPECT_EQ(y[at], 6) << name;
        EXPECT_EQ(z[at], 12) << name;
      }
    }
  });
}

TEST_P(Hosts, AreSaidInThePlan) {
  spawn(
      GetParam(), 4,
      [](Communicator& comm) {
        const std::string small = comm.explain_plan(Collective::kAllReduce, 1, Dtype::kFloat32, Op::kSum);
        EXPECT_NE(small.find("hosts 2x2 (pretended)"), std::string::npos) << small;
        const std::string large = comm.explain_plan(Collective::kAllReduce, 4 << 20, Dtype::kFloat32, Op::kSum);
        // A tree of hosts crosses with as many bytes: the forecasts differ by a thousandth.
        EXPECT_TRUE(large.starts_with("hierarchical") || large.find("next best hierarchical") != large.npos) << large;
        EXPECT_FALSE(large.starts_with("ring")) << large;
        CallOptions direct;
        direct.algorithm = "direct";
        float x = 1;
        const Status refused = comm.all_reduce(&x, &x, 1, Dtype::kFloat32, Op::kSum, &direct);
        EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
        EXPECT_NE(refused.message().find("several hosts (2x2)"), std::string_view::npos) << refused.to_string();
      },
      spawned_on("2x2"));
}

TEST_P(Hosts, RowsForThemRunOnOneHostOnlyWhenNamed) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    for (const uint64_t count : {1, 1000, 1000000})
      EXPECT_EQ(comm.explain_plan(Collective::kAllReduce, count, Dtype::kFloat32, Op::kSum).find("hierarchical"),
                std::string::npos);
    CallOptions named;
    named.algorithm = "hierarchical";
    float x = 1;
    EXPECT_TRUE(comm.all_reduce(&x, &x, 1, Dtype::kFloat32, Op::kSum, &named).ok());
    EXPECT_EQ(x, 3);
  });
}

}  // namespace rondo::testing
