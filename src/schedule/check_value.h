// Symbolic values of chunks. Internal to the checker.
//
// Sets of contributors are exact up to 64 ranks (one bit each, and a count that shows duplicates). Beyond that they are
// sums of hashes, equal for equal multisets. Expression trees are hashes that depend on the order of operands. A
// reduction of three operands at once differs from two reductions of two, because it rounds once.
#pragma once

#include <cstdint>

#include "rondo/types.h"

namespace rondo::check {

constexpr uint64_t mix(uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct Value {
  static constexpr uint32_t kNothing = UINT32_MAX, kMixed = UINT32_MAX - 1;

  uint64_t set = 0;          // sum of the contributors' hashes
  uint64_t tree = 0;         // expression tree
  uint64_t mask = 0;         // contributors, up to 64 ranks
  uint32_t elem = kNothing;  // the chunk and window; kNothing: never written
  uint32_t count : 31 = 0;   // contributions
  uint32_t final : 1 = 0;    // an instruction with the final flag completed it

  bool written() const { return elem != kNothing; }
};

constexpr uint64_t contribution(Rank rank, uint32_t elem) {
  return mix((static_cast<uint64_t>(rank) << 32 | elem) + 0x9e3779b97f4a7c15u);
}

/// The contribution of `rank` to element class `elem`.
inline Value leaf(Rank rank, uint32_t elem) {
  Value v;
  v.set = contribution(rank, elem);
  v.tree = mix(v.set + 1);
  v.mask = rank < 64 ? uint64_t{1} << rank : 0;
  v.elem = elem;
  v.count = 1;
  return v;
}

/// Starts a reduction of several operands, and adds an operand.
constexpr uint64_t tree_of(uint32_t num_operands) { return mix(num_operands); }
constexpr uint64_t tree_with(uint64_t tree, uint64_t operand) {
  return (tree ^ operand) * 0x9e3779b97f4a7c15u + (tree >> 29);
}

inline void add(Value& sum, const Value& v) {
  sum.set += v.set;
  sum.tree = tree_with(sum.tree, v.tree);
  sum.mask |= v.mask;
  sum.count = sum.count + v.count;
  if (sum.elem != v.elem) sum.elem = sum.elem == Value::kNothing ? v.elem : Value::kMixed;
}

}  // namespace rondo::check
