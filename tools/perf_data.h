// Data of `rondo perf`: inputs whose result has the same bits in whatever order it is formed, and that result.
//
// An input element is a hash of (seed, element, rank). How the result is made exact:
//   gather            any bits
//   integers          any bits for sum, prod (odd factors) and mulsum, which wrap; small numbers for avg
//   floats sum, avg   integers whose absolute values add up to at most 2^p over the ranks (p: significant bits), so
//                     that every partial sum is exact; with more ranks than that some give 0, others at each element
//   floats mulsum     the same, room for the scale included (1 for even ranks, 2 for odd ones)
//   floats prod       one rank 1..7, three ranks 1/2, 1 or 2, the others 1; signs for all
//   min, max          any finite values
// The pattern repeats after kPeriodElems elements, a prime, so that data shifted by a chunk is still seen; a comparison
// runs at the speed of memory. Works on 64-bit integers and doubles; shares no code with the library's kernels.
//
// Thread safety: none; each rank has its own.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/types.h"

namespace rondo::tools {

struct DataSpec {
  Collective collective = Collective::kAllReduce;
  Dtype dtype = Dtype::kFloat32;
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
  /// How many elements of a rank's output, which holds num_elems from first_elem on of the reduced vector, are wrong.
  /// An all-gather's output: shards of shard_elems, one rank's after the other.
  uint64_t count_wrong_reduced(uint64_t first_elem, uint64_t num_elems, const void* output);
  uint64_t count_wrong_gathered(uint64_t shard_elems, const void* output);
  /// mulsum: the rank's scale as one element of the accumulator type, in 8 bytes.
  uint64_t premul(Rank rank) const;

 private:
  using Words = std::vector<uint8_t>;  // kPeriodElems elements
  /// What is summed, compared or multiplied: bits of an integer, or a number that tables turn into bits.
  int64_t contribution(uint64_t elem, Rank rank) const;
  int64_t reduced(uint64_t elem) const;
  uint64_t input_bits(int64_t contribution) const;
  uint64_t result_bits(int64_t reduced) const;
  void build_tables();
  const Words& input_pattern(Rank rank);
  const Words& result_pattern();
  Words pattern_of(const std::vector<uint64_t>& bits) const;
  uint64_t count_different(const Words& pattern, uint64_t first_elem, uint64_t num_elems, const void* data) const;

  DataSpec spec_;
  uint32_t elem_bytes_;
  bool raw_ = false;          // contributions are bits
  int64_t budget_ = 1;        // floats' sums: largest absolute contribution
  int64_t givers_ = 1;        // and how many ranks contribute to an element
  int64_t table_offset_ = 0;  // index of number 0 in the tables
  std::vector<uint64_t> input_table_, result_table_;
  std::vector<Words> inputs_;  // by rank, made on first use
  Words result_;
};

/// The value of a float element's bits; the bits of the nearest float, ties to even (finite in range). For all float
/// dtypes.
double decode_float(Dtype dtype, uint64_t bits);
uint64_t encode_float(Dtype dtype, double value);
bool is_float(Dtype dtype);

}  // namespace rondo::tools
