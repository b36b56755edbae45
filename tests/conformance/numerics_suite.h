// Guarantees for bits of floating-point results beyond exact data: NaN, infinities and signed zeros; the order of
// addition; equal bits on all ranks; all_reduce equals reduce_scatter followed by all_gather.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "support/exact_data.h"
#include "support/shared.h"
#include "support/spawn.h"

namespace rondo::testing {

class Numerics : public ::testing::TestWithParam<World> {
 protected:
  // Algorithms that work on heap memory in this world.
  std::vector<const Algorithm*> algorithms(Collective collective) const {
    std::vector<const Algorithm*> found;
    for (const Algorithm& a : all_algorithms())
      if (a.collective == collective && (!a.direct || GetParam() == World::kThreads)) found.push_back(&a);
    return found;
  }
};

inline CallOptions with_algorithm(const std::string& name) {
  CallOptions options;
  options.algorithm = name.c_str();
  return options;
}

inline constexpr Dtype kFloatDtypes[] = {Dtype::kFloat16,  Dtype::kFloat32,    Dtype::kFloat64,
                                         Dtype::kBfloat16, Dtype::kFloat8E4m3, Dtype::kFloat8E5m2};

/// Every triple of special values, one for each of three ranks: element e has digit `rank` of e in base size().
inline std::vector<double> special_values(Dtype t) {
  if (t == Dtype::kFloat8E4m3) return {NAN, 1.0, -2.0, 0.0, -0.0, 0x1p-9};  // has no infinity
  return {NAN, INFINITY, -INFINITY, 1.0, 0.0, -0.0};
}
inline double special_value(Dtype t, Rank rank, uint64_t elem) {
  const std::vector<double> values = special_values(t);
  for (Rank r = 0; r < rank; ++r) elem /= values.size();
  return values[elem % values.size()];
}

// IEEE 754-2019 minimum/maximum: NaN wins, -0 < +0.
inline double combine_special(Op op, double a, double b) {
  if (op == Op::kProd) return a * b;
  if (op == Op::kSum || op == Op::kAvg) return a + b;
  if (std::isnan(a) || std::isnan(b)) return NAN;
  const bool a_less = a < b || (a == b && std::signbit(a));
  return (op == Op::kMin) == a_less ? a : b;
}

inline void check_special_values(Communicator& comm, const Algorithm& algorithm, Dtype t, Op op) {
  constexpr uint64_t kCount = 216;  // 6^3
  const uint64_t bytes = dtype_bytes(t);
  std::vector<uint8_t> in(kCount * bytes), out(kCount * bytes);
  for (uint64_t e = 0; e < kCount; ++e) encode_float(t, special_value(t, comm.rank(), e), in.data() + e * bytes);
  const std::string name(algorithm.name);
  const CallOptions options = with_algorithm(name);
  const Status status = comm.all_reduce(in.data(), out.data(), kCount, t, op, &options);
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (uint64_t e = 0; e < kCount; ++e) {
    double x[3];
    for (Rank r = 0; r < 3; ++r) x[r] = special_value(t, r, e);
    double wanted = combine_special(op, combine_special(op, x[0], x[1]), x[2]);
    if (op == Op::kAvg) wanted = accumulator_of(t) == Dtype::kFloat32 ? static_cast<float>(wanted / 3) : wanted / 3;
    uint64_t wanted_bits = 0, got_bits = 0;
    encode_float(t, wanted, &wanted_bits);
    std::memcpy(&got_bits, out.data() + e * bytes, bytes);
    const double got = decode_float(t, &got_bits);
    ASSERT_TRUE(std::isnan(wanted) ? std::isnan(got) : got_bits == wanted_bits)
        << name << ", " << dtype_name(t) << ", " << op_name(op) << " of " << x[0] << ", " << x[1] << ", " << x[2]
        << " gives " << got << " instead of " << wanted;
  }
}

TEST_P(Numerics, NanInfinityAndSignedZero) {
  spawn(GetParam(), 3, [&](Communicator& comm) {
    for (const Algorithm* a : algorithms(Collective::kAllReduce))
      for (const Dtype t : kFloatDtypes)
        for (const Op op : {Op::kSum, Op::kProd, Op::kMin, Op::kMax, Op::kAvg}) check_special_values(comm, *a, t, op);
  });
}

/// Memory in which ranks compare their bits.
struct Digests {
  static constexpr int kMaxCases = 4096, kMaxRanks = 16;
  Barrier barrier[kMaxCases];
  std::atomic<uint64_t> digest[kMaxCases][kMaxRanks];
};
inline uint64_t digest_of(const std::vector<uint8_t>& bytes) {
  uint64_t h = 0xcbf29ce484222325u;  // FNV-1a
  for (const uint8_t b : bytes) h = (h ^ b) * 0x100000001b3u;
  return h;
}

TEST_P(Numerics, AllRanksEndWithTheSameBits) {
  constexpr uint64_t kCount = 10007;
  for (const int nranks : {2, 3, 5, 8}) {
    Shared<Digests> digests;
    spawn(GetParam(), nranks, [&](Communicator& comm) {
      int index = 0;
      for (const Algorithm* a : algorithms(Collective::kAllReduce)) {
        for (const Dtype t : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16, Dtype::kFloat16}) {
          std::vector<uint8_t> data(kCount * dtype_bytes(t));
          fill_rounding(t, 3, comm.rank(), 0, kCount, data.data());
          const std::string name(a->name);
          const CallOptions options = with_algorithm(name);
          const Status status = comm.all_reduce(data.data(), data.data(), kCount, t, Op::kSum, &options);
          ASSERT_TRUE(status.ok()) << status.to_string();
          digests->digest[index][comm.rank()] = digest_of(data);
          ASSERT_TRUE(digests->barrier[index].arrive_and_wait(nranks, 30));
          EXPECT_EQ(digests->digest[index][0].load(), digests->digest[index][comm.rank()].load())
              << "rank 0's bits differ: " << name << ", " << dtype_name(t);
          ++index;
        }
      }
    });
  }
}

/// The same call twice gives the same bits, although ranks arrive in another order.
TEST_P(Numerics, RunsRepeatTheirBits) {
  constexpr uint64_t kCount = 30011;
  spawn(GetParam(), 4, [&](Communicator& comm) {
    for (const Algorithm* a : algorithms(Collective::kReduceScatter)) {
      std::vector<float> in(4 * kCount), first(kCount), again(kCount);
      fill_rounding(Dtype::kFloat32, 9, comm.rank(), 0, in.size(), in.data());
      const std::string name(a->name);
      const CallOptions options = with_algorithm(name);
      for (int repeat = 0; repeat < 5; ++repeat) {
        float* to = repeat == 0 ? first.data() : again.data();
        const Status status = comm.reduce_scatter(in.data(), to, kCount, Dtype::kFloat32, Op::kSum, &options);
        ASSERT_TRUE(status.ok()) << status.to_string();
        if (repeat == 0) continue;
        ASSERT_EQ(first, again) << name;
      }
    }
  });
}

inline void check_halves(Communicator& comm, const std::string& name, Dtype t, uint64_t count_per_rank) {
  const auto n = static_cast<uint64_t>(comm.size());
  const uint64_t bytes = dtype_bytes(t), total = n * count_per_rank;
  std::vector<uint8_t> in(total * bytes), whole(total * bytes), part(count_per_rank * bytes), joined(total * bytes);
  fill_rounding(t, 5, comm.rank(), 0, total, in.data());
  const CallOptions options = with_algorithm(name);
  Status status = comm.all_reduce(in.data(), whole.data(), total, t, Op::kSum, &options);
  ASSERT_TRUE(status.ok()) << status.to_string();
  status = comm.reduce_scatter(in.data(), part.data(), count_per_rank, t, Op::kSum, &options);
  ASSERT_TRUE(status.ok()) << status.to_string();
  status = comm.all_gather(part.data(), joined.data(), count_per_rank, t, &options);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(first_difference(t, whole.data(), joined.data(), total), total)
      << name << ", " << dtype_name(t) << ", " << n << " ranks";
}

TEST_P(Numerics, AllReduceEqualsItsTwoHalves) {
  for (const int nranks : {2, 3, 6}) {
    spawn(GetParam(), nranks, [&](Communicator& comm) {
      for (const Algorithm* a : algorithms(Collective::kAllReduce)) {
        if (!find_algorithm(Collective::kReduceScatter, a->name) || !find_algorithm(Collective::kAllGather, a->name))
          continue;
        for (const Dtype t : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16, Dtype::kFloat16})
          for (const uint64_t count : {1u, 1009u, 40000u}) check_halves(comm, std::string(a->name), t, count);
      }
    });
  }
}

/// True if every sum is one instruction that receives from all others: it rounds once.
inline bool sums_in_one_instruction(const Algorithm& a, int nranks) {
  const RankSchedule s = record_rank(a, 0, nranks);
  for (const Lane& lane : s.lanes)
    for (const Instruction& i : lane)
      if (i.has(kVerbSrc) && i.has(kVerbRecv) && s.recv_ports(i).size() != static_cast<size_t>(nranks - 1))
        return false;
  return true;
}

inline void check_rank_order(Communicator& comm, const Algorithm& a, Dtype t, const CallOptions& options) {
  constexpr uint64_t kCount = 3001;
  const bool scatters = a.collective == Collective::kReduceScatter;
  const uint64_t first = scatters ? static_cast<uint64_t>(comm.rank()) * kCount : 0, bytes = dtype_bytes(t);
  const uint64_t num_in = scatters ? kCount * static_cast<uint64_t>(comm.size()) : kCount;
  std::vector<uint8_t> in(num_in * bytes), out(kCount * bytes), wanted(kCount * bytes);
  fill_rounding(t, 8, comm.rank(), 0, num_in, in.data());
  expect_rank_order(t, 8, comm.size(), first, kCount, wanted.data());
  const Status status = scatters ? comm.reduce_scatter(in.data(), out.data(), kCount, t, Op::kSum, &options)
                                 : comm.all_reduce(in.data(), out.data(), kCount, t, Op::kSum, &options);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(first_difference(t, out.data(), wanted.data(), kCount), kCount)
      << a.name << " " << collective_name(a.collective) << ", " << dtype_name(t) << ", " << comm.size() << " ranks";
}

TEST_P(Numerics, RankOrderAlgorithmsAddAsOneProcess) {
  int num_checked = 0;
  for (const int nranks : {2, 3, 7}) {
    for (const Collective c : {Collective::kAllReduce, Collective::kReduceScatter})
      for (const Algorithm* a : algorithms(c)) num_checked += a->rank_order;
    spawn(GetParam(), nranks, [&](Communicator& comm) {
      for (const Collective c : {Collective::kAllReduce, Collective::kReduceScatter}) {
        for (const Algorithm* a : algorithms(c)) {
          if (!a->rank_order) continue;
          const std::string name(a->name);
          for (const Dtype t : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16, Dtype::kFloat16})
            if (dtype_bytes(t) > 2 || sums_in_one_instruction(*a, nranks))
              check_rank_order(comm, *a, t, with_algorithm(name));
        }
      }
    });
  }
  EXPECT_GT(num_checked, 0) << "no algorithm promises rank order";
}

TEST_P(Numerics, ThePromiseOfRankOrderIsKeptOrRefused) {
  spawn(GetParam(), 3, [](Communicator& comm) {
    CallOptions options;
    options.promises = RONDO_PROMISE_RANK_ORDER;
    check_rank_order(comm, *find_algorithm(Collective::kAllReduce, "two_shot"), Dtype::kFloat32, options);
    check_rank_order(comm, *find_algorithm(Collective::kReduceScatter, "two_shot"), Dtype::kFloat64, options);
    options.algorithm = "ring";
    float x = 1;
    const Status status = comm.all_reduce(&x, &x, 1, Dtype::kFloat32, Op::kSum, &options);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.to_string();
    EXPECT_NE(status.message().find("ring"), std::string_view::npos) << status.to_string();
  });
}

inline std::string numerics_name(const ::testing::TestParamInfo<World>& info) { return world_name(info.param); }

}  // namespace rondo::testing
