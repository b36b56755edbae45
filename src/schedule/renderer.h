// Renderer: explains an algorithm step by step as text: the messages of every step, and the contents of every chunk of
// every rank after it.
//
// Executes the schedule symbolically (src/schedule/steps.h) and prints tables; it measures nothing. Large numbers of
// ranks, chunks and steps are folded. Works for every registered algorithm. Thread safety: pure function.
#pragma once

#include <cstdint>
#include <string>

#include "algorithms/registry.h"

namespace rondo {

struct ExplainOptions {
  HostLayout hosts = 4;  // 1 .. kMaxExplainRanks ranks
  Rank root = 0;   // of a rooted collective
  bool has_elements = false;
  uint64_t num_elems = 0;  // of the whole vector: the larger of a rank's input and output; ignored for barrier
  int step = 0;            // show only this step; 0: all
  int fold_at = 16;        // folds rows, columns and steps beyond this number; 0: never
};
inline constexpr int kMaxExplainRanks = 256;

/// The whole text, lines ended by '\n'. O(N^2) messages for a ring. For a step beyond the last one the text contains an
/// error.
std::string explain(const Algorithm& algorithm, const ExplainOptions& options);

/// The same for an unproven algorithm: up to the step with the error, then the error.
struct Explained {
  std::string text;
  bool right = false;  // no error for these ranks and this root: the whole text
};
Explained explain_unproven(const Algorithm& algorithm, const ExplainOptions& options);

/// "A" .. "Z", then "r26", "r27", ...
std::string rank_letter(Rank rank);

}  // namespace rondo
