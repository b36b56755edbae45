// A network small enough to write by hand: layers h' = tanh(W h + b), and a head y = v h as the optional root. The loss
// is the mean of squared errors. Forward and backward of a unit take parameters from any address.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rondo/fsdp/plan.h"

namespace rondo::fsdp::testing {

/// Equal on every rank and machine.
inline float value_of(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = a * 0x9e3779b97f4a7c15 + b * 0xbf58476d1ce4e5b9 + c * 0x94d049bb133111eb + 1;
  x ^= x >> 31, x *= 0xd6e8feb86659fd93, x ^= x >> 29;
  return static_cast<float>(static_cast<int64_t>(x >> 40) - (1 << 23)) / static_cast<float>(1 << 24);
}

struct TinyNet {
  int layers = 3, dim = 7, batch = 4;
  bool root = true;
  /// Layers that a rank's micro-batches leave out.
  std::function<bool(int rank, int layer)> skips = {};

  bool skipped(int rank, int layer) const { return skips && skips(rank, layer); }

  Model model() const {
    Model m;
    m.has_root = root;
    const auto d = static_cast<uint64_t>(dim);
    if (root) m.units.push_back({"head", {{"v", {d}}}});
    for (int i = 0; i < layers; ++i) m.units.push_back({"layer" + std::to_string(i), {{"w", {d, d}}, {"b", {d}}}});
    return m;
  }
  int first() const { return root ? 1 : 0; }
};

/// One micro-batch through the network.
class Pass {
 public:
  Pass(const TinyNet& net, uint64_t data) : net_(net), data_(data) {
    const auto size = static_cast<size_t>(net.batch * net.dim);
    h_.assign(static_cast<size_t>(net.layers) + 1, std::vector<float>(size));
    for (size_t i = 0; i < size; ++i) h_[0][i] = value_of(data, i, 1);
    dh_.resize(size);
  }

  void forward_layer(int layer, const float* w, const float* b) {
    const auto& in = h_[static_cast<size_t>(layer)];
    auto& out = h_[static_cast<size_t>(layer) + 1];
    for (int n = 0; n < net_.batch; ++n)
      for (int i = 0; i < net_.dim; ++i) {
        float z = b[i];
        for (int j = 0; j < net_.dim; ++j) z += w[i * net_.dim + j] * in[at(n, j)];
        out[at(n, i)] = std::tanh(z);
      }
  }

  void skip_layer(int layer) { h_[static_cast<size_t>(layer) + 1] = h_[static_cast<size_t>(layer)]; }

  /// Call before the last layer's backward. v: the head's parameters; nullptr without a root.
  void start_backward(const float* v) {
    const auto& h = h_.back();
    head_grad_.assign(static_cast<size_t>(net_.dim), 0.0f);
    const float each = 2.0f / static_cast<float>(net_.batch);
    for (int n = 0; n < net_.batch; ++n) {
      if (v == nullptr) {
        for (int i = 0; i < net_.dim; ++i) dh_[at(n, i)] = each * (h[at(n, i)] - target(n, i));
        continue;
      }
      float y = 0;
      for (int i = 0; i < net_.dim; ++i) y += v[i] * h[at(n, i)];
      const float dy = each * (y - target(n, 0));
      for (int i = 0; i < net_.dim; ++i) {
        head_grad_[static_cast<size_t>(i)] += dy * h[at(n, i)];
        dh_[at(n, i)] = dy * v[i];
      }
    }
  }

  /// Adds to dw and db.
  void backward_layer(int layer, const float* w, float* dw, float* db) {
    const auto &in = h_[static_cast<size_t>(layer)], &out = h_[static_cast<size_t>(layer) + 1];
    std::vector<float> below(dh_.size());
    for (int n = 0; n < net_.batch; ++n)
      for (int i = 0; i < net_.dim; ++i) {
        const float o = out[at(n, i)], dz = dh_[at(n, i)] * (1 - o * o);
        db[i] += dz;
        for (int j = 0; j < net_.dim; ++j) {
          dw[i * net_.dim + j] += dz * in[at(n, j)];
          below[at(n, j)] += dz * w[i * net_.dim + j];
        }
      }
    dh_ = std::move(below);
  }

  void backward_head(float* dv) const {
    for (size_t i = 0; i < head_grad_.size(); ++i) dv[i] += head_grad_[i];
  }

 private:
  size_t at(int n, int i) const { return static_cast<size_t>(n * net_.dim + i); }
  float target(int n, int i) const { return value_of(data_, static_cast<uint64_t>(n * 1000 + i), 2); }

  const TinyNet& net_;
  const uint64_t data_;
  std::vector<std::vector<float>> h_;  // by layer, the input first
  std::vector<float> dh_, head_grad_;
};

}  // namespace rondo::fsdp::testing
