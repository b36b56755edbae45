// Output of rank 0, and comparisons. A comparison that fails is an error that names the rank.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

#include "group.h"

namespace parallel {

/// printf on rank 0.
__attribute__((format(printf, 2, 3))) inline void say(const Group& group, const char* format, ...) {
  if (group.rank() != 0) return;
  va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
}

inline rondo::Status expect(const Group& group, bool holds, const std::string& what) {
  if (holds) return {};
  return {rondo::StatusCode::kInternal, "rank " + std::to_string(group.rank()) + ": check failed: " + what};
}

/// For floats that were added in another order.
inline constexpr double kTolerance = 1e-5;

inline rondo::Status expect_same(const Group& group, const Matrix& part, const Matrix& whole, const std::string& what) {
  const double d = difference(part, whole);
  return expect(group, d <= kTolerance, what + " as on one process (difference " + std::to_string(d) + ")");
}

/// Rank 0 prints every rank's part with a heading. Collective; all parts have one shape.
inline rondo::Status say_parts(Group& group, const Matrix& part, const char* heading) {
  RONDO_TRY_ASSIGN(const Matrix all, group.all_gather(part));
  for (size_t i = 0; i < all.rows; ++i) {
    if (i % part.rows == 0) say(group, "  %s %zu\n", heading, i / part.rows);
    say(group, "   ");
    for (size_t j = 0; j < all.cols; ++j) say(group, " %8.4f", static_cast<double>(all(i, j)));
    say(group, "\n");
  }
  return {};
}

}  // namespace parallel
