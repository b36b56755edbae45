// A transformer over characters, in units that are gathered and released: the root (embedding, which is the head's
// matrix too, positions, last norm) and its blocks. It computes on parameters that are handed to it and keeps none;
// what it keeps are the activations of one micro-batch.
//
//   x = embedding[token] + position                            n x d
//   each block: x += attention(norm1(x)); x += mlp(norm2(x))
//   logits = norm(x) embedding^T                               n x vocabulary
//
// n = batch * length; a pass is start, forward(0), forward(1) .. forward(layers), begin_backward, backward(layers) ..
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

  /// What the plan needs to know: units, tensors, shapes, what is tied to what.
  rondo::fsdp::Model model() const;
  /// Element i of a tensor before the first step, equal on every rank and machine.
  static float initial_value(const rondo::fsdp::Tensor& tensor, uint64_t i);

  /// The tensors of a unit, whole, in the order of model(); tied ones are the same pointer.
  using Parameters = std::vector<const float*>;
  using Gradients = std::vector<float*>;

  /// tokens, targets: n ids of characters.
  void start(std::vector<int> tokens, std::vector<int> targets);
  void forward(int unit, const Parameters& p);
  /// After the last block: logits and loss, and the gradient of what the last block put out, times `scale`. p: the
  /// root's.
  void begin_backward(const Parameters& p, float scale);
  /// g: zeros before the first call that adds to them.
  void backward(int unit, const Parameters& p, const Gradients& g);

  /// Mean of -log of the probability of the right next character, in nats; after begin_backward.
  double loss() const { return loss_; }
  uint64_t activation_bytes() const;

 private:
  using Floats = std::vector<float>;
  struct Block {  // what backward needs of forward
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
