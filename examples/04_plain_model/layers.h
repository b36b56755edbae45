// The layers of a transformer, each with its backward, by hand: every tensor is a plain array of floats, and its shape
// stands beside it. Backward functions *add* to gradients of parameters and of inputs.
//
// n: positions of all sequences of a micro-batch together, d: width.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>

namespace plain {

/// y = x W + b. x: n x in, w: in x out, b: out, y: n x out.
struct Linear {
  size_t n, in, out;
  void forward(const float* x, const float* w, const float* b, float* y) const;
  /// dy: n x out. dx (n x in), dw (in x out), db (out) grow.
  void backward(const float* x, const float* w, const float* dy, float* dx, float* dw, float* db) const;
};

/// y = (x - mean) / sqrt(variance + 1e-5) * gain + bias, over each of n rows of d.
struct LayerNorm {
  size_t n, d;
  void forward(const float* x, const float* gain, const float* bias, float* y) const;
  /// dx (n x d), dgain and dbias (d) grow. Mean and variance are computed again from x.
  void backward(const float* x, const float* gain, const float* dy, float* dx, float* dgain, float* dbias) const;
};

/// Every position looks at itself and those before it, in `heads` parts of the width.
struct CausalAttention {
  size_t batch, length, d, heads;
  /// qkv: (batch * length) x 3d, queries, keys, values side by side. weights: batch x heads x length x length, which
  /// backward needs. y: (batch * length) x d.
  void forward(const float* qkv, float* weights, float* y) const;
  /// dqkv, as qkv, grows.
  void backward(const float* qkv, const float* weights, const float* dy, float* dqkv) const;
};

/// The tanh form. y, x: n elements.
void gelu_forward(size_t n, const float* x, float* y);
/// dx = dy * gelu'(x): written, not added, and may be dy.
void gelu_backward(size_t n, const float* x, const float* dy, float* dx);

/// Mean over rows of -log softmax(logits)[target]. logits: n x classes, replaced by their gradient times `scale`.
double cross_entropy(size_t n, size_t classes, const int* targets, float scale, float* logits);

}  // namespace plain
