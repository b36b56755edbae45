// Inputs whose reduction has the same bits in every order of addition, and an independent scalar oracle for it.
//
// An element is a function of (seed, rank, position), so that a value in a wrong place or from a wrong rank is
// detected. Exactness of each op for N ranks:
//   integers      any bits: sums and products wrap; products of odd numbers, so that they do not collapse to 0
//   sum, avg      floats: small integers whose absolute values sum to at most 2^p over all ranks (p: significant bits
//                 of the dtype), times a power of two that all ranks share. With few bits and many ranks only some
//                 ranks contribute, different ranks at each element. avg divides once, so its rounding is exact too
//   premul_sum    the same with room for a scale of +-1 or +-2
//   prod          +-powers of two whose exponents sum to a small number, and one rank's factor 1.25
//   min, max      any finite bits, both zeros included
// Positions repeat after kPeriodElems, a prime: large buffers are cheap to make and shifts by chunks are detected.
//
// The oracle uses 64-bit integers and doubles and shares no code with the library. Thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/types.h"

namespace rondo::testing {

inline constexpr uint64_t kPeriodElems = 4093;

/// Parameters of a reduction's data, besides rank and position.
struct DataSpec {
  Dtype dtype = Dtype::kFloat32;
  Op op = Op::kSum;
  int nranks = 1;
  uint64_t seed = 1;
};

/// Writes elements first_elem .. first_elem + num_elems - 1 of a rank's input.
void fill_exact(const DataSpec& spec, Rank rank, uint64_t first_elem, uint64_t num_elems, void* to);
/// Writes the expected result of reducing these elements over all ranks.
void expect_exact(const DataSpec& spec, uint64_t first_elem, uint64_t num_elems, void* to);
/// premul_sum: the rank's scale as one element of the accumulator type, in 8 bytes.
uint64_t premul_scale(const DataSpec& spec, Rank rank);

/// Floats of mixed magnitude: every order of addition gives different bits. No overflow for up to 64 ranks.
void fill_rounding(Dtype dtype, uint64_t seed, Rank rank, uint64_t first_elem, uint64_t num_elems, void* to);
/// The sum of fill_rounding's data in one process: ranks 0..N-1 from left to right in the accumulator type, rounded
/// once at the end.
void expect_rank_order(Dtype dtype, uint64_t seed, int nranks, uint64_t first_elem, uint64_t num_elems, void* to);

/// The exact value of one element of a float dtype.
double decode_float(Dtype dtype, const void* element);
/// The element nearest to x, ties to even. Finite x must not overflow. Infinity needs a dtype that has it.
void encode_float(Dtype dtype, double x, void* element);

/// Index of the first element with different bits; num_elems if there is none.
uint64_t first_difference(Dtype dtype, const void* a, const void* b, uint64_t num_elems);

}  // namespace rondo::testing
