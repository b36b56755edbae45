#include "layers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "product.h"

namespace plain {

void Linear::forward(const float* x, const float* w, const float* b, float* y) const {
  for (size_t i = 0; i < n; ++i) std::copy_n(b, out, y + i * out);
  add_product(Matrix(x, n, in), Matrix(w, in, out), y, out);
}

// dx = dy W^T, dW = x^T dy, db = the sum of dy's rows.
void Linear::backward(const float* x, const float* w, const float* dy, float* dx, float* dw, float* db) const {
  add_product(Matrix(dy, n, out), Matrix(w, in, out).transposed(), dx, in);
  add_product(Matrix(x, n, in).transposed(), Matrix(dy, n, out), dw, out);
  for (size_t i = 0; i < n; ++i)
    for (size_t o = 0; o < out; ++o) db[o] += dy[i * out + o];
}

namespace {

struct Moments {
  float mean, scale;  // scale: 1 / standard deviation
};

Moments moments_of(const float* row, size_t d) {
  float sum = 0, squares = 0;
  for (size_t i = 0; i < d; ++i) sum += row[i];
  const float mean = sum / static_cast<float>(d);
  for (size_t i = 0; i < d; ++i) squares += (row[i] - mean) * (row[i] - mean);
  return {mean, 1 / std::sqrt(squares / static_cast<float>(d) + 1e-5f)};
}

}  // namespace

void LayerNorm::forward(const float* x, const float* gain, const float* bias, float* y) const {
  for (size_t i = 0; i < n; ++i) {
    const float* row = x + i * d;
    const auto [mean, scale] = moments_of(row, d);
    for (size_t j = 0; j < d; ++j) y[i * d + j] = (row[j] - mean) * scale * gain[j] + bias[j];
  }
}

// With z = (x - mean) * scale and g = dy * gain: dx = scale * (g - mean(g) - z * mean(g z)).
void LayerNorm::backward(const float* x, const float* gain, const float* dy, float* dx, float* dgain,
                         float* dbias) const {
  for (size_t i = 0; i < n; ++i) {
    const float *row = x + i * d, *up = dy + i * d;
    const auto [mean, scale] = moments_of(row, d);
    float mean_g = 0, mean_gz = 0;
    for (size_t j = 0; j < d; ++j) {
      const float z = (row[j] - mean) * scale, g = up[j] * gain[j];
      dgain[j] += up[j] * z;
      dbias[j] += up[j];
      mean_g += g, mean_gz += g * z;
    }
    mean_g /= static_cast<float>(d), mean_gz /= static_cast<float>(d);
    for (size_t j = 0; j < d; ++j)
      dx[i * d + j] += scale * (up[j] * gain[j] - mean_g - (row[j] - mean) * scale * mean_gz);
  }
}

// One head of one sequence at a time. q, k, v: length x (d / heads), rows 3d apart. p: length x length; row t has the
// weights of positions 0 .. t, which sum to 1.
void CausalAttention::forward(const float* qkv, float* weights, float* y) const {
  const size_t size = d / heads;
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  std::fill_n(weights, batch * heads * length * length, 0.0f);
  std::fill_n(y, batch * length * d, 0.0f);
  for (size_t b = 0; b < batch; ++b)
    for (size_t h = 0; h < heads; ++h) {
      const float* q = qkv + b * length * 3 * d + h * size;
      float* p = weights + (b * heads + h) * length * length;
      add_product(Matrix(q, length, size, 3 * d), Matrix(q + d, length, size, 3 * d).transposed(), p, length);
      for (size_t t = 0; t < length; ++t) {
        float* row = p + t * length;
        const float most = *std::max_element(row, row + t + 1);
        float sum = 0;
        for (size_t i = 0; i <= t; ++i) sum += row[i] = std::exp((row[i] - most) * scale);
        for (size_t i = 0; i <= t; ++i) row[i] /= sum;
        std::fill(row + t + 1, row + length, 0.0f);
      }
      add_product(Matrix(p, length, length), Matrix(q + 2 * d, length, size, 3 * d), y + b * length * d + h * size, d);
    }
}

// ds = p * (dp - sum(dp * p)) * scale with dp = dy V^T; then dq = ds K, dk = ds^T Q, dv = p^T dy.
void CausalAttention::backward(const float* qkv, const float* weights, const float* dy, float* dqkv) const {
  const size_t size = d / heads, step = 3 * d;
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  std::vector<float> ds(length * length);
  for (size_t b = 0; b < batch; ++b)
    for (size_t h = 0; h < heads; ++h) {
      const size_t first = b * length * step + h * size;
      const float* p = weights + (b * heads + h) * length * length;
      const Matrix q(qkv + first, length, size, step), k(qkv + first + d, length, size, step),
          v(qkv + first + 2 * d, length, size, step), out(dy + b * length * d + h * size, length, size, d);
      std::fill(ds.begin(), ds.end(), 0.0f);
      add_product(out, v.transposed(), ds.data(), length);
      for (size_t t = 0; t < length; ++t) {
        float* row = &ds[t * length];
        float sum = 0;
        for (size_t i = 0; i <= t; ++i) sum += row[i] * p[t * length + i];
        for (size_t i = 0; i < length; ++i) row[i] = p[t * length + i] * (row[i] - sum) * scale;
      }
      const Matrix scores(ds.data(), length, length);
      add_product(scores, k, dqkv + first, step);
      add_product(scores.transposed(), q, dqkv + first + d, step);
      add_product(Matrix(p, length, length).transposed(), out, dqkv + first + 2 * d, step);
    }
}

namespace {
constexpr float kRoot = 0.7978845608f, kCube = 0.044715f;  // sqrt(2 / pi)
}

void gelu_forward(size_t n, const float* x, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = 0.5f * x[i] * (1 + std::tanh(kRoot * (x[i] + kCube * x[i] * x[i] * x[i])));
}

void gelu_backward(size_t n, const float* x, const float* dy, float* dx) {
  for (size_t i = 0; i < n; ++i) {
    const float t = std::tanh(kRoot * (x[i] + kCube * x[i] * x[i] * x[i]));
    dx[i] = dy[i] * (0.5f * (1 + t) + 0.5f * x[i] * (1 - t * t) * kRoot * (1 + 3 * kCube * x[i] * x[i]));
  }
}

double cross_entropy(size_t n, size_t classes, const int* targets, float scale, float* logits) {
  double loss = 0;
  const float each = scale / static_cast<float>(n);
  for (size_t i = 0; i < n; ++i) {
    float* row = logits + i * classes;
    const auto target = static_cast<size_t>(targets[i]);
    const float most = *std::max_element(row, row + classes), wanted = row[target];
    float sum = 0;
    for (size_t c = 0; c < classes; ++c) sum += row[c] = std::exp(row[c] - most);
    loss += static_cast<double>(std::log(sum) + most - wanted);
    for (size_t c = 0; c < classes; ++c) row[c] *= each / sum;
    row[target] -= each;
  }
  return loss / static_cast<double>(n);
}

}  // namespace plain
