// A transformer's layer among N ranks, in two ways that send the same bytes:
//
//   tensor     x whole  -- norm --               attention's part  -- ALL-REDUCE --      dropout, + x   whole
//   sequence   x rows   -- norm -- ALL-GATHER -- attention's part  -- REDUCE-SCATTER --  dropout, + x   rows
//
// The MLP has the same form, and backward mirrors each. A layer thus has 4 all-reduces, or 4 all-gathers and 4
// reduce-scatters, and an all-reduce equals one of each. Between them norm, dropout and residual work on n / N rows and
// keep 1 / N of their activations. Attention and MLP keep their whole inputs here; two more all-gathers in backward
// would save that too.
//
// Source: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022), section 4.2.
//
// Thread safety: a value.
#pragma once

#include "attention.h"
#include "mlp.h"

namespace parallel {

/// Whole weights, equal on all ranks. d: width, f: width of the MLP.
struct LayerWeights {
  Matrix gain1, bias1, gain2, bias2;  // 1 x d
  Matrix attention[4];                // Wq, Wk, Wv, Wo: d x d
  Matrix a, b;                        // d x f, f x d
  size_t heads = 0;

  static LayerWeights made(size_t d, size_t f, size_t heads) {
    LayerWeights w;
    w.gain1 = sum(made_up(1, d, 1, 0.1f), Matrix(1, d)), w.gain2 = made_up(1, d, 2, 0.1f);
    for (Matrix* gain : {&w.gain1, &w.gain2})
      for (float& e : gain->v) e += 1;
    w.bias1 = made_up(1, d, 3, 0.1f), w.bias2 = made_up(1, d, 4, 0.1f);
    const float scale = 1 / std::sqrt(static_cast<float>(d));
    for (size_t i = 0; i < 4; ++i) w.attention[i] = made_up(d, d, 5 + i, 2 * scale);
    w.a = made_up(d, f, 9, 2 * scale), w.b = made_up(f, d, 10, scale);
    w.heads = heads;
    return w;
  }
};

/// Sets a tenth of y's elements to zero and scales the others. The choice depends on the element's place in the whole
/// sequence, so that any split drops the same elements. mask: as y, 0 or 1, kept for backward.
inline Matrix dropped(Matrix y, std::vector<uint8_t>& mask, size_t first_row, uint64_t seed) {
  mask.resize(y.v.size());
  for (size_t i = 0; i < y.v.size(); ++i) {
    uint64_t x = (seed << 40) + first_row * y.cols + i;
    x *= 0x9e3779b97f4a7c15, x ^= x >> 29, x *= 0xbf58476d1ce4e5b9, x ^= x >> 32;
    mask[i] = x % 10 != 0;
    y.v[i] *= mask[i] != 0 ? 1 / 0.9f : 0;
  }
  return y;
}

inline Matrix dropped_backward(Matrix dy, const std::vector<uint8_t>& mask) {
  for (size_t i = 0; i < dy.v.size(); ++i) dy.v[i] *= mask[i] != 0 ? 1 / 0.9f : 0;
  return dy;
}

class Layer {
 public:
  enum class Split { kTensor, kSequence };

  Layer(Group& group, const LayerWeights& w, Split split)
      : attention(Attention::part(w.attention, w.gain1.cols / w.heads, group.part(w.heads))),
        mlp(Mlp::part(w.a, w.b, group.part(w.a.cols))),
        group_(group),
        sequence_(split == Split::kSequence) {
    norm1.gain = w.gain1, norm1.bias = w.bias1, norm2.gain = w.gain2, norm2.bias = w.bias2;
  }

  /// x: n x d, or this rank's n / N rows of it. Returns the same shape.
  rondo::Expected<Matrix> forward(const Matrix& x) {
    first_row_ = sequence_ ? x.rows * static_cast<size_t>(group_.rank()) : 0;
    RONDO_TRY_ASSIGN(Matrix in, enter(norm1.forward(x)));
    RONDO_TRY_ASSIGN(Matrix y, leave(attention.forward(std::move(in))));
    const Matrix x2 = sum(dropped(std::move(y), mask1_, first_row_, 1), x);
    RONDO_TRY_ASSIGN(in, enter(norm2.forward(x2)));
    RONDO_TRY_ASSIGN(y, leave(mlp.forward(std::move(in))));
    return sum(dropped(std::move(y), mask2_, first_row_, 2), x2);
  }

  /// dy: as forward's result. Returns dx. The gradients of norms cover this rank's rows (see sum_norm_gradients).
  rondo::Expected<Matrix> backward(const Matrix& dy) {
    RONDO_TRY_ASSIGN(Matrix up, enter(dropped_backward(dy, mask2_)));
    RONDO_TRY_ASSIGN(Matrix down, leave(mlp.backward(up)));
    const Matrix dx2 = sum(norm2.backward(down), dy);
    RONDO_TRY_ASSIGN(up, enter(dropped_backward(dx2, mask1_)));
    RONDO_TRY_ASSIGN(down, leave(attention.backward(up)));
    return sum(norm1.backward(down), dx2);
  }

  /// Once a step, 4 d floats: if rows are split, each rank has seen only some of them.
  rondo::Status sum_norm_gradients() {
    for (LayerNorm* norm : {&norm1, &norm2})
      for (Matrix* m : {&norm->dgain, &norm->dbias})
        if (sequence_) RONDO_TRY(group_.all_reduce(*m));
    return {};
  }

  /// Bytes that this rank keeps from forward to backward.
  uint64_t activation_bytes() const { return row_bytes() + attention.kept_bytes() + mlp.kept_bytes(); }
  /// The part of them that norm and dropout keep.
  uint64_t row_bytes() const { return norm1.x.bytes() + norm2.x.bytes() + mask1_.size() + mask2_.size(); }

  Attention attention;
  Mlp mlp;
  LayerNorm norm1, norm2;

 private:
  // enter() runs before a part that needs all rows, leave() after a part whose output is summed, also in backward.
  rondo::Expected<Matrix> enter(Matrix m) {
    if (!sequence_) return m;
    return group_.all_gather(m);
  }
  rondo::Expected<Matrix> leave(Matrix m) {
    if (sequence_) return group_.reduce_scatter(m);
    RONDO_TRY(group_.all_reduce(m));
    return m;
  }

  Group& group_;
  bool sequence_;
  size_t first_row_ = 0;
  std::vector<uint8_t> mask1_, mask2_;  // rows as forward's x
};

}  // namespace parallel
