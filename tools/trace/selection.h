// Selects ranks, calls and a time range of a set of traces. An exporter first places all records on its clock and pairs
// all messages, so that times and arrows do not depend on the selection. Thread safety: immutable once made.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "trace/timeline.h"
#include "trace/trace_file.h"

namespace rondo {

struct TraceSelection {
  std::set<int32_t> ranks{};                        // empty: all
  uint64_t first_call = 0, last_call = UINT64_MAX;  // sequence numbers, as in "#17 all_reduce"
  int64_t from_ns = INT64_MIN, to_ns = INT64_MAX;   // since the timeline's origin; overlapping records count

  bool has_rank(int32_t rank) const { return ranks.empty() || ranks.contains(rank); }
  bool selects_calls() const { return first_call != 0 || last_call != UINT64_MAX; }
};

/// The selected records and spans of each file.
class SelectedRecords {
 public:
  SelectedRecords(const std::vector<TraceFile>& files, const Timeline& timeline, const TraceSelection& selection);

  /// True if the file's rank is selected.
  bool has_file(size_t file) const { return selection_.has_rank(files_[file].identity.rank); }
  /// True if the record is a selected step. O(1).
  bool has_step(size_t file, size_t record) const { return steps_[file][record]; }
  /// True if a program's own span is selected. If calls are selected, the span must overlap those of its rank. O(1).
  bool has_span(size_t file, const TraceSpan& span) const;

 private:
  bool is_in_time(size_t file, uint64_t begin_ticks, uint64_t end_ticks) const;

  const std::vector<TraceFile>& files_;
  const Timeline& timeline_;
  const TraceSelection& selection_;
  std::vector<std::vector<bool>> steps_;  // by file and record
  struct Extent {
    uint64_t begin_ticks = UINT64_MAX, end_ticks = 0;
  };
  std::vector<Extent> extents_;  // time range of the selected steps of each file
};

}  // namespace rondo
