// The table of operations of `rondo perf`: names, sizes to buffers and parts, expected results, bandwidth. Destinations
// are computed separately here, by sending every rank's parts to the places that rondo.h defines.
// labels: unit
#include "perf_operations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace rondo::tools {
namespace {

const PerfOperation& operation(std::string_view name) {
  const PerfOperation* o = find_perf_operation(name);
  EXPECT_NE(o, nullptr) << name;
  return *o;
}

TEST(Operations, CoverEveryCollective) {
  for (int c = 0; c < kNumCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    if (is_point_to_point(collective)) continue;
    EXPECT_EQ(operation(collective_name(collective)).collective, collective);
  }
  EXPECT_FALSE(operation("sendrecv").collective.has_value());
  EXPECT_EQ(&operation("alltoall_v"), &operation("All-To-All-V"));
  EXPECT_EQ(find_perf_operation("all_to_none"), nullptr);
  for (const PerfOperation& o : perf_operations())
    EXPECT_NE(perf_operation_names().find(o.name), std::string::npos) << o.name;
}

TEST(Operations, InPlaceAsRondoHSays) {
  for (const PerfOperation& o : perf_operations()) {
    const bool never = o.name.starts_with("all_to_all") || o.name == "sendrecv" || o.name == "barrier";
    EXPECT_EQ(o.may_be_in_place(), !never) << o.name;
  }
}

TEST(CallShapes, SizeIsTheWholeVector) {
  const CallShape all = call_shape(operation("all_reduce"), Dtype::kFloat32, 3, 100);
  EXPECT_EQ(all.count_elems, 25u);
  EXPECT_EQ(all.in_elems, 25u);
  EXPECT_EQ(all.out_elems, 25u);
  EXPECT_EQ(all.bytes, 100u);
  const CallShape scatter = call_shape(operation("reduce_scatter"), Dtype::kFloat32, 3, 100);
  EXPECT_EQ(scatter.count_elems, 8u);
  EXPECT_EQ(scatter.in_elems, 24u);
  EXPECT_EQ(scatter.out_elems, 8u);
  EXPECT_EQ(scatter.bytes, 96u);
  const CallShape gather = call_shape(operation("all_gather"), Dtype::kInt8, 4, 10);
  EXPECT_EQ(gather.count_elems, 2u);
  EXPECT_EQ(gather.in_elems, 2u);
  EXPECT_EQ(gather.out_elems, 8u);
  const CallShape exchange = call_shape(operation("all_to_all"), Dtype::kFloat64, 4, 100);
  EXPECT_EQ(exchange.count_elems, 3u);
  EXPECT_EQ(exchange.in_elems, 12u);
  EXPECT_EQ(exchange.out_elems, 12u);
  const CallShape message = call_shape(operation("sendrecv"), Dtype::kInt8, 4, 10);
  EXPECT_EQ(message.count_elems, 10u);
  EXPECT_EQ(message.bytes, 10u);
  EXPECT_EQ(call_shape(operation("barrier"), Dtype::kInt8, 4, 10).bytes, 0u);
}

TEST(CallShapes, VariableCountsAreTheStatedPattern) {
  const CallShape shape = call_shape(operation("all_gather_v"), Dtype::kFloat32, 3, 4 * 60);
  EXPECT_EQ(shape.whole_elems, 60u);
  const RankLayout layout = rank_layout(operation("all_gather_v"), shape, {1, 3, 0});
  EXPECT_EQ(layout.out_counts, (std::vector<uint64_t>{10, 20, 30}));
  EXPECT_EQ(layout.in_elems, 20u);
  EXPECT_EQ(layout.out_own, 10u);
  EXPECT_EQ(shape.in_elems, 30u);
  const RankLayout exchange = rank_layout(operation("all_to_all_v"), shape, {2, 3, 0});
  EXPECT_EQ(exchange.in_counts, (std::vector<uint64_t>{30, 10, 20}));
}

/// (source rank, position there) of each element of a rank's input or output.
using Places = std::vector<std::pair<Rank, uint64_t>>;

/// Every rank's output, by moving data as rondo.h defines. Layouts give only the lengths.
std::vector<Places> moved(const PerfOperation& o, const std::vector<RankLayout>& layouts, Rank root) {
  const auto n = static_cast<Rank>(layouts.size());
  std::vector<Places> outputs(layouts.size());
  const auto append = [&](Rank to, Rank from, uint64_t first, uint64_t num) {
    for (uint64_t e = 0; e < num; ++e) outputs[static_cast<size_t>(to)].emplace_back(from, first + e);
  };
  for (Rank to = 0; to < n; ++to)
    for (Rank from = 0; from < n; ++from) {
      const RankLayout& giver = layouts[static_cast<size_t>(from)];
      const auto part = static_cast<size_t>(to);
      if (o.name.starts_with("all_gather") || (o.name == "gather" && to == root)) {
        append(to, from, 0, giver.in_elems);
      } else if (o.name.starts_with("all_to_all") || (o.name == "scatter" && from == root)) {
        const uint64_t first = std::accumulate(giver.in_counts.begin(), giver.in_counts.begin() + to, uint64_t{0});
        append(to, from, first, giver.in_counts[part]);
      } else if ((o.name == "broadcast" && from == root) || (o.name == "sendrecv" && (from + 1) % n == to)) {
        append(to, from, 0, giver.in_elems);
      }
    }
  return outputs;
}

TEST(Segments, AreWhatMustArrive) {
  for (const PerfOperation& o : perf_operations())
    for (const int nranks : {1, 2, 3, 4, 9})
      for (const uint64_t bytes : {0, 4, 44, 1000})
        for (Rank root = 0; root < (o.is_rooted() ? nranks : 1); ++root) {
          if (o.traits.reduces || !o.moves_bytes()) continue;
          SCOPED_TRACE(::testing::Message()
                       << o.name << ", " << nranks << " ranks, " << bytes << " bytes, root " << root);
          const CallShape shape = call_shape(o, Dtype::kFloat32, nranks, bytes);
          std::vector<RankLayout> layouts;
          for (Rank r = 0; r < nranks; ++r) layouts.push_back(rank_layout(o, shape, {r, nranks, root}));
          const std::vector<Places> want = moved(o, layouts, root);
          for (Rank r = 0; r < nranks; ++r) {
            const RankLayout& layout = layouts[static_cast<size_t>(r)];
            Places have;
            for (const Segment& s : expected_segments(o, shape, {r, nranks, root}))
              for (uint64_t e = 0; e < s.num_elems; ++e) have.emplace_back(s.from, s.first_elem + e);
            EXPECT_EQ(have, want[static_cast<size_t>(r)]) << "rank " << r;
            EXPECT_EQ(have.size(), layout.out_elems);
            EXPECT_LE(layout.in_elems, shape.in_elems);
            EXPECT_LE(layout.out_elems, shape.out_elems);
          }
        }
}

TEST(Layouts, PartsOfAReductionCoverTheWhole) {
  for (const char* name : {"reduce_scatter", "reduce_scatter_v"})
    for (const int nranks : {1, 2, 5, 8}) {
      const CallShape shape = call_shape(operation(name), Dtype::kInt8, nranks, 1003);
      uint64_t next = 0;
      for (Rank r = 0; r < nranks; ++r) {
        const RankLayout layout = rank_layout(operation(name), shape, {r, nranks, 0});
        EXPECT_EQ(layout.in_own, next) << name;
        EXPECT_EQ(layout.in_elems, shape.whole_elems);
        next += layout.out_elems;
      }
      EXPECT_EQ(next, shape.whole_elems) << name;
    }
}

TEST(Layouts, ARootedBufferIsTheRootsAlone) {
  const CallShape shape = call_shape(operation("reduce"), Dtype::kFloat32, 3, 40);
  EXPECT_EQ(rank_layout(operation("reduce"), shape, {1, 3, 1}).out_elems, 10u);
  EXPECT_EQ(rank_layout(operation("reduce"), shape, {0, 3, 1}).out_elems, 0u);
  EXPECT_EQ(rank_layout(operation("reduce"), shape, {0, 3, 1}).in_elems, 10u);
  EXPECT_EQ(rank_layout(operation("scatter"), shape, {0, 3, 1}).in_elems, 0u);
}

TEST(Bandwidths, FormulaeOfNcclTests) {
  const std::map<std::string, double> factors = {
      {"all_reduce", 1.5},    {"reduce_scatter", 0.75},   {"all_gather", 0.75},  {"broadcast", 1}, {"reduce", 1},
      {"all_to_all", 0.75},   {"gather", 0.75},           {"scatter", 0.75},     {"sendrecv", 1},  {"barrier", 0},
      {"all_gather_v", 0.75}, {"reduce_scatter_v", 0.75}, {"all_to_all_v", 0.75}};
  ASSERT_EQ(factors.size(), perf_operations().size());
  for (const auto& [name, factor] : factors) {
    const Bandwidth b = bandwidth(operation(name), 4, 2'000'000'000, 0.5);
    EXPECT_DOUBLE_EQ(b.algorithm, 4.0);
    EXPECT_DOUBLE_EQ(b.bus, 4.0 * factor) << name;
  }
  EXPECT_DOUBLE_EQ(bandwidth(operation("all_reduce"), 1, 1000, 1).bus, 0.0);
  EXPECT_DOUBLE_EQ(bandwidth(operation("all_reduce"), 2, 1000, 0).algorithm, 0.0);
}

}  // namespace
}  // namespace rondo::tools
