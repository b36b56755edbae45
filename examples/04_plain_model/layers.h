// The layers of a transformer and their backward functions, by hand. Every tensor is a plain array of floats with its
// shape in a comment. Backward functions *add* to gradients of parameters and of inputs.
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
  /// dy: n x out. Adds to dx (n x in), dw (in x out), db (out).
  void backward(const float* x, const float* w, const float* dy, float* dx, float* dw, float* db) const;
};

/// y = (x - mean) / sqrt(variance + 1e-5) * gain + bias, over each of n rows of d.
struct LayerNorm {
  size_t n, d;
  void forward(const float* x, const float* gain, const float* bias, float* y) const;
  /// Adds to dx (n x d), dgain and dbias (d). Computes mean and variance again from x.
  void backward(const float* x, const float* gain, const float* dy, float* dx, float* dgain, float* dbias) const;
};

/// Every position attends to itself and to earlier positions, in `heads` parts of the width.
struct CausalAttention {
  size_t batch, length, d, heads;
  /// qkv: (batch * length) x 3d, queries, keys, values side by side. weights: batch x heads x length x length, needed
  /// by backward. y: (batch * length) x d.
  void forward(const float* qkv, float* weights, float* y) const;
  /// Adds to dqkv, shaped as qkv.
  void backward(const float* qkv, const float* weights, const float* dy, float* dqkv) const;
};

/// The tanh form. y, x: n elements.
void gelu_forward(size_t n, const float* x, float* y);
/// dx = dy * gelu'(x). Overwrites dx, which may be dy.
void gelu_backward(size_t n, const float* x, const float* dy, float* dx);

/// Returns the mean over rows of -log softmax(logits)[target]. Replaces logits (n x classes) by their gradient times
/// `scale`.
double cross_entropy(size_t n, size_t classes, const int* targets, float scale, float* logits);

}  // namespace plain
