#include "transformer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "layers.h"
#include "product.h"

namespace plain {
namespace {

// Positions of tensors in their units.
enum Root : size_t { kEmbedding, kHead, kPositions, kLastGain, kLastBias };
enum InBlock : size_t {
  kGain1,
  kBias1,
  kQkv,
  kQkvBias,
  kMix,
  kMixBias,
  kGain2,
  kBias2,
  kUp,
  kUpBias,
  kDown,
  kDownBias
};

uint64_t scramble(uint64_t x) {
  x ^= x >> 31, x *= 0xd6e8feb86659fd93, x ^= x >> 29, x *= 0x94d049bb133111eb;
  return x ^ (x >> 32);
}

}  // namespace

Transformer::Transformer(const Shape& shape) : shape_(shape), n_(shape.batch * shape.length) {
  const size_t d = shape.width;
  blocks_.resize(shape.layers);
  for (Block& b : blocks_) {
    for (Floats* f : {&b.x, &b.norm1, &b.mixed, &b.x2, &b.norm2}) f->resize(n_ * d);
    b.qkv.resize(n_ * 3 * d);
    b.weights.resize(shape.batch * shape.heads * shape.length * shape.length);
    for (Floats* f : {&b.up, &b.active}) f->resize(n_ * 4 * d);
  }
  for (Floats* f : {&x_, &dx_, &normed_}) f->resize(n_ * d);
  dlogits_.resize(n_ * shape.vocabulary);
}

rondo::fsdp::Model Transformer::model() const {
  const uint64_t d = shape_.width;
  rondo::fsdp::Model m;
  m.has_root = true;
  m.units.push_back({"root",
                     {{"embedding", {shape_.vocabulary, d}},
                      {.name = "head", .shape = {shape_.vocabulary, d}, .tied_to = "embedding"},
                      {"positions", {shape_.length, d}},
                      {"last.gain", {d}},
                      {"last.bias", {d}}}});
  for (size_t i = 0; i < shape_.layers; ++i) {
    const std::string at = "block" + std::to_string(i) + ".";
    m.units.push_back({"block" + std::to_string(i),
                       {{at + "norm1.gain", {d}},
                        {at + "norm1.bias", {d}},
                        {at + "qkv", {d, 3 * d}},
                        {at + "qkv.bias", {3 * d}},
                        {at + "mix", {d, d}},
                        {at + "mix.bias", {d}},
                        {at + "norm2.gain", {d}},
                        {at + "norm2.bias", {d}},
                        {at + "up", {d, 4 * d}},
                        {at + "up.bias", {4 * d}},
                        {at + "down", {4 * d, d}},
                        {at + "down.bias", {d}}}});
  }
  return m;
}

// Gains 1, biases 0, all others uniform with standard deviation 0.05. Depends only on name and index, so that any
// number of ranks starts with the same model.
float Transformer::initial_value(const rondo::fsdp::Tensor& tensor, uint64_t i) {
  if (tensor.name.ends_with("gain")) return 1;
  if (tensor.name.ends_with("bias")) return 0;
  uint64_t seed = 7;
  for (const char c : tensor.name) seed = seed * 131 + static_cast<uint8_t>(c);
  const auto bits = static_cast<int64_t>(scramble(scramble(seed) + i) >> 40) - (int64_t{1} << 23);  // 24 bits, signed
  return static_cast<float>(bits) / static_cast<float>(1 << 23) * 0.0866f;
}

void Transformer::start(std::vector<int> tokens, std::vector<int> targets) {
  tokens_ = std::move(tokens);
  targets_ = std::move(targets);
}

void Transformer::forward(int unit, const Parameters& p) {
  const size_t d = shape_.width;
  if (unit > 0) return forward_block(blocks_[static_cast<size_t>(unit) - 1], p);
  for (size_t i = 0; i < n_; ++i) {
    const float *token = p[kEmbedding] + static_cast<size_t>(tokens_[i]) * d,
                *position = p[kPositions] + i % shape_.length * d;
    for (size_t j = 0; j < d; ++j) x_[i * d + j] = token[j] + position[j];
  }
}

void Transformer::forward_block(Block& b, const Parameters& p) {
  const size_t d = shape_.width;
  b.x = x_;
  LayerNorm{n_, d}.forward(b.x.data(), p[kGain1], p[kBias1], b.norm1.data());
  Linear{n_, d, 3 * d}.forward(b.norm1.data(), p[kQkv], p[kQkvBias], b.qkv.data());
  CausalAttention{shape_.batch, shape_.length, d, shape_.heads}.forward(b.qkv.data(), b.weights.data(), b.mixed.data());
  Linear{n_, d, d}.forward(b.mixed.data(), p[kMix], p[kMixBias], b.x2.data());
  for (size_t i = 0; i < n_ * d; ++i) b.x2[i] += b.x[i];
  LayerNorm{n_, d}.forward(b.x2.data(), p[kGain2], p[kBias2], b.norm2.data());
  Linear{n_, d, 4 * d}.forward(b.norm2.data(), p[kUp], p[kUpBias], b.up.data());
  gelu_forward(n_ * 4 * d, b.up.data(), b.active.data());
  Linear{n_, 4 * d, d}.forward(b.active.data(), p[kDown], p[kDownBias], x_.data());
  for (size_t i = 0; i < n_ * d; ++i) x_[i] += b.x2[i];
}

void Transformer::begin_backward(const Parameters& p, float scale) {
  const size_t d = shape_.width, v = shape_.vocabulary;
  LayerNorm{n_, d}.forward(x_.data(), p[kLastGain], p[kLastBias], normed_.data());
  std::fill(dlogits_.begin(), dlogits_.end(), 0.0f);
  add_product(Matrix(normed_.data(), n_, d), Matrix(p[kHead], v, d).transposed(), dlogits_.data(), v);
  loss_ = cross_entropy(n_, v, targets_.data(), scale, dlogits_.data());

  Floats dnormed(n_ * d);
  add_product(Matrix(dlogits_.data(), n_, v), Matrix(p[kHead], v, d), dnormed.data(), d);
  dgain_.assign(d, 0.0f), dbias_.assign(d, 0.0f);
  std::fill(dx_.begin(), dx_.end(), 0.0f);
  LayerNorm{n_, d}.backward(x_.data(), p[kLastGain], dnormed.data(), dx_.data(), dgain_.data(), dbias_.data());
}

void Transformer::backward(int unit, const Parameters& p, const Gradients& g) {
  if (unit > 0) return backward_block(blocks_[static_cast<size_t>(unit) - 1], p, g);
  const size_t d = shape_.width, v = shape_.vocabulary;
  add_product(Matrix(dlogits_.data(), n_, v).transposed(), Matrix(normed_.data(), n_, d), g[kHead], d);
  for (size_t i = 0; i < n_; ++i) {
    float *token = g[kEmbedding] + static_cast<size_t>(tokens_[i]) * d,
          *position = g[kPositions] + i % shape_.length * d;
    for (size_t j = 0; j < d; ++j) token[j] += dx_[i * d + j], position[j] += dx_[i * d + j];
  }
  for (size_t j = 0; j < d; ++j) g[kLastGain][j] += dgain_[j], g[kLastBias][j] += dbias_[j];
}

// dx_ is the gradient of the block's output at entry, and of its input at exit. It also carries the residual paths
// around attention and MLP.
void Transformer::backward_block(const Block& b, const Parameters& p, const Gradients& g) {
  const size_t d = shape_.width;
  Floats wide(n_ * 4 * d), narrow(n_ * d), dqkv(n_ * 3 * d);
  Linear{n_, 4 * d, d}.backward(b.active.data(), p[kDown], dx_.data(), wide.data(), g[kDown], g[kDownBias]);
  gelu_backward(n_ * 4 * d, b.up.data(), wide.data(), wide.data());
  Linear{n_, d, 4 * d}.backward(b.norm2.data(), p[kUp], wide.data(), narrow.data(), g[kUp], g[kUpBias]);
  LayerNorm{n_, d}.backward(b.x2.data(), p[kGain2], narrow.data(), dx_.data(), g[kGain2], g[kBias2]);

  std::fill(narrow.begin(), narrow.end(), 0.0f);
  Linear{n_, d, d}.backward(b.mixed.data(), p[kMix], dx_.data(), narrow.data(), g[kMix], g[kMixBias]);
  CausalAttention{shape_.batch, shape_.length, d, shape_.heads}.backward(b.qkv.data(), b.weights.data(), narrow.data(),
                                                                         dqkv.data());
  std::fill(narrow.begin(), narrow.end(), 0.0f);
  Linear{n_, d, 3 * d}.backward(b.norm1.data(), p[kQkv], dqkv.data(), narrow.data(), g[kQkv], g[kQkvBias]);
  LayerNorm{n_, d}.backward(b.x.data(), p[kGain1], narrow.data(), dx_.data(), g[kGain1], g[kBias1]);
}

uint64_t Transformer::activation_bytes() const {
  uint64_t floats = x_.size() + dx_.size() + normed_.size() + dlogits_.size();
  for (const Block& b : blocks_)
    for (const Floats* f : {&b.x, &b.norm1, &b.qkv, &b.weights, &b.mixed, &b.x2, &b.norm2, &b.up, &b.active})
      floats += f->size();
  return floats * sizeof(float);
}

}  // namespace plain
