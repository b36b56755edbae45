#include "product.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace plain {
namespace {

constexpr size_t kRows = 4, kCols = 8;
using Four = float __attribute__((vector_size(16)));

// Copies eight columns of b to panel[k * 8 + c]; columns beyond b's last are zero.
void copy_panel(const Matrix& b, size_t first_col, float* panel) {
  const size_t cols = std::min(kCols, b.cols - first_col);
  const float* from = b.at + first_col * b.col_step;
  for (size_t k = 0; k < b.rows; ++k)
    for (size_t c = 0; c < kCols; ++c) panel[k * kCols + c] = c < cols ? from[k * b.row_step + c * b.col_step] : 0.0f;
}

// R rows of a (R x k) times a panel (k x 8), added to `cols` columns of c.
template <size_t R>
void multiply_tile(const Matrix& a, size_t first_row, const float* panel, float* c, size_t c_row_step, size_t cols) {
  Four sum[R][2] = {};
  const float* from = a.at + first_row * a.row_step;
  for (size_t k = 0; k < a.cols; ++k) {
    Four left, right;
    std::memcpy(&left, panel + k * kCols, sizeof(left));
    std::memcpy(&right, panel + k * kCols + 4, sizeof(right));
    for (size_t r = 0; r < R; ++r) {
      const float x = from[r * a.row_step + k * a.col_step];
      sum[r][0] += x * left;
      sum[r][1] += x * right;
    }
  }
  float row[kCols];
  for (size_t r = 0; r < R; ++r) {
    std::memcpy(row, sum[r], sizeof(row));
    for (size_t i = 0; i < cols; ++i) c[r * c_row_step + i] += row[i];
  }
}

}  // namespace

void add_product(const Matrix& a, const Matrix& b, float* c, size_t c_row_step) {
  std::vector<float> panel(b.rows * kCols);
  for (size_t n = 0; n < b.cols; n += kCols) {
    copy_panel(b, n, panel.data());
    const size_t cols = std::min(kCols, b.cols - n);
    size_t m = 0;
    for (; m + kRows <= a.rows; m += kRows)
      multiply_tile<kRows>(a, m, panel.data(), c + m * c_row_step + n, c_row_step, cols);
    for (; m < a.rows; ++m) multiply_tile<1>(a, m, panel.data(), c + m * c_row_step + n, c_row_step, cols);
  }
}

}  // namespace plain
