// Direct algorithms among processes that may not read one another's memory, with buffers that not all ranks can reach:
// the communicator's own memory makes such an algorithm a candidate, but the call's buffers are ordinary.
// labels: mp
// timeout: 120
// separate
#include "conformance/conformance_cases.h"
#include "conformance/mixed_types_suite.h"
#include "conformance/variable_counts_suite.h"

namespace rondo::testing {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MixedTypes);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(VariableCountsTest);

namespace {

constexpr uint64_t kBytes = 4096;

// Every collective with each of its direct algorithms and with the planner's choice; in place if possible, and not.
std::vector<Case> direct_cases(int nranks) {
  std::vector<Case> cases;
  for (Case c : algorithm_cases()) {
    if (c.algorithm != nullptr && !c.algorithm->direct) continue;
    if (c.collective == Collective::kBarrier) continue;
    for (const Op op : {Op::kSum, Op::kAvg, Op::kPremulSum})
      for (const bool in_place : {false, true})
        for (const uint64_t count : {0, 1, 257, 40000}) {
          c.op = op, c.in_place = in_place, c.count_elems = count;
          c.root = static_cast<Rank>(cases.size() % static_cast<size_t>(nranks));
          c.variant = static_cast<uint32_t>(cases.size() % 7);
          if (applies(c) && (op == Op::kSum || collective_reduces(c.collective))) cases.push_back(c);
        }
  }
  return cases;
}

// With ordinary buffers on all ranks, then on all except rank 0.
void run_on_ordinary_buffers(int nranks, const std::string& settings) {
  const std::vector<Case> cases = direct_cases(nranks);
  const DataTables tables(nranks, 42, conformance_dtypes(), conformance_ops());
  SpawnOptions options;
  options.config.settings = "cma = 0\n" + settings;
  options.config.deadline_s = 30;
  spawn(
      World::kProcesses, nranks,
      [&](Communicator& comm) -> Status {
        CaseRunner ordinary(comm, tables), mapped(comm, tables);
        const uint64_t bytes = largest_buffer_bytes(cases, nranks);
        RONDO_TRY(ordinary.open(Memory::kHeap, bytes));
        RONDO_TRY(mapped.open(Memory::kAlloc, bytes));
        for (const Case& c : cases) RONDO_TRY(ordinary.run(c));
        for (const Case& c : cases) RONDO_TRY((comm.rank() == 0 ? mapped : ordinary).run(c));
        for (const Case& c : cases) RONDO_TRY(mapped.run(c));
        EXPECT_EQ(ordinary.num_unreachable() + mapped.num_unreachable(), 0);
        return Status();
      },
      options);
}

TEST(OrdinaryBuffers, AreServedByEveryAlgorithmThatACallNames) {
  for (const int nranks : {2, 3}) run_on_ordinary_buffers(nranks, "");
}

TEST(OrdinaryBuffers, AreServedByTheAlgorithmThatASettingNames) { run_on_ordinary_buffers(2, "algo = pull"); }

// The replacement may round elsewhere than the named algorithm: sums of small whole numbers are exact in every type.
void check_exact_sums(Communicator& comm, uint64_t count) {
  TypeRow row{Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat32};
  CallOptions options;
  options.row = &row;
  options.algorithm = "pull";
  const auto n = static_cast<uint64_t>(comm.size());
  const auto value = [](uint64_t i, uint64_t rank) { return static_cast<float>(i % 5 + rank); };
  std::vector<float> in(n * count);
  for (uint64_t i = 0; i < in.size(); ++i) in[i] = value(i, static_cast<uint64_t>(comm.rank()));
  const auto expect = [&](const std::vector<float>& out, uint64_t first, const char* what) {
    for (uint64_t i = 0; i < count; ++i) {
      float sum = 0;
      for (uint64_t r = 0; r < n; ++r) sum += value(first + i, r);
      ASSERT_EQ(out[i], sum) << what << ", rank " << comm.rank() << ", element " << i;
    }
  };
  std::vector<float> out(in.begin(), in.begin() + static_cast<ptrdiff_t>(count));
  ASSERT_TRUE(is_ok(comm.all_reduce(out.data(), out.data(), count, Dtype::kFloat32, Op::kSum, &options)));
  expect(out, 0, "all_reduce");
  ASSERT_TRUE(is_ok(comm.reduce_scatter(in.data(), out.data(), count, Dtype::kFloat32, Op::kSum, &options)));
  expect(out, static_cast<uint64_t>(comm.rank()) * count, "reduce_scatter");
  ASSERT_TRUE(is_ok(comm.reduce(in.data(), out.data(), count, Dtype::kFloat32, Op::kSum, 1, &options)));
  if (comm.rank() == 1) expect(out, 0, "reduce");
}

TEST(OrdinaryBuffers, AreServedWithMixedTypesAndCountsForEachRank) {
  SpawnOptions options;
  options.config.settings = "cma = 0";
  options.config.deadline_s = 30;
  spawn(
      World::kProcesses, 3,
      [](Communicator& comm) -> Status {
        RONDO_TRY_ASSIGN(void* const memory, comm.alloc(kBytes));
        for (const uint64_t count : {5, 1009}) {
          const TypeRow row{Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat32};
          check_exact_sums(comm, count);
          check_mixed_moves({comm, row, count, "pull"});
        }
        for (const std::vector<uint64_t>& counts : count_patterns(comm.size()))
          for (const bool in_place : {false, true}) {
            check_all_gather_v(comm, counts, false, in_place, "pull");
            check_reduce_scatter_v(comm, counts, false, in_place, "pull");
          }
        return comm.free(memory);
      },
      options);
}

// Without the communicator's own memory nothing can be reached: a call's requirement is refused, a setting is ignored.
TEST(OrdinaryBuffers, RefuseADemandThatNoMemoryCanServe) {
  SpawnOptions options;
  options.config.settings = "cma = 0\nalgo = pull";
  spawn(
      World::kProcesses, 2,
      [](Communicator& comm) -> Status {
        CallOptions demand;
        demand.algorithm = "pull";
        RONDO_TRY_ASSIGN(void* const memory, comm.alloc(kBytes));
        SimpleAllReduce with(comm, 1000);
        RONDO_TRY(with.start(comm, nullptr, &demand));
        EXPECT_EQ(with.judge(), "");
        const std::string plan = comm.explain_plan(Collective::kAllReduce, 1000, Dtype::kFloat32, Op::kSum);
        EXPECT_EQ(plan.find("pull"), 0u) << plan;
        EXPECT_NE(plan.find("when a rank's buffers cannot be reached"), std::string::npos) << plan;
        RONDO_TRY(comm.free(memory));
        SimpleAllReduce refused(comm, 1000), set(comm, 1000);
        EXPECT_TRUE(fails_with(refused.start(comm, nullptr, &demand), StatusCode::kUnsupported,
                               {"pull", "read one another's memory"}));
        RONDO_TRY(set.start(comm, nullptr));
        EXPECT_EQ(set.judge(), "");
        return Status();
      },
      options);
}

}  // namespace
}  // namespace rondo::testing
