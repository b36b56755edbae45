// Matrices of floats by rows, and the operations of a transformer's layer. They are simple, not fast: this example is
// about the split.
//
// Thread safety: values and pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace parallel {

struct Matrix {
  size_t rows = 0, cols = 0;
  std::vector<float> v;

  Matrix() = default;
  Matrix(size_t rows, size_t cols) : rows(rows), cols(cols), v(rows * cols) {}
  float& operator()(size_t r, size_t c) { return v[r * cols + c]; }
  float operator()(size_t r, size_t c) const { return v[r * cols + c]; }
  uint64_t bytes() const { return v.size() * sizeof(float); }
};

/// a b. a: m x k, b: k x n.
inline Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.cols);
  for (size_t i = 0; i < a.rows; ++i)
    for (size_t k = 0; k < a.cols; ++k)
      for (size_t j = 0; j < b.cols; ++j) c(i, j) += a(i, k) * b(k, j);
  return c;
}

inline Matrix transposed(const Matrix& a) {
  Matrix t(a.cols, a.rows);
  for (size_t i = 0; i < a.rows; ++i)
    for (size_t j = 0; j < a.cols; ++j) t(j, i) = a(i, j);
  return t;
}

inline Matrix sum(Matrix a, const Matrix& b) {
  for (size_t i = 0; i < a.v.size(); ++i) a.v[i] += b.v[i];
  return a;
}

/// A range [first, first + size).
struct Range {
  size_t first, size;
};

/// Part `rank` of n, which need not be a multiple of the number of parts.
inline Range part_of(size_t n, int rank, int nranks) {
  const auto r = static_cast<size_t>(rank), parts = static_cast<size_t>(nranks);
  const size_t first = n * r / parts;
  return {first, n * (r + 1) / parts - first};
}

inline Matrix columns(const Matrix& m, Range range) {
  Matrix part(m.rows, range.size);
  for (size_t i = 0; i < m.rows; ++i)
    for (size_t j = 0; j < range.size; ++j) part(i, j) = m(i, range.first + j);
  return part;
}

inline Matrix rows(const Matrix& m, Range range) {
  Matrix part(range.size, m.cols);
  std::copy_n(m.v.data() + range.first * m.cols, part.v.size(), part.v.data());
  return part;
}

/// Values in [-1, 1) * scale, equal on every rank and machine.
inline Matrix made_up(size_t num_rows, size_t num_cols, uint64_t seed, float scale = 1) {
  Matrix m(num_rows, num_cols);
  for (size_t i = 0; i < m.v.size(); ++i) {
    uint64_t x = (seed << 32) + i + 1;
    x *= 0x9e3779b97f4a7c15, x ^= x >> 31, x *= 0xd6e8feb86659fd93, x ^= x >> 29;
    m.v[i] = scale * static_cast<float>(static_cast<int64_t>(x >> 40) - (1 << 23)) / static_cast<float>(1 << 23);
  }
  return m;
}

/// The largest difference of two elements, relative to the largest element of b.
inline double difference(const Matrix& a, const Matrix& b) {
  if (a.rows != b.rows || a.cols != b.cols) return INFINITY;
  double most = 0, size = 0;
  for (size_t i = 0; i < a.v.size(); ++i) {
    const double d = std::fabs(static_cast<double>(a.v[i]) - static_cast<double>(b.v[i]));
    if (!(d <= most)) most = d;  // a NaN stays
    size = std::max(size, std::fabs(static_cast<double>(b.v[i])));
  }
  return size > 0 ? most / size : most;
}

inline Matrix gelu(Matrix x) {
  for (float& e : x.v) e = 0.5f * e * (1 + std::erf(e * 0.70710678f));
  return x;
}

/// dy * gelu'(x).
inline Matrix gelu_backward(const Matrix& x, Matrix dy) {
  for (size_t i = 0; i < x.v.size(); ++i) {
    const float e = x.v[i];
    dy.v[i] *= 0.5f * (1 + std::erf(e * 0.70710678f)) + e * 0.39894228f * std::exp(-0.5f * e * e);
  }
  return dy;
}

/// Normalises each row of x, n x d. gain, bias: 1 x d.
struct LayerNorm {
  Matrix gain, bias, dgain, dbias;
  Matrix x;  // kept for backward

  Matrix forward(Matrix in) {
    x = std::move(in);
    Matrix y(x.rows, x.cols);
    for (size_t i = 0; i < x.rows; ++i) {
      const auto [mean, scale] = moments(i);
      for (size_t j = 0; j < x.cols; ++j) y(i, j) = (x(i, j) - mean) * scale * gain(0, j) + bias(0, j);
    }
    return y;
  }
  /// dgain and dbias cover these rows.
  Matrix backward(const Matrix& dy) {
    Matrix dx(x.rows, x.cols);
    dgain = dbias = Matrix(1, x.cols);
    for (size_t i = 0; i < x.rows; ++i) {
      const auto [mean, scale] = moments(i);
      float mean_g = 0, mean_gz = 0;
      for (size_t j = 0; j < x.cols; ++j) {
        const float z = (x(i, j) - mean) * scale, g = dy(i, j) * gain(0, j);
        dgain(0, j) += dy(i, j) * z, dbias(0, j) += dy(i, j);
        mean_g += g / static_cast<float>(x.cols), mean_gz += g * z / static_cast<float>(x.cols);
      }
      for (size_t j = 0; j < x.cols; ++j)
        dx(i, j) = scale * (dy(i, j) * gain(0, j) - mean_g - (x(i, j) - mean) * scale * mean_gz);
    }
    return dx;
  }

 private:
  std::pair<float, float> moments(size_t i) const {
    float mean = 0, squares = 0;
    for (size_t j = 0; j < x.cols; ++j) mean += x(i, j) / static_cast<float>(x.cols);
    for (size_t j = 0; j < x.cols; ++j) squares += (x(i, j) - mean) * (x(i, j) - mean);
    return {mean, 1 / std::sqrt(squares / static_cast<float>(x.cols) + 1e-5f)};
  }
};

}  // namespace parallel
