// One rank's part of attention: some of its heads. A head uses its columns of Wq, Wk, Wv and its rows of Wo. Heads are
// combined only in the sum.
//
//     Wq, Wk, Wv: d x d         Wo: d x d
//     | h0 h1 | h2 h3 |        | - h0 h1 - |       y = heads(0, 1) Wo0 + heads(2, 3) Wo1
//     |  r0   |  r1   |        | - h2 h3 - |
//
// Thread safety: a value.
#pragma once

#include "group.h"

namespace parallel {

struct Attention {
  size_t head_size = 0;
  Matrix wq, wk, wv, wo, dwq, dwk, dwv, dwo;  // d x own, own x d; own = heads of this rank * head_size
  Matrix x, q, k, v, o;                       // kept for backward: n x d, the others n x own
  std::vector<Matrix> p;                      // n x n for each head of this rank

  /// whole: Wq, Wk, Wv, Wo, each d x d. heads: this rank's.
  static Attention part(const Matrix (&whole)[4], size_t head_size, Range heads) {
    const Range range = {heads.first * head_size, heads.size * head_size};
    Attention at;
    at.head_size = head_size;
    at.wq = columns(whole[0], range), at.wk = columns(whole[1], range), at.wv = columns(whole[2], range);
    at.wo = rows(whole[3], range);
    return at;
  }

  /// in: n x d, whole. Returns n x d, to be summed over ranks.
  Matrix forward(Matrix in) {
    x = std::move(in);
    q = product(x, wq), k = product(x, wk), v = product(x, wv);
    o = Matrix(x.rows, wq.cols);
    p.clear();
    for (size_t first = 0; first < wq.cols; first += head_size) {
      const Range head = {first, head_size};
      Matrix s = product(columns(q, head), transposed(columns(k, head)));
      for (size_t i = 0; i < s.rows; ++i) softmax_row(&s(i, 0), s.cols);
      add_columns(product(s, columns(v, head)), first, o);
      p.push_back(std::move(s));
    }
    return product(o, wo);
  }

  /// dy: n x d, whole. Returns dx, n x d, to be summed over ranks.
  Matrix backward(const Matrix& dy) {
    dwo = product(transposed(o), dy);
    const Matrix d_o = product(dy, transposed(wo));
    Matrix dq(x.rows, wq.cols), dk = dq, dv = dq;
    for (size_t h = 0; h < p.size(); ++h) {
      const Range head = {h * head_size, head_size};
      const Matrix up = columns(d_o, head);
      Matrix ds = product(up, transposed(columns(v, head)));
      for (size_t i = 0; i < ds.rows; ++i) softmax_row_backward(&p[h].v[i * ds.cols], &ds(i, 0), ds.cols);
      add_columns(product(ds, columns(k, head)), head.first, dq);
      add_columns(product(transposed(ds), columns(q, head)), head.first, dk);
      add_columns(product(transposed(p[h]), up), head.first, dv);
    }
    const Matrix xt = transposed(x);
    dwq = product(xt, dq), dwk = product(xt, dk), dwv = product(xt, dv);
    return sum(sum(product(dq, transposed(wq)), product(dk, transposed(wk))), product(dv, transposed(wv)));
  }

  uint64_t kept_bytes() const {
    uint64_t bytes = x.bytes() + q.bytes() + k.bytes() + v.bytes() + o.bytes();
    for (const Matrix& m : p) bytes += m.bytes();
    return bytes;
  }

 private:
  float scale() const { return 1 / std::sqrt(static_cast<float>(head_size)); }
  void softmax_row(float* row, size_t n) const {
    const float most = *std::max_element(row, row + n);
    float total = 0;
    for (size_t i = 0; i < n; ++i) total += row[i] = std::exp((row[i] - most) * scale());
    for (size_t i = 0; i < n; ++i) row[i] /= total;
  }
  // row: dp in, ds out.
  void softmax_row_backward(const float* weights, float* row, size_t n) const {
    float dot = 0;
    for (size_t i = 0; i < n; ++i) dot += weights[i] * row[i];
    for (size_t i = 0; i < n; ++i) row[i] = weights[i] * (row[i] - dot) * scale();
  }
  static void add_columns(const Matrix& from, size_t first, Matrix& to) {
    for (size_t i = 0; i < from.rows; ++i)
      for (size_t j = 0; j < from.cols; ++j) to(i, first + j) += from(i, j);
  }
};

}  // namespace parallel
