// One period of every input and expected result, computed once before ranks are spawned. Threads share it, processes
// inherit it, and making or checking a buffer is a copy. Thread safety: reads are safe once it is made.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "support/exact_data.h"

namespace rondo::testing {

/// The unsigned integer type of the same width: any bits, for collectives that only move data.
inline Dtype bits_of(Dtype t) {
  switch (dtype_bytes(t)) {
    case 1: return Dtype::kUint8;
    case 4: return Dtype::kUint32;
    case 8: return Dtype::kUint64;
    default: return Dtype::kBfloat16;  // there is no 16-bit integer: finite floats of any bits
  }
}

class DataTables {
 public:
  DataTables(int nranks, uint64_t seed, std::span<const Dtype> dtypes, std::span<const Op> ops)
      : nranks_(nranks), seed_(seed), inputs_(kNumDtypes * kNumOps), expected_(kNumDtypes * kNumOps) {
    for (const Dtype t : dtypes)
      for (const Op op : ops) make(t, op);
    for (const Dtype t : dtypes) make(bits_of(t), kMoveOp);
  }

  int nranks() const { return nranks_; }
  DataSpec spec(Dtype t, Op op) const { return {t, op, nranks_, seed_}; }
  void input(Dtype t, Op op, Rank rank, uint64_t first_elem, uint64_t num_elems, void* to) const {
    copy(inputs_[row(t, op)].data() + static_cast<uint64_t>(rank) * kPeriodElems * dtype_bytes(t), t, first_elem,
         num_elems, to);
  }
  void expected(Dtype t, Op op, uint64_t first_elem, uint64_t num_elems, void* to) const {
    copy(expected_[row(t, op)].data(), t, first_elem, num_elems, to);
  }

  /// The op whose data all-gathers use.
  static constexpr Op kMoveOp = Op::kMax;

 private:
  static size_t row(Dtype t, Op op) { return static_cast<size_t>(t) * kNumOps + static_cast<size_t>(op); }

  void make(Dtype t, Op op) {
    std::vector<uint8_t>& in = inputs_[row(t, op)];
    if (!in.empty() || !op_combines(op, t)) return;
    const uint64_t bytes = kPeriodElems * dtype_bytes(t);
    in.resize(static_cast<uint64_t>(nranks_) * bytes);
    for (Rank r = 0; r < nranks_; ++r)
      fill_exact(spec(t, op), r, 0, kPeriodElems, in.data() + static_cast<uint64_t>(r) * bytes);
    expected_[row(t, op)].resize(bytes);
    expect_exact(spec(t, op), 0, kPeriodElems, expected_[row(t, op)].data());
  }

  static void copy(const uint8_t* table, Dtype t, uint64_t first_elem, uint64_t num_elems, void* to) {
    const uint64_t bytes = dtype_bytes(t);
    auto* p = static_cast<uint8_t*>(to);
    for (uint64_t done = 0; done < num_elems;) {
      const uint64_t from = (first_elem + done) % kPeriodElems;
      const uint64_t n = std::min(kPeriodElems - from, num_elems - done);
      std::memcpy(p + done * bytes, table + from * bytes, n * bytes);
      done += n;
    }
  }

  int nranks_;
  uint64_t seed_;
  std::vector<std::vector<uint8_t>> inputs_;    // [dtype][op]: ranks x one period
  std::vector<std::vector<uint8_t>> expected_;  // [dtype][op]: one period
};

}  // namespace rondo::testing
