// Renderer: an algorithm as a text that a learner can follow: who sends what to whom in every step, and what every
// chunk of every rank holds after it.
//
// Executes the schedule symbolically (src/schedule/steps.h) and prints it as tables; nothing is measured. Large numbers
// of ranks, chunks and steps are folded. Works for every registered algorithm.
// Thread safety: pure function.
#pragma once

#include <cstdint>
#include <string>

#include "algorithms/registry.h"

namespace rondo {

struct ExplainOptions {
  HostLayout hosts = 4;  // 1 .. kMaxExplainRanks ranks
  Rank root = 0;   // of a rooted collective
  bool has_elements = false;
  uint64_t num_elems = 0;  // of the whole vector: the larger of a rank's input and output; barrier: ignored
  int step = 0;            // show only this step; 0: all
  int fold_at = 16;        // rows, columns and steps beyond this number are folded; 0: never
};
inline constexpr int kMaxExplainRanks = 256;

/// The whole text, lines ended by '\n'. O(N^2) messages for a ring. A step beyond the last one is said so in the text.
std::string explain(const Algorithm& algorithm, const ExplainOptions& options);

/// The same of an algorithm that nobody has proven: as far as the step that breaks it, then what is wrong.
struct Explained {
  std::string text;
  bool right = false;  // with these ranks and this root: the whole text
};
Explained explain_unproven(const Algorithm& algorithm, const ExplainOptions& options);

/// "A" .. "Z", then "r26", "r27", ...
std::string rank_letter(Rank rank);

}  // namespace rondo
