// Products of matrices in plain C++, without BLAS: blocks of 4 rows times 8 columns stay in registers. An element's
// terms are added in the order of k, so its bits do not depend on the blocks.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>

namespace plain {

/// A view of rows x cols floats. Element (r, c) is at[r * row_step + c * col_step].
struct Matrix {
  const float* at;
  size_t rows, cols, row_step, col_step = 1;

  Matrix(const float* at, size_t rows, size_t cols, size_t row_step = 0)
      : at(at), rows(rows), cols(cols), row_step(row_step == 0 ? cols : row_step) {}
  Matrix transposed() const {
    Matrix t = *this;
    t.rows = cols, t.cols = rows, t.row_step = col_step, t.col_step = row_step;
    return t;
  }
};

/// c += a b. a: m x k, b: k x n, c: m x n with rows c_row_step apart. O(m n k); copies b.
void add_product(const Matrix& a, const Matrix& b, float* c, size_t c_row_step);

}  // namespace plain
