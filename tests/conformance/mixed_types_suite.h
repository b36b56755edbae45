// Calls with four types: bits equal to an oracle that rounds as docs/types.md states, for every row and the algorithms
// whose order of addition the oracle supports; equal bits on all ranks; refusals with names; and promises about bits,
// which select or refuse algorithms.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "support/exact_data.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {

class MixedTypes : public WorldTest {};

/// The rounding of one element, in doubles that hold floats.
class RowOracle {
 public:
  RowOracle(const TypeRow& row, int nranks, Op op) : row_(row), nranks_(nranks), op_(op) {}

  static double as(Dtype t, double x) {
    uint64_t bits = 0;
    encode_float(t, x, &bits);
    return decode_float(t, &bits);
  }
  double wire(double x) const { return as(row_.wire, x); }
  double output(double x) const { return as(row_.output, x); }
  /// Rank r's input element i in the input type.
  double input(Rank r, uint64_t i) const {
    const uint64_t h = (static_cast<uint64_t>(r) * 1'000'003 + i + 1) * 0x9E3779B97F4A7C15u;
    return as(row_.input, (static_cast<double>(h >> 40) / (1 << 24) - 0.5) * 3);
  }
  double add(double a, double b) const { return static_cast<double>(static_cast<float>(a) + static_cast<float>(b)); }
  double finish(double sum) const {
    return op_ == Op::kAvg ? static_cast<double>(static_cast<float>(sum) / static_cast<float>(nranks_)) : sum;
  }
  /// Ranks 0..N-1 in fp32, each contribution as it travels.
  double rank_order(uint64_t i) const {
    double sum = wire(input(0, i));
    for (Rank r = 1; r < nranks_; ++r) sum = add(sum, wire(input(r, i)));
    return finish(sum);
  }
  /// From rank `owner` + 1 round to `owner`; the partial sum is rounded at each hop.
  double ring_order(uint64_t i, Rank owner) const {
    double sum = wire(input((owner + 1) % nranks_, i));
    for (int hop = 2; hop <= nranks_; ++hop) {
      sum = add(sum, wire(input((owner + hop) % nranks_, i)));
      if (hop < nranks_) sum = wire(sum);
    }
    return finish(sum);
  }

 private:
  TypeRow row_;
  int nranks_;
  Op op_;
};

inline std::string row_name(const TypeRow& t) {
  return std::string(dtype_name(t.input)) + ">" + std::string(dtype_name(t.wire)) + ">" + std::string(dtype_name(t.output));
}

struct MixedCall {
  Communicator& comm;
  TypeRow row;
  uint64_t count;
  const char* algorithm;
  Op op = Op::kSum;

  RowOracle oracle() const { return RowOracle(row, comm.size(), op); }
  std::vector<uint8_t> encoded_input(uint64_t first, uint64_t n) const {
    const uint64_t bytes = dtype_bytes(row.input);
    std::vector<uint8_t> v(n * bytes + 8);
    for (uint64_t i = 0; i < n; ++i) encode_float(row.input, oracle().input(comm.rank(), first + i), v.data() + i * bytes);
    return v;
  }
  CallOptions options(TypeRow* keep) const {
    *keep = row;
    CallOptions o;
    o.row = keep;
    o.algorithm = algorithm;
    return o;
  }
  template <class Wanted>
  void expect(const std::vector<uint8_t>& out, uint64_t n, const Wanted& wanted, const char* what) const {
    const uint64_t bytes = dtype_bytes(row.output);
    for (uint64_t i = 0; i < n; ++i) {
      const double got = decode_float(row.output, out.data() + i * bytes), want = RowOracle::as(row.output, wanted(i));
      ASSERT_EQ(got, want) << what << " " << (algorithm ? algorithm : "planned") << " " << row_name(row) << " "
                           << op_name(op) << ", rank " << comm.rank() << " of " << comm.size() << ", element " << i;
    }
  }
};

inline void check_mixed_all_reduce(const MixedCall& c, bool ring, bool in_place) {
  TypeRow keep;
  const CallOptions options = c.options(&keep);
  std::vector<uint8_t> in = c.encoded_input(0, c.count), out(c.count * dtype_bytes(c.row.output) + 8);
  if (in_place) out = in;
  ASSERT_TRUE(is_ok(c.comm.all_reduce(in_place ? out.data() : in.data(), out.data(), c.count, c.row.input, c.op, &options)));
  const RowOracle o = c.oracle();
  const auto n = static_cast<uint64_t>(c.comm.size());
  auto owner = [&](uint64_t i) {  // of the chunk with element i
    const uint64_t base = c.count / n, longer = c.count % n, edge = longer * (base + 1);
    return static_cast<Rank>(i < edge ? i / (base + 1) : longer + (i - edge) / std::max<uint64_t>(base, 1));
  };
  c.expect(out, c.count, [&](uint64_t i) { return o.wire(ring ? o.ring_order(i, owner(i)) : o.rank_order(i)); },
           "all_reduce");
}

inline void check_mixed_reduce_scatter(const MixedCall& c, bool ring) {
  TypeRow keep;
  const CallOptions options = c.options(&keep);
  const uint64_t first = c.count * static_cast<uint64_t>(c.comm.rank());
  std::vector<uint8_t> in = c.encoded_input(0, c.count * static_cast<uint64_t>(c.comm.size()));
  std::vector<uint8_t> out(c.count * dtype_bytes(c.row.output) + 8);
  ASSERT_TRUE(is_ok(c.comm.reduce_scatter(in.data(), out.data(), c.count, c.row.input, c.op, &options)));
  const RowOracle o = c.oracle();
  c.expect(out, c.count,
           [&](uint64_t i) { return ring ? o.ring_order(first + i, c.comm.rank()) : o.rank_order(first + i); },
           "reduce_scatter");
}

/// With an algorithm that adds in rank order, at the root: the last rank.
inline void check_mixed_reduce(const MixedCall& c) {
  TypeRow keep;
  const CallOptions options = c.options(&keep);
  const Rank root = c.comm.size() - 1;
  std::vector<uint8_t> in = c.encoded_input(0, c.count), out(c.count * dtype_bytes(c.row.output) + 8);
  ASSERT_TRUE(is_ok(c.comm.reduce(in.data(), out.data(), c.count, c.row.input, c.op, root, &options)));
  const RowOracle o = c.oracle();
  if (c.comm.rank() == root) c.expect(out, c.count, [&](uint64_t i) { return o.rank_order(i); }, "reduce");
}

inline void check_mixed_moves(const MixedCall& c) {
  TypeRow keep;
  const CallOptions options = c.options(&keep);
  const RowOracle o = c.oracle();
  const auto n = static_cast<uint64_t>(c.comm.size());
  const uint64_t out_bytes = dtype_bytes(c.row.output);
  const Rank root = c.comm.size() - 1;
  std::vector<uint8_t> one = c.encoded_input(0, c.count), all = c.encoded_input(0, c.count * n);
  std::vector<uint8_t> out(c.count * n * out_bytes + 8);
  ASSERT_TRUE(is_ok(c.comm.all_gather(one.data(), out.data(), c.count, c.row.input, &options)));
  c.expect(out, c.count * n, [&](uint64_t i) { return o.wire(o.input(static_cast<Rank>(i / c.count), i % c.count)); },
           "all_gather");
  ASSERT_TRUE(is_ok(c.comm.broadcast(one.data(), out.data(), c.count, c.row.input, root, &options)));
  c.expect(out, c.count, [&](uint64_t i) { return o.wire(o.input(root, i)); }, "broadcast");
  ASSERT_TRUE(is_ok(c.comm.all_to_all(all.data(), out.data(), c.count, c.row.input, &options)));
  const uint64_t mine = static_cast<uint64_t>(c.comm.rank()) * c.count;
  c.expect(out, c.count * n,
           [&](uint64_t i) { return o.wire(o.input(static_cast<Rank>(i / c.count), mine + i % c.count)); }, "all_to_all");
  ASSERT_TRUE(is_ok(c.comm.gather(one.data(), out.data(), c.count, c.row.input, root, &options)));
  if (c.comm.rank() == root)
    c.expect(out, c.count * n, [&](uint64_t i) { return o.wire(o.input(static_cast<Rank>(i / c.count), i % c.count)); },
             "gather");
  ASSERT_TRUE(is_ok(c.comm.scatter(all.data(), out.data(), c.count, c.row.input, root, &options)));
  c.expect(out, c.count, [&](uint64_t i) { return o.wire(o.input(root, mine + i)); }, "scatter");
}

/// True if these ranks may read one another's memory; for processes this depends on the system.
inline bool pulls(Communicator& comm) {
  float x = 1, y = 0;
  CallOptions o;
  o.algorithm = "pull";
  return comm.all_reduce(&x, &y, 1, Dtype::kFloat32, Op::kSum, &o).ok();
}

TEST_P(MixedTypes, EveryRowRoundsWhereItSays) {
  for (const int nranks : {1, 2, 3, 5})
    spawn(GetParam(), nranks, [&](Communicator& comm) {
      for (int index = 1; index < kNumRows; ++index) {
        // Under a sanitizer a third of the rows for each number of ranks, with all pairs of wire and output.
        if (kSanitized && (index + index / 3 + (nranks + 1) / 2) % 3 != 0) continue;
        const TypeRow row = row_at(static_cast<uint8_t>(index), Dtype::kFloat32);
        if (row == uniform_row(row.input)) continue;
        const int of_three = index / 3 % 3;  // index % 3 is the output type
        const uint64_t count = of_three == 0 ? 5 : of_three == 1 || kSanitized ? 333 : index != 7 ? 1009 : 20011;
        for (const Op op : {Op::kSum, Op::kAvg}) {
          for (const char* a : {"one_shot", "two_shot", "pull"}) {
            if (a == std::string_view("pull") && !pulls(comm)) continue;
            check_mixed_all_reduce({comm, row, count, a, op}, false, row.input == row.output && index % 2 == 0);
          }
          check_mixed_all_reduce({comm, row, count, "ring", op}, true, row.input == row.output);
          check_mixed_reduce_scatter({comm, row, count, "one_shot", op}, false);
          if (pulls(comm)) {
            check_mixed_reduce_scatter({comm, row, count, "pull", op}, false);
            check_mixed_reduce({comm, row, count, "pull", op});
          }
          check_mixed_reduce_scatter({comm, row, count, "ring", op}, true);
        }
        check_mixed_moves({comm, row, count, nullptr});
        if (pulls(comm)) check_mixed_moves({comm, row, count, "pull"});
      }
    });
}

TEST_P(MixedTypes, AllRanksEndWithTheSameBits) {
  constexpr int kRanks = 4;
  constexpr uint64_t kCount = 3001;
  struct Results {
    uint8_t of[kRanks][kCount * 4];
  };
  Shared<Results> results;
  Shared<Barrier> barriers[2][12];
  spawn(GetParam(), kRanks, [&](Communicator& comm) {
    int index = 0;
    for (const Algorithm& a : all_algorithms()) {
      if (a.collective != Collective::kAllReduce || (a.direct && !(a.pulls_only && pulls(comm)))) continue;
      ASSERT_LT(index, 12);
      const MixedCall c{comm, {Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat32}, kCount, a.name.data()};
      TypeRow keep;
      const CallOptions options = c.options(&keep);
      std::vector<uint8_t> data = c.encoded_input(0, kCount);
      ASSERT_TRUE(is_ok(comm.all_reduce(data.data(), data.data(), kCount, Dtype::kFloat32, Op::kSum, &options))) << a.name;
      std::copy_n(data.data(), kCount * 4, results->of[comm.rank()]);
      ASSERT_TRUE(barriers[0][index]->arrive_and_wait(kRanks, 30));
      EXPECT_EQ(std::memcmp(results->of[0], results->of[comm.rank()], kCount * 4), 0) << a.name;
      ASSERT_TRUE(barriers[1][index]->arrive_and_wait(kRanks, 30));
      ++index;
    }
  });
}

TEST_P(MixedTypes, WhatCannotBeKeptIsRefusedByName) {
  spawn(GetParam(), 2, [](Communicator& comm) {
    std::vector<float> in(64), out(64);
    auto call = [&](TypeRow row, uint32_t promises, const char* algorithm) {
      CallOptions o;
      o.row = &row;
      o.promises = promises;
      o.algorithm = algorithm;
      return comm.all_reduce(in.data(), out.data(), 16, row.input, Op::kSum, &o);
    };
    const TypeRow plain = uniform_row(Dtype::kFloat32);
    const TypeRow bf16{Dtype::kFloat32, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kFloat32};
    EXPECT_TRUE(fails_with(call({Dtype::kFloat32, Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat32}, 0, nullptr),
                           StatusCode::kUnsupported, {"accumulator double"}));
    EXPECT_TRUE(fails_with(call({Dtype::kFloat64, Dtype::kFloat32, Dtype::kFloat32, Dtype::kFloat64}, 0, nullptr),
                           StatusCode::kUnsupported, {"input double"}));
    EXPECT_TRUE(fails_with(call(bf16, 0, "direct"), StatusCode::kUnsupported, {"direct", "mixed types"}));
    EXPECT_TRUE(fails_with(call(plain, RONDO_PROMISE_RANK_ORDER, "ring"), StatusCode::kUnsupported, {"ring", "rank order"}));
    EXPECT_TRUE(fails_with(call(plain, RONDO_PROMISE_SAME_BITS_PER_SIZE, "ring"), StatusCode::kUnsupported, {"every size"}));
    EXPECT_TRUE(fails_with(call(plain, RONDO_PROMISE_SAME_BITS_PER_ALGORITHM, "tree"), StatusCode::kUnsupported,
                           {"every algorithm"}));
    EXPECT_TRUE(is_ok(call(plain, RONDO_PROMISE_SAME_BITS_PER_TRANSPORT, "ring")));
    EXPECT_TRUE(is_ok(call(plain, RONDO_PROMISE_SAME_BITS_PER_SIZE, "recursive_doubling")));
    EXPECT_TRUE(is_ok(call(bf16, RONDO_PROMISE_RANK_ORDER | RONDO_PROMISE_SAME_BITS_PER_ALGORITHM, nullptr)));
    EXPECT_TRUE(fails_with(call(plain, 1u << 9, nullptr), StatusCode::kUnsupported, {"promises"}));
    CallOptions o;
    o.promises = RONDO_PROMISE_RANK_ORDER;
    o.algorithm = "ring";
    EXPECT_TRUE(is_ok(comm.all_reduce(in.data(), out.data(), 16, Dtype::kInt32, Op::kSum, &o)))
        << "integers wrap the same way in every order";
    EXPECT_TRUE(is_ok(comm.all_reduce(in.data(), out.data(), 16, Dtype::kFloat32, Op::kMax, &o)));
  });
}

/// The bits of one sum under every promise, across sizes.
TEST_P(MixedTypes, PromisedBitsAreKept) {
  constexpr int kRanks = 5;
  spawn(GetParam(), kRanks, [&](Communicator& comm) {
    for (const uint32_t promise : {RONDO_PROMISE_RANK_ORDER, RONDO_PROMISE_SAME_BITS_PER_SIZE,
                                   RONDO_PROMISE_SAME_BITS_PER_ALGORITHM, RONDO_PROMISE_SAME_BITS_PER_TRANSPORT})
      for (const uint64_t count : {7u, 1000u, 50000u, 700000u}) {
        std::vector<float> in(count), out(count), wanted(count);
        fill_rounding(Dtype::kFloat32, 9, comm.rank(), 0, count, in.data());
        expect_rank_order(Dtype::kFloat32, 9, kRanks, 0, count, wanted.data());
        CallOptions o;
        o.promises = promise;
        ASSERT_TRUE(is_ok(comm.all_reduce(in.data(), out.data(), count, Dtype::kFloat32, Op::kSum, &o)));
        ASSERT_EQ(first_difference(Dtype::kFloat32, out.data(), wanted.data(), count), count) << promise << " " << count;
      }
  });
}

}  // namespace rondo::testing
