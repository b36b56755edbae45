// Products of matrices in plain C++, so that the example needs no BLAS: 4 rows times 8 columns at a time stay in
// registers. An element's terms are added in the order of k, whatever the sizes: its bits do not depend on the blocks.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>

namespace plain {

/// rows x cols floats that belong to somebody else; element (r, c) stands at at[r * row_step + c * col_step].
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

/// c += a b. a: m x k, b: k x n, c: m x n with rows c_row_step apart. O(m n k); a copy of b is made for it.
void add_product(const Matrix& a, const Matrix& b, float* c, size_t c_row_step);

}  // namespace plain
