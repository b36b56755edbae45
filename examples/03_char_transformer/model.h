// A decoder-only transformer over characters: dim wide, `layers` blocks, the embedding tied to the last layer. It
// contains nothing about ranks. RONDO_TORCH_MODULE instead of TORCH_MODULE makes its blocks units.
//
// Thread safety: that of torch's modules.
#pragma once

#include <rondo/torch/fully_shard.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>

#include <string>
#include <vector>

struct Shape {
  int64_t vocabulary = 128, dim = 128, layers = 4, heads = 4, context = 128;
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const Shape& s)
      : heads(s.heads),
        norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({s.dim})))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({s.dim})))),
        qkv(register_module("qkv", torch::nn::Linear(s.dim, 3 * s.dim))),
        out(register_module("out", torch::nn::Linear(s.dim, s.dim))),
        up(register_module("up", torch::nn::Linear(s.dim, 4 * s.dim))),
        down(register_module("down", torch::nn::Linear(4 * s.dim, s.dim))) {}

  // x: batch x length x dim.
  torch::Tensor forward(torch::Tensor x) {
    x = x + attend(norm1(x));
    return x + down(torch::gelu(up(norm2(x))));
  }

  torch::Tensor attend(const torch::Tensor& x) {
    const int64_t batch = x.size(0), length = x.size(1), dim = x.size(2);
    const auto parts = qkv(x).view({batch, length, 3, heads, dim / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    return out(mixed.transpose(1, 2).reshape({batch, length, dim}));
  }

  int64_t heads;
  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, out, up, down;
};
RONDO_TORCH_MODULE(Block);

struct TransformerImpl : torch::nn::Module {
  explicit TransformerImpl(const Shape& s)
      : characters(register_module("characters", torch::nn::Embedding(s.vocabulary, s.dim))),
        positions(register_module("positions", torch::nn::Embedding(s.context, s.dim))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({s.dim})))) {
    for (int64_t i = 0; i < s.layers; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block(s)));
    const torch::NoGradGuard no_grad;
    for (auto& p : named_parameters())
      if (p.value().dim() > 1) p.value().normal_(0, 0.02);
  }

  // ids: batch x length, of int64. Returns batch x length x vocabulary.
  torch::Tensor logits(const torch::Tensor& ids) {
    torch::Tensor x = characters(ids) + positions(torch::arange(ids.size(1)));
    for (Block& block : blocks) x = block(x);
    return torch::matmul(norm(x), characters->weight.t());
  }

  // The mean loss of the next characters, in nats.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& next) {
    return torch::nn::functional::cross_entropy(logits(ids).flatten(0, 1), next.flatten());
  }

  torch::nn::Embedding characters, positions;
  torch::nn::LayerNorm norm;
  std::vector<Block> blocks;
};
TORCH_MODULE(Transformer);
