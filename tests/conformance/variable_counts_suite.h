// Collectives with a count for each rank: ragged, with zeros, with one giant part, packed and scattered, in place; and
// their refusals and mismatches. Values contain source, destination and position, so that a swapped part is detected.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {

class VariableCountsTest : public WorldTest {};

/// Patterns of counts for n ranks, computed equally on all ranks.
inline std::vector<std::vector<uint64_t>> count_patterns(int nranks) {
  const auto n = static_cast<size_t>(nranks);
  std::vector<std::vector<uint64_t>> patterns{std::vector<uint64_t>(n, 0), std::vector<uint64_t>(n, 13)};
  std::vector<uint64_t> giant(n, 0), ragged(n), odd(n, 1);
  giant[n / 2] = kSanitized ? 20011 : 200003;
  std::mt19937_64 random(nranks);
  for (uint64_t& c : ragged) c = random() % 5 == 0 ? 0 : random() % (kSanitized ? 4000 : 40000);
  odd[n - 1] = 17001;
  patterns.insert(patterns.end(), {giant, ragged, odd});
  return patterns;
}

/// Contiguous parts, or parts with gaps in reversed order.
inline std::vector<uint64_t> offsets_for(const std::vector<uint64_t>& counts, bool scattered) {
  std::vector<uint64_t> offsets(counts.size());
  uint64_t at = scattered ? 3 : 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const size_t r = scattered ? counts.size() - 1 - i : i;
    offsets[r] = at;
    at += counts[r] + (scattered ? 5 : 0);
  }
  return offsets;
}
inline uint64_t extent_of(const std::vector<uint64_t>& counts, const std::vector<uint64_t>& offsets) {
  uint64_t end = 0;
  for (size_t r = 0; r < counts.size(); ++r) end = std::max(end, offsets[r] + counts[r]);
  return end;
}

inline int64_t token(int source, int destination, uint64_t i) {
  return static_cast<int64_t>(source) * 1'000'003 + static_cast<int64_t>(destination) * 10'007 + static_cast<int64_t>(i);
}
constexpr int64_t kUntouched = -77;

/// Names of a collective's algorithms that support variable counts here, and the planner's choice (nullptr).
inline std::vector<const char*> algorithms_for(World world, Collective collective, bool packed) {
  std::vector<const char*> names{nullptr};
  for (const Algorithm& a : all_algorithms()) {
    if (a.collective != collective || (a.direct && (!packed || world != World::kThreads))) continue;
    const RankSchedule s = record_rank(a, 0, 3);
    const CollectiveTraits& t = collective_traits(collective);
    if (s.in_chunks == parts(t.in_parts, 3) && s.out_chunks == parts(t.out_parts, 3)) names.push_back(a.name.data());
  }
  return names;
}

inline void check_all_gather_v(Communicator& comm, const std::vector<uint64_t>& counts, bool scattered, bool in_place,
                               const char* algorithm) {
  const auto me = static_cast<size_t>(comm.rank());
  const std::vector<uint64_t> offsets = offsets_for(counts, scattered);
  std::vector<int64_t> own(counts[me]), out(extent_of(counts, offsets) + 2, kUntouched);
  for (uint64_t i = 0; i < counts[me]; ++i) own[i] = token(comm.rank(), 0, i);
  if (in_place) std::copy(own.begin(), own.end(), out.begin() + static_cast<ptrdiff_t>(offsets[me]));
  CallOptions options;
  options.algorithm = algorithm;
  const Status s = comm.all_gather_v(in_place ? out.data() + offsets[me] : own.data(), out.data(), counts.data(),
                                     scattered ? offsets.data() : nullptr, Dtype::kInt64, &options);
  ASSERT_TRUE(is_ok(s));
  std::vector<int64_t> wanted(out.size(), kUntouched);
  for (size_t r = 0; r < counts.size(); ++r)
    for (uint64_t i = 0; i < counts[r]; ++i) wanted[offsets[r] + i] = token(static_cast<int>(r), 0, i);
  ASSERT_EQ(out, wanted) << (algorithm ? algorithm : "planned") << (scattered ? " scattered" : "");
}

inline void check_reduce_scatter_v(Communicator& comm, const std::vector<uint64_t>& counts, bool scattered, bool in_place,
                                   const char* algorithm) {
  const auto me = static_cast<size_t>(comm.rank());
  const std::vector<uint64_t> offsets = offsets_for(counts, scattered);
  std::vector<int64_t> in(extent_of(counts, offsets) + 1), own(counts[me] + 1, kUntouched);
  for (uint64_t i = 0; i < in.size(); ++i) in[i] = token(comm.rank(), 0, i);
  CallOptions options;
  options.algorithm = algorithm;
  int64_t* out = in_place ? in.data() + offsets[me] : own.data();
  const Status s = comm.reduce_scatter_v(in.data(), out, counts.data(), scattered ? offsets.data() : nullptr,
                                         Dtype::kInt64, Op::kSum, &options);
  ASSERT_TRUE(is_ok(s));
  for (uint64_t i = 0; i < counts[me]; ++i) {
    int64_t sum = 0;
    for (int r = 0; r < comm.size(); ++r) sum += token(r, 0, offsets[me] + i);
    ASSERT_EQ(out[i], sum) << (algorithm ? algorithm : "planned") << " element " << i;
  }
  if (!in_place) {
    ASSERT_EQ(own[counts[me]], kUntouched);
  }
}

/// Counts of a matrix: rank a gives rank b `row(a)[b]` elements.
inline std::vector<uint64_t> row_of(int nranks, Rank a, int pattern) {
  std::vector<uint64_t> row(static_cast<size_t>(nranks));
  for (Rank b = 0; b < nranks; ++b) {
    const auto k = static_cast<uint64_t>(a * 7 + b * 3);
    switch (pattern) {
      case 0: row[static_cast<size_t>(b)] = 0; break;
      case 1: row[static_cast<size_t>(b)] = k % 4 == 0 ? 0 : k % 23; break;
      case 2: row[static_cast<size_t>(b)] = a == 0 && b == nranks - 1 ? 70001 : 0; break;
      default: row[static_cast<size_t>(b)] = k % 3 == 0 ? 0 : (k * 977) % 30011; break;
    }
  }
  return row;
}

inline void check_all_to_all_v(Communicator& comm, int pattern, bool scattered, const char* algorithm) {
  const int n = comm.size();
  const std::vector<uint64_t> out_of_me = row_of(n, comm.rank(), pattern);
  std::vector<uint64_t> into_me(static_cast<size_t>(n));
  for (Rank a = 0; a < n; ++a) into_me[static_cast<size_t>(a)] = row_of(n, a, pattern)[static_cast<size_t>(comm.rank())];
  const std::vector<uint64_t> in_at = offsets_for(out_of_me, scattered), out_at = offsets_for(into_me, scattered);
  std::vector<int64_t> in(extent_of(out_of_me, in_at) + 1), out(extent_of(into_me, out_at) + 1, kUntouched), wanted = out;
  for (Rank b = 0; b < n; ++b)
    for (uint64_t i = 0; i < out_of_me[static_cast<size_t>(b)]; ++i)
      in[in_at[static_cast<size_t>(b)] + i] = token(comm.rank(), b, i);
  for (Rank a = 0; a < n; ++a)
    for (uint64_t i = 0; i < into_me[static_cast<size_t>(a)]; ++i)
      wanted[out_at[static_cast<size_t>(a)] + i] = token(a, comm.rank(), i);
  CallOptions options;
  options.algorithm = algorithm;
  const Status s = comm.all_to_all_v(in.data(), out_of_me.data(), scattered ? in_at.data() : nullptr, out.data(),
                                     into_me.data(), scattered ? out_at.data() : nullptr, Dtype::kInt64, &options);
  ASSERT_TRUE(is_ok(s));
  ASSERT_EQ(out, wanted) << "pattern " << pattern;
}

TEST_P(VariableCountsTest, EveryPatternAlgorithmAndPlacement) {
  for (const int nranks : kSanitized ? std::vector{1, 2, 3} : std::vector{1, 2, 3, 5, 8})
    spawn(GetParam(), nranks, [&](Communicator& comm) {
      for (const std::vector<uint64_t>& counts : count_patterns(nranks))
        for (const bool scattered : {false, true}) {
          for (const char* a : algorithms_for(GetParam(), Collective::kAllGather, !scattered))
            for (const bool in_place : {false, true}) check_all_gather_v(comm, counts, scattered, in_place, a);
          for (const char* a : algorithms_for(GetParam(), Collective::kReduceScatter, !scattered))
            for (const bool in_place : {false, true}) check_reduce_scatter_v(comm, counts, scattered, in_place, a);
        }
    });
}

TEST_P(VariableCountsTest, AllToAllOfEveryMatrix) {
  for (const int nranks : kSanitized ? std::vector{1, 2, 3} : std::vector{1, 2, 3, 4, 7})
    spawn(GetParam(), nranks, [&](Communicator& comm) {
      for (int round = 0; round < 2; ++round)
        for (int pattern = 0; pattern < 4; ++pattern)
          for (const bool scattered : {false, true}) check_all_to_all_v(comm, pattern, scattered, nullptr);
    });
}

TEST_P(VariableCountsTest, DifferentCountsAreNamed) {
  Shared<Barrier> checked;
  // A rank that exchanges messages with the other one notices it. On hosts not every rank does.
  const int nranks = GetParam() == World::kHosts ? 2 : 3;
  spawn(GetParam(), nranks, [&](Communicator& comm) {
    std::vector<uint64_t> counts{100, 200, 300};
    counts.resize(static_cast<size_t>(nranks));
    if (comm.rank() == nranks - 1) std::swap(counts.end()[-2], counts.end()[-1]);  // the same sum
    std::vector<float> in(300), out(600);
    const Status s = comm.all_gather_v(in.data(), out.data(), counts.data(), nullptr, Dtype::kFloat32);
    EXPECT_TRUE(fails_with(s, StatusCode::kMismatch, {"all_gather_v"}));
    ASSERT_TRUE(checked->arrive_and_wait(static_cast<uint32_t>(nranks), 20));
  });
}

TEST_P(VariableCountsTest, APairThatDisagreesIsNamed) {
  Shared<Barrier> checked;
  spawn(GetParam(), 2, [&](Communicator& comm) {
    const uint64_t give[] = {5, 5};
    uint64_t take[] = {5, 5};
    if (comm.rank() == 1) take[0] = 6;  // rank 0 gives 5
    std::vector<float> in(20), out(20);
    const Status s = comm.all_to_all_v(in.data(), give, nullptr, out.data(), take, nullptr, Dtype::kFloat32);
    if (comm.rank() == 1) {
      EXPECT_TRUE(fails_with(s, StatusCode::kMismatch, {"all_to_all_v", "rank 0"}));
    }
    ASSERT_TRUE(checked->arrive_and_wait(2, 20));
  });
}

TEST_P(VariableCountsTest, BadArgumentsAreNamed) {
  spawn(GetParam(), 2, [&](Communicator& comm) {
    std::vector<float> in(100), out(100);
    const uint64_t counts[] = {10, 10}, overlapping[] = {0, 9}, huge[] = {UINT64_MAX / 2, 1};
    auto gather = [&](const uint64_t* c, const uint64_t* o) {
      return comm.all_gather_v(in.data(), out.data(), c, o, Dtype::kFloat32);
    };
    EXPECT_TRUE(fails_with(gather(nullptr, nullptr), StatusCode::kInvalidArgument, {"counts", "null"}));
    EXPECT_TRUE(fails_with(gather(counts, overlapping), StatusCode::kInvalidArgument, {"offsets", "overlap"}));
    EXPECT_TRUE(fails_with(gather(huge, nullptr), StatusCode::kInvalidArgument, {"counts[0]"}));
    uint64_t other[] = {10, 10};
    other[comm.rank()] = 11;
    EXPECT_TRUE(fails_with(
        comm.all_to_all_v(in.data(), counts, nullptr, out.data(), other, nullptr, Dtype::kFloat32),
        StatusCode::kInvalidArgument, {"in_counts", "out_counts"}));
    CallOptions direct;
    direct.algorithm = "no_such";
    EXPECT_TRUE(fails_with(comm.all_gather_v(in.data(), out.data(), counts, nullptr, Dtype::kFloat32, &direct),
                           StatusCode::kInvalidArgument, {"no_such"}));
    EXPECT_TRUE(is_ok(gather(counts, nullptr)));  // it still works
  });
}

}  // namespace rondo::testing
