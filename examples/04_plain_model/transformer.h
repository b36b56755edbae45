// A transformer over characters, in units that are gathered and released: the root (embedding, which is also the head's
// matrix, positions, last norm) and its blocks. It gets the parameters for each call and keeps only the activations of
// one micro-batch.
//
//   x = embedding[token] + position                            n x d
//   each block: x += attention(norm1(x)); x += mlp(norm2(x))
//   logits = norm(x) embedding^T                               n x vocabulary
//
// n = batch * length. A pass is start, forward(0), forward(1) .. forward(layers), begin_backward, backward(layers) ..
// backward(1), backward(0).
//
// Thread safety: one thread at a time.
#pragma once

#include <rondo/fsdp/plan.h>

#include <cstdint>
#include <vector>

namespace plain {

struct Shape {
  size_t vocabulary = 0, length = 64, width = 64, heads = 4, layers = 2, batch = 8;
};

class Transformer {
 public:
  /// width must be a multiple of heads.
  explicit Transformer(const Shape& shape);

  /// The plan's input: units, tensors, shapes, ties.
  rondo::fsdp::Model model() const;
  /// The first value of element i, equal on every rank and machine.
  static float initial_value(const rondo::fsdp::Tensor& tensor, uint64_t i);

  /// The whole tensors of a unit, in the order of model(). Tied ones are the same pointer.
  using Parameters = std::vector<const float*>;
  using Gradients = std::vector<float*>;

  /// tokens, targets: n ids of characters.
  void start(std::vector<int> tokens, std::vector<int> targets);
  void forward(int unit, const Parameters& p);
  /// After the last block: computes logits, loss, and the gradient of the last block's output, times `scale`. p: the
  /// root's.
  void begin_backward(const Parameters& p, float scale);
  /// Adds to g, which starts as zeros.
  void backward(int unit, const Parameters& p, const Gradients& g);

  /// Mean of -log of the probability of the right next character, in nats. Valid after begin_backward.
  double loss() const { return loss_; }
  uint64_t activation_bytes() const;

 private:
  using Floats = std::vector<float>;
  struct Block {  // kept by forward for backward
    Floats x, norm1, qkv, weights, mixed, x2, norm2, up, active;
  };
  void forward_block(Block& b, const Parameters& p);
  void backward_block(const Block& b, const Parameters& p, const Gradients& g);

  Shape shape_;
  size_t n_;
  std::vector<int> tokens_, targets_;
  std::vector<Block> blocks_;
  Floats x_, dx_;            // n x d: between units, forward and backward
  Floats normed_, dlogits_;  // n x d, n x vocabulary
  Floats dgain_, dbias_;     // d, of the last norm, until the root's backward
  double loss_ = 0;
};

}  // namespace plain
