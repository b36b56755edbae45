// JSON Lines export, one object per line.
#include "trace/export.h"
#include "trace/export_text.h"
#include "trace/timeline.h"

namespace rondo {

Expected<ExportReport> export_json_lines(const std::vector<TraceFile>& files, std::FILE* out,
                                         const TraceSelection& selection) {
  const Timeline timeline(files);
  const SelectedRecords selected(files, timeline, selection);
  TextSink sink(out);
  ExportReport report;
  for (size_t f = 0; f < files.size(); ++f) {
    if (!selected.has_file(f)) continue;
    const TraceFile& t = files[f];
    sink.print(
        "{{\"type\":\"file\",\"communicator\":\"{:x}\",\"rank\":{},\"nranks\":{},\"pid\":{},\"host\":{},"
        "\"origin_realtime_ns\":\"{}\",\"written\":{},\"lost\":{},\"spans_lost\":{},\"error\":{}}}\n",
        t.identity.communicator, t.identity.rank, t.identity.nranks, t.pid, json_quoted(t.host),
        timeline.origin_realtime_ns(), t.num_written, t.num_lost(), t.spans_lost, json_quoted(t.why));
    report.spans_lost += t.spans_lost;
    report.lost += t.num_lost();
    report.one_clock = report.one_clock && timeline.is_shared(f);
  }
  for (size_t f = 0; f < files.size(); ++f) {
    if (!selected.has_file(f)) continue;
    const TraceFile& t = files[f];
    for (size_t p = 0; p < t.plans.size(); ++p)
      sink.print("{{\"type\":\"plan\",\"communicator\":\"{:x}\",\"rank\":{},\"plan\":{},{}}}\n",
                 t.identity.communicator, t.identity.rank, p, plan_members(t.plans[p]));
    for (const TraceSpan& s : t.spans) {
      if (!selected.has_span(f, s)) continue;
      sink.print(
          "{{\"type\":\"span\",\"communicator\":\"{:x}\",\"rank\":{},\"track\":{},\"name\":{},\"begin_ns\":{},"
          "\"end_ns\":{}}}\n",
          t.identity.communicator, t.identity.rank, json_quoted(s.track), json_quoted(s.name), timeline.ns(f, s.begin),
          timeline.ns(f, s.end));
    }
    for (size_t i = 0; i < t.records.size(); ++i) {
      if (!selected.has_step(f, i)) continue;
      const StepRecord& r = t.records[i];
      const int64_t begin = timeline.ns(f, r.begin_ticks);
      auto since_begin = [&](uint64_t num_ticks) { return timeline.ns(f, r.begin_ticks + num_ticks) - begin; };
      const int64_t ready = timeline.ns(f, r.ready_ticks());
      sink.print(
          "{{\"type\":\"step\",\"communicator\":\"{:x}\",\"rank\":{},{},\"begin_ns\":{},\"wait_data_ns\":{},"
          "\"wait_room_ns\":{},\"wait_order_ns\":{},\"ready_ns\":{},\"done_ns\":{}}}\n",
          t.identity.communicator, t.identity.rank, step_members(t, i), begin, since_begin(r.wait_data_ticks),
          since_begin(r.wait_room_ticks), since_begin(r.wait_order_ticks), ready, timeline.ns(f, r.done_ticks()));
      ++report.steps;
    }
  }
  if (!sink.flush()) return Status(StatusCode::kSystem, "cannot write the JSON Lines");
  return report;
}

}  // namespace rondo
