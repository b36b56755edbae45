// Cases of conformance (conformance_suite.h): every registered algorithm x dtype x op x placement x size, or a sample
// of them, and a function that runs cases. Under a sanitizer the lists are shorter.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "conformance/case_runner.h"
#include "support/shared.h"
#include "support/spawn.h"

namespace rondo::testing {

inline std::vector<Dtype> conformance_dtypes() {
  if (kSanitized) return {Dtype::kInt8, Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16};
  std::vector<Dtype> all;
  for (int t = 0; t < kNumDtypes; ++t) all.push_back(static_cast<Dtype>(t));
  return all;
}
inline std::vector<Op> conformance_ops() {
  if (kSanitized) return {Op::kSum, Op::kMax, Op::kAvg, Op::kPremulSum};
  std::vector<Op> all;
  for (int op = 0; op < kNumOps; ++op) all.push_back(static_cast<Op>(op));
  return all;
}
inline std::vector<int> conformance_rank_counts() {
  if (kSanitized) return {1, 2, 3, 4};
  return {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33};
}

/// All (collective, algorithm) pairs of the registry, and the planner's choice for each collective.
inline std::vector<Case> algorithm_cases() {
  std::vector<Case> cases;
  for (const Algorithm& a : all_algorithms()) cases.push_back({.algorithm = &a, .collective = a.collective});
  for (int i = 0; i < kNumCollectives; ++i)
    if (const auto c = static_cast<Collective>(i);
        std::any_of(cases.begin(), cases.end(), [c](const Case& x) { return x.collective == c; }))
      cases.push_back({.collective = c});
  return cases;
}

/// No, one, fewer elements than ranks, ragged, a prime; and around 64 KiB: one of three for most, all three for sums.
inline std::vector<uint64_t> sizes_of(const Case& c, int nranks, size_t index) {
  const auto n = static_cast<uint64_t>(nranks);
  const uint64_t boundary = 65536 / dtype_bytes(c.dtype);
  if (kSanitized) return c.op == Op::kSum ? std::vector<uint64_t>{0, 1009, boundary + 1} : std::vector<uint64_t>{257};
  std::vector<uint64_t> sizes{1, 3 * n + n / 2 + 1};
  if (n > 8) {  // many more ranks than cores: every hand-over is a context switch
    if (c.op == Op::kSum) sizes.insert(sizes.end(), {0, boundary - 1 + index % 3});
    return sizes;
  }
  sizes.insert(sizes.end(), {0, 1009});
  if (c.op == Op::kSum) {
    sizes.insert(sizes.end(), {n - 1, boundary - 1, boundary, boundary + 1});
  } else if (index % 4 == 0) {
    sizes.push_back(boundary - 1 + index / 4 % 3);
  }
  return sizes;
}

/// Types of 4, 2 and 1 bytes run in both placements. Of the others each (type, operator) runs in one of the two: only
/// their kernels differ, and tests/kernels has all of them. Many more ranks than cores: a small sample with every
/// algorithm for sums, moves and rounding.
inline bool sampled(const Case& c, int nranks, size_t index) {
  const bool usual = c.dtype == Dtype::kFloat32 || c.dtype == Dtype::kBfloat16 || c.dtype == Dtype::kInt8;
  const int placement = (static_cast<int>(c.dtype) + static_cast<int>(c.op) + nranks) % 2;
  if (!usual && c.in_place != (placement == 1)) return false;
  if (nranks <= 4) return true;
  if (nranks <= 9) return usual || index % 3 == 0;
  if (nranks <= 16) return usual;
  return c.dtype == Dtype::kFloat32 && (c.op == Op::kSum || c.op == Op::kAvg) && !c.in_place;
}

/// The full product for one number of ranks, shuffled; for many ranks a sample of it.
inline std::vector<Case> product_cases(int nranks, Memory memory = Memory::kHeap) {
  std::vector<Case> cases;
  size_t drawn = 0;
  for (Case c : algorithm_cases()) {
    for (const Dtype t : conformance_dtypes()) {
      if (c.collective == Collective::kBarrier && t != Dtype::kFloat32) continue;
      for (const Op op : conformance_ops()) {
        if (!collective_reduces(c.collective) && op != Op::kSum) continue;
        // For bits the sign does not matter; tests/kernels has all types.
        if (is_bitwise(op) && (memory == Memory::kDevice || (t != Dtype::kUint8 && t != Dtype::kInt64))) continue;
        for (const bool in_place : {false, true}) {
          c.dtype = t, c.op = op, c.in_place = in_place;
          if (!applies(c) || !sampled(c, nranks, drawn++)) continue;
          for (const uint64_t count : sizes_of(c, nranks, cases.size())) {
            c.count_elems = count;
            c.variant = static_cast<uint32_t>(cases.size() % 11);
            c.root = static_cast<Rank>(cases.size() % static_cast<size_t>(nranks));
            cases.push_back(c);
          }
        }
      }
    }
  }
  std::shuffle(cases.begin(), cases.end(), std::mt19937_64(static_cast<uint64_t>(nranks)));
  return cases;
}

/// Buffers of about total_bytes, cut raggedly, for four types, or two with many more ranks than cores.
inline std::vector<Case> large_cases(int nranks, uint64_t total_bytes) {
  constexpr std::pair<Dtype, Op> kTypes[] = {{Dtype::kFloat32, Op::kSum},
                                             {Dtype::kBfloat16, Op::kAvg},
                                             {Dtype::kInt8, Op::kMax},
                                             {Dtype::kFloat64, Op::kPremulSum}};
  std::vector<Case> cases;
  for (Case c : algorithm_cases()) {
    for (const auto& [dtype, op] : std::span(kTypes).first(nranks > 9 ? 2 : 4)) {
      c.dtype = dtype, c.op = op;
      if (!applies(c)) continue;
      c.in_place = (cases.size() + cases.size() / 4) % 2 == 1;
      c.variant = static_cast<uint32_t>(cases.size() % 5);
      c.count_elems = total_bytes / dtype_bytes(dtype) - 7;
      c.count_elems =
          c.count_elems * c.count_elems / std::max<uint64_t>(1, whole_elems(c.collective, c.count_elems, nranks));
      c.root = static_cast<Rank>(cases.size() % static_cast<size_t>(nranks));
      cases.push_back(c);
    }
  }
  return cases;
}

inline uint64_t largest_buffer_bytes(const std::vector<Case>& cases, int nranks) {
  uint64_t largest = 0;
  for (const Case& c : cases)
    largest = std::max(largest, std::max(in_elems(c, nranks), out_elems(c, nranks)) * dtype_bytes(c.dtype));
  return largest;
}

/// Runs the cases on a new communicator.
inline void run_cases(World world, int nranks, Memory memory, const std::vector<Case>& cases, const Config& config = {},
                      double most_refused = 0, const TransportDecorator& decorate = {}) {
  const DataTables tables(nranks, 42, conformance_dtypes(), conformance_ops());
  const uint64_t buffer_bytes = largest_buffer_bytes(cases, nranks);
  SpawnOptions options;
  options.config = config;
  if (std::getenv("RONDO_TIMEOUT_S") == nullptr) options.config.deadline_s = 60;
  options.decorate = decorate;
  options.deadline_s = 240;
  spawn(
      world, nranks,
      [&](Communicator& comm) -> Status {
        CaseRunner runner(comm, tables);
        RONDO_TRY(runner.open(memory, buffer_bytes));
        for (const Case& c : cases) RONDO_TRY(runner.run(c));
        EXPECT_LE(runner.num_refused(), most_refused * static_cast<double>(cases.size())) << "of " << cases.size();
        return Status();
      },
      options);
}

}  // namespace rondo::testing
