#include "trace/selection.h"

#include <algorithm>

namespace rondo {

SelectedRecords::SelectedRecords(const std::vector<TraceFile>& files, const Timeline& timeline,
                                 const TraceSelection& selection)
    : files_(files), timeline_(timeline), selection_(selection), extents_(files.size()) {
  for (size_t f = 0; f < files.size(); ++f) {
    const std::vector<StepRecord>& records = files[f].records;
    std::vector<bool>& steps = steps_.emplace_back(records.size(), false);
    if (!has_file(f)) continue;
    for (size_t i = 0; i < records.size(); ++i) {
      const StepRecord& r = records[i];
      steps[i] = r.kind == static_cast<uint64_t>(RecordKind::kStep) && r.sequence >= selection.first_call &&
                 r.sequence <= selection.last_call && is_in_time(f, r.begin_ticks, r.done_ticks());
      if (!steps[i]) continue;
      extents_[f].begin_ticks = std::min(extents_[f].begin_ticks, r.begin_ticks);
      extents_[f].end_ticks = std::max(extents_[f].end_ticks, r.done_ticks());
    }
  }
}

bool SelectedRecords::has_span(size_t file, const TraceSpan& span) const {
  if (!has_file(file) || !is_in_time(file, span.begin, span.end)) return false;
  return !selection_.selects_calls() ||
         (span.begin <= extents_[file].end_ticks && span.end >= extents_[file].begin_ticks);
}

bool SelectedRecords::is_in_time(size_t file, uint64_t begin_ticks, uint64_t end_ticks) const {
  return timeline_.ns(file, begin_ticks) <= selection_.to_ns && timeline_.ns(file, end_ticks) >= selection_.from_ns;
}

}  // namespace rondo
