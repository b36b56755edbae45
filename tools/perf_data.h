// Data of `rondo perf`: inputs whose result is bit-exact in any order of operations, and that result.
//
// An input element is a hash of (seed, element, rank). Each row shows how the result is made exact:
//   not reduced       any bits
//   integers          any bits for sum, prod (odd factors) and mulsum, which wrap; small numbers for avg
//   floats sum, avg   integers whose absolute values add up to at most 2^p over the ranks (p: significant bits of the
//                     wire type), so that every partial sum is exact. With more ranks than 2^p some ranks give 0,
//                     different ones at each element
//   floats mulsum     the same, with room for the scale (1 for even ranks, 2 for odd ones)
//   floats prod       one rank 1..7, three ranks 1/2, 1 or 2, the others 1; signs for all
//   min, max          any finite values
// Mixed types: the numbers are exact in the wire type, reduced or not. Inputs are moved by a part of the wire type's
// last place if the input type has enough bits, so that only rounding to nearest gives the right result. A result is
// rounded from the accumulator to the wire type if several ranks get it, then to the output type (rondo/types.h,
// row_index). The pattern repeats after kPeriodElems elements, a prime, so that shifted chunks are noticed. Comparison
// runs at memory speed. Uses 64-bit integers and doubles, and shares only the formats (kernels/float_formats.h) with
// the kernels. Thread safety: none; each rank has its own.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/types.h"

namespace rondo::tools {

struct DataSpec {
  CollectiveTraits traits = collective_traits(Collective::kAllReduce);
  TypeRow types = uniform_row(Dtype::kFloat32);
  Op op = Op::kSum;
  int nranks = 1;
  uint64_t seed = 0;
};

class PerfData {
 public:
  static constexpr uint64_t kPeriodElems = 16381;
  explicit PerfData(const DataSpec& spec);

  /// Writes elements 0 .. num_elems - 1 of `rank`'s input.
  void fill(Rank rank, uint64_t num_elems, void* input);
  /// Count the wrong elements among num_elems, from first_elem on: of the reduced vector, or of `from`'s input as
  /// another rank receives it.
  uint64_t count_wrong_reduced(uint64_t first_elem, uint64_t num_elems, const void* output);
  uint64_t count_wrong_delivered(Rank from, uint64_t first_elem, uint64_t num_elems, const void* output);
  /// mulsum: the rank's scale as one element of the accumulator type, in 8 bytes.
  uint64_t premul(Rank rank) const;

 private:
  using Words = std::vector<uint8_t>;  // kPeriodElems elements
  /// The number that is reduced: bits of an integer, or an index of the tables.
  int64_t contribution(uint64_t elem, Rank rank) const;
  int64_t reduced(uint64_t elem) const;
  uint64_t input_bits(int64_t contribution) const;
  uint64_t result_bits(int64_t result) const;
  void build_tables();
  void build_sorted_tables();
  uint64_t result_of(double value) const;
  const Words& input_pattern(Rank rank);
  const Words& delivered_pattern(Rank from);
  const Words& result_pattern();
  Words pattern_of(const std::vector<uint64_t>& bits, uint32_t elem_bytes) const;
  uint64_t count_different(const Words& pattern, uint64_t first_elem, uint64_t num_elems, const void* data) const;

  DataSpec spec_;
  uint32_t in_bytes_, out_bytes_;  // of one element
  bool mixed_;
  bool raw_ = false;          // contributions are bits
  int64_t budget_ = 1;        // largest absolute contribution to a float sum
  int64_t givers_ = 1;        // number of ranks that contribute to an element
  int64_t table_offset_ = 0;  // index of number 0 in the tables
  std::vector<uint64_t> input_table_, result_table_;
  std::vector<Words> inputs_, delivered_;  // by rank, made on first use
  Words result_;
};

/// Convert between a float's bits and its value. encode_float rounds to nearest, ties to even (finite in range). For
/// all float dtypes.
double decode_float(Dtype dtype, uint64_t bits);
uint64_t encode_float(Dtype dtype, double value);

}  // namespace rondo::tools
