// One rank's part of an MLP, y = gelu(x A) B: columns of A and the same rows of B. gelu works element by element, so
// each rank computes its columns of gelu(x A) without communication. The sum of all ranks' y is the whole y.
//
//       A: d x f            B: f x d
//     | r0 | r1 |          | -- r0 -- |        y = gelu(x A0) B0 + gelu(x A1) B1
//     |    |    |          | -- r1 -- |
//
// Thread safety: a value.
#pragma once

#include "group.h"

namespace parallel {

struct Mlp {
  Matrix a, b, da, db;  // d x f / N, f / N x d, and their gradients
  Matrix x, h, g;       // kept for backward: n x d, n x f / N, n x f / N

  static Mlp part(const Matrix& a, const Matrix& b, Range range) {
    Mlp mlp;
    mlp.a = columns(a, range), mlp.b = rows(b, range);
    return mlp;
  }

  /// in: n x d, whole. Returns n x d, to be summed over ranks.
  Matrix forward(Matrix in) {
    x = std::move(in);
    h = product(x, a);
    g = gelu(h);
    return product(g, b);
  }
  /// dy: n x d, whole. Returns dx, n x d, to be summed over ranks.
  Matrix backward(const Matrix& dy) {
    db = product(transposed(g), dy);
    const Matrix dh = gelu_backward(h, product(dy, transposed(b)));
    da = product(transposed(x), dh);
    return product(dh, transposed(a));
  }
  uint64_t kept_bytes() const { return x.bytes() + h.bytes() + g.bytes(); }
};

/// A split that does not work: rows of A and the matching columns of x. Each rank then has a term of every element of
/// x A, and the sum of gelu of terms is not gelu of their sum. Returns that sum, n x f.
inline rondo::Expected<Matrix> gelu_of_terms(Group& group, const Matrix& x, const Matrix& a) {
  const Range part = group.part(a.rows);
  Matrix sum_of_gelu = gelu(product(columns(x, part), rows(a, part)));
  RONDO_TRY(group.all_reduce(sum_of_gelu));
  return sum_of_gelu;
}

}  // namespace parallel
