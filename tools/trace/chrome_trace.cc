// Writes Chrome trace JSON, as defined by the "Trace Event Format" document: metadata (M), complete (X) and flow (s, f)
// events in the object form. Events are written track by track, so that the times of a track never decrease.
#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "trace/export.h"
#include "trace/export_text.h"
#include "trace/timeline.h"

namespace rondo {
namespace {

// A flow's end at a record.
struct FlowEnd {
  uint32_t file, record;
  uint64_t id;
  bool starts;
};

std::vector<FlowEnd> flow_ends(const MessageFlows& messages) {
  std::vector<FlowEnd> ends;
  for (size_t id = 0; id < messages.flows.size(); ++id) {
    const MessageFlow& m = messages.flows[id];
    ends.push_back({m.send_file, m.send_record, id + 1, true});
    ends.push_back({m.recv_file, m.recv_record, id + 1, false});
  }
  std::sort(ends.begin(), ends.end(), [](const FlowEnd& a, const FlowEnd& b) {
    return std::tuple(a.file, a.record, a.id) < std::tuple(b.file, b.record, b.id);
  });
  return ends;
}

// Places intervals on as few tracks as possible. Call place() in the order of the beginnings.
class Tracks {
 public:
  size_t place(int64_t begin_ns, int64_t end_ns) {
    size_t t = 0;
    while (t < ends_ns_.size() && ends_ns_[t] > begin_ns) ++t;
    if (t == ends_ns_.size()) ends_ns_.push_back(end_ns);
    else ends_ns_[t] = end_ns;
    return t;
  }
  size_t count() const { return ends_ns_.size(); }

 private:
  std::vector<int64_t> ends_ns_;
};

class ChromeWriter {
 public:
  ChromeWriter(const std::vector<TraceFile>& files, std::FILE* out, const TraceSelection& selection)
      : files_(files),
        timeline_(files),
        selected_(files, timeline_, selection),
        messages_(match_messages(files)),
        sink_(out) {
    std::erase_if(messages_.flows, [&](const MessageFlow& m) {
      return !selected_.has_step(m.send_file, m.send_record) || !selected_.has_step(m.recv_file, m.recv_record);
    });
    // Drop arrows that lead back in time. They only show the difference of two devices' clocks.
    report_.backward = std::erase_if(messages_.flows, [&](const MessageFlow& m) {
      return timeline_.ns(m.recv_file, files_[m.recv_file].records[m.recv_record].done_ticks()) <
             timeline_.ns(m.send_file, files_[m.send_file].records[m.send_record].ready_ticks());
    });
    ends_ = flow_ends(messages_);
  }

  Expected<ExportReport> run() {
    report_.flows = messages_.flows.size();
    report_.unmatched_sends = messages_.unmatched_sends;
    report_.unmatched_recvs = messages_.unmatched_recvs;
    sink_.print("{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    for (size_t f = 0; f < files_.size(); ++f) {
      if (!selected_.has_file(f)) continue;
      choose_process(f);
      write_spans(f);
      write_operations(f);
      write_lanes(f);
      report_.lost += files_[f].num_lost();
      report_.spans_lost += files_[f].spans_lost;
      report_.one_clock = report_.one_clock && timeline_.is_shared(f);
    }
    write_end();
    if (!sink_.flush()) return Status(StatusCode::kSystem, "cannot write the Chrome trace");
    return report_;
  }

 private:
  // Files of one rank of one communicator are one process. There are several if tracing was stopped and restarted.
  void choose_process(size_t f) {
    const TraceIdentity& id = files_[f].identity;
    if (f != 0 && files_[f - 1].identity.communicator == id.communicator && files_[f - 1].identity.rank == id.rank)
      return;  // next_tid_ continues, so that each file has its own tracks
    ++pid_;
    next_tid_ = 1;
    std::string name = fmt::format("rank {}", id.rank);
    if (files_.front().identity.communicator != files_.back().identity.communicator)
      name = fmt::format("communicator {:x} rank {}", id.communicator, id.rank);
    name += fmt::format(" (pid {} on {})", files_[f].pid, files_[f].host.substr(0, files_[f].host.find(' ')));
    metadata("process_name", 0, fmt::format("\"name\":{}", json_quoted(name)));
    metadata("process_sort_index", 0, fmt::format("\"sort_index\":{}", pid_));
  }

  // Rows of one name are adjacent, in the order in which the names first occur.
  void write_spans(size_t f) {
    std::vector<std::string> names;
    std::unordered_map<std::string, std::vector<const TraceSpan*>> rows;
    for (const TraceSpan& s : files_[f].spans) {
      if (!selected_.has_span(f, s)) continue;
      auto& row = rows[s.track];
      if (row.empty()) names.push_back(s.track);
      row.push_back(&s);
    }
    for (const std::string& name : names) {
      auto& row = rows[name];
      std::stable_sort(row.begin(), row.end(), [](auto* a, auto* b) { return a->begin < b->begin; });
      Tracks tracks;
      std::vector<size_t> track;
      for (const TraceSpan* s : row) track.push_back(tracks.place(timeline_.ns(f, s->begin), timeline_.ns(f, s->end)));
      name_tracks(name, tracks.count());
      for (size_t t = 0; t < tracks.count(); ++t)
        for (size_t i = 0; i < row.size(); ++i) {
          const int64_t begin = timeline_.ns(f, row[i]->begin);
          if (track[i] == t)
            slice(next_tid_ + t, begin, timeline_.ns(f, row[i]->end) - begin, "span", row[i]->name, "");
        }
      next_tid_ += tracks.count();
    }
  }

  void write_operations(size_t f) {
    struct Span {
      int64_t begin_ns, end_ns;
      uint64_t sequence, plan;
    };
    std::vector<Span> spans;
    std::unordered_map<uint64_t, size_t> place_of;
    for (size_t i = 0; i < files_[f].records.size(); ++i) {
      if (!selected_.has_step(f, i)) continue;
      const StepRecord& r = files_[f].records[i];
      const int64_t begin = timeline_.ns(f, r.begin_ticks), end = timeline_.ns(f, r.done_ticks());
      const uint64_t key = operation_key(files_[f], r);
      const auto [it, is_new] = place_of.try_emplace(key, spans.size());
      if (is_new) {
        spans.push_back({begin, end, r.sequence, r.plan});
        continue;
      }
      Span& s = spans[it->second];
      s.begin_ns = std::min(s.begin_ns, begin);
      s.end_ns = std::max(s.end_ns, end);
    }
    std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
    std::vector<size_t> track;
    Tracks tracks;
    for (const Span& s : spans) track.push_back(tracks.place(s.begin_ns, s.end_ns));
    name_tracks("operations", tracks.count());
    for (size_t t = 0; t < tracks.count(); ++t)
      for (size_t i = 0; i < spans.size(); ++i)
        if (track[i] == t)
          slice(next_tid_ + t, spans[i].begin_ns, spans[i].end_ns - spans[i].begin_ns, "operation",
                fmt::format("#{} {}", spans[i].sequence, shape_text(files_[f].plans[spans[i].plan].shape)),
                fmt::format("\"sequence\":{},\"plan\":{},{}", spans[i].sequence, spans[i].plan,
                            plan_members(files_[f].plans[spans[i].plan])));
    next_tid_ += tracks.count();
  }

  void write_lanes(size_t f) {
    const std::vector<StepRecord>& records = files_[f].records;
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < records.size(); ++i)
      if (selected_.has_step(f, i)) order.push_back(i);
    auto key = [&](uint32_t i) { return std::tuple(uint64_t{records[i].channel}, uint64_t{records[i].lane}); };
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return std::tuple_cat(key(a), std::tuple(records[a].begin_ticks)) <
             std::tuple_cat(key(b), std::tuple(records[b].begin_ticks));
    });
    for (size_t a = 0; a < order.size();) {
      size_t b = a + 1;
      while (b < order.size() && key(order[b]) == key(order[a])) ++b;
      write_lane(f, std::span(order).subspan(a, b - a));
      a = b;
    }
  }

  void write_lane(size_t f, std::span<const uint32_t> order) {
    std::vector<std::vector<uint32_t>> on_track;
    Tracks tracks;
    for (const uint32_t i : order) {
      const StepRecord& r = files_[f].records[i];
      const size_t t = tracks.place(timeline_.ns(f, r.begin_ticks), timeline_.ns(f, r.done_ticks()));
      on_track.resize(tracks.count());
      on_track[t].push_back(i);
    }
    const StepRecord& first = files_[f].records[order[0]];
    name_tracks(first.channel == 0 ? fmt::format("lane {}", uint64_t{first.lane})
                                   : fmt::format("channel {} lane {}", uint64_t{first.channel}, uint64_t{first.lane}),
                tracks.count());
    for (size_t t = 0; t < on_track.size(); ++t)
      for (const uint32_t i : on_track[t]) write_step(f, i, next_tid_ + t);
    next_tid_ += tracks.count();
  }

  void write_step(size_t f, uint32_t index, uint64_t tid) {
    const StepRecord& r = files_[f].records[index];
    const TracedInstruction* i = files_[f].instruction(r);
    const std::string members = step_members(files_[f], index);
    uint64_t at = r.begin_ticks;
    auto wait = [&](uint64_t for_ticks, const std::string& name) {
      if (for_ticks == 0) return;
      const int64_t begin = timeline_.ns(f, at);
      at += for_ticks;
      slice(tid, begin, timeline_.ns(f, at) - begin, "wait", name, members);
    };
    wait(r.wait_order_ticks, "wait for order");
    wait(r.wait_data_ticks, "wait for data" + from_whom(i != nullptr ? i->recv_peers : std::vector<int32_t>()));
    wait(r.wait_room_ticks, "wait for room" + from_whom(i != nullptr ? i->send_peers : std::vector<int32_t>()));
    const int64_t ready = timeline_.ns(f, r.ready_ticks());
    const std::string timed = fmt::format("{},\"wait_data_us\":{},\"wait_room_us\":{},\"wait_order_us\":{}", members,
                                          wait_us(f, r, r.wait_data_ticks), wait_us(f, r, r.wait_room_ticks),
                                          wait_us(f, r, r.wait_order_ticks));
    slice(tid, ready, timeline_.ns(f, r.done_ticks()) - ready, "step",
          i != nullptr ? std::string(verb_name(i->verb)) : "instruction of an unnumbered plan", timed);
    write_flows(f, index, tid);
    ++report_.steps;
  }

  void write_flows(size_t f, uint32_t index, uint64_t tid) {
    auto it = std::lower_bound(ends_.begin(), ends_.end(), std::tuple(f, index), [](const FlowEnd& e, const auto& at) {
      return std::tuple(size_t{e.file}, e.record) < at;
    });
    std::vector<std::pair<int64_t, const FlowEnd*>> here;
    for (; it != ends_.end() && it->file == f && it->record == index; ++it) here.emplace_back(time_of(*it), &*it);
    std::sort(here.begin(), here.end());
    for (const auto& [at_ns, end] : here)
      event("{{\"ph\":\"{}\"{},\"id\":{},\"name\":\"message\",\"cat\":\"message\",\"pid\":{},\"tid\":{},\"ts\":{}}}",
            end->starts ? "s" : "f", end->starts ? "" : ",\"bp\":\"e\"", end->id, pid_, tid, json_us(at_ns));
  }

  // Clamps the arrival to the send time. The receiver may read its clock and be interrupted before the message is sent.
  int64_t time_of(const FlowEnd& end) const {
    const StepRecord& r = files_[end.file].records[end.record];
    const int64_t ready = timeline_.ns(end.file, r.ready_ticks());
    if (end.starts) return ready;
    const MessageFlow& m = messages_.flows[end.id - 1];
    const int64_t sent = timeline_.ns(m.send_file, files_[m.send_file].records[m.send_record].ready_ticks());
    return std::clamp(sent, ready, std::max(ready, timeline_.ns(end.file, r.done_ticks())));
  }

  void write_end() {
    sink_.print(
        "\n],\"otherData\":{{\"origin_realtime_ns\":\"{}\",\"records_lost\":{},\"spans_lost\":{},\"unmatched_sends\":{}"
        ","
        "\"unmatched_recvs\":{},\"backward\":{},\"one_clock\":{},\"files\":[",
        timeline_.origin_realtime_ns(), report_.lost, report_.spans_lost, report_.unmatched_sends,
        report_.unmatched_recvs, report_.backward, report_.one_clock);
    bool is_first = true;
    for (size_t f = 0; f < files_.size(); ++f) {
      if (!selected_.has_file(f)) continue;
      const TraceFile& t = files_[f];
      sink_.print(
          "{}{{\"communicator\":\"{:x}\",\"rank\":{},\"nranks\":{},\"pid\":{},\"host\":{},\"written\":{},"
          "\"lost\":{},\"error\":{}}}",
          std::exchange(is_first, false) ? "" : ",", t.identity.communicator, t.identity.rank, t.identity.nranks, t.pid,
          json_quoted(t.host), t.num_written, t.num_lost(), json_quoted(t.why));
    }
    sink_.print("]}}}}\n");
  }

  static std::string from_whom(const std::vector<int32_t>& peers) {
    if (peers.empty()) return "";
    return peers.size() == 1 ? fmt::format(" (rank {})", peers[0])
                             : fmt::format(" (rank {} and {} more)", peers[0], peers.size() - 1);
  }
  std::string wait_us(size_t f, const StepRecord& r, uint64_t for_ticks) const {
    return json_us(timeline_.ns(f, r.begin_ticks + for_ticks) - timeline_.ns(f, r.begin_ticks));
  }

  void name_tracks(const std::string& name, size_t count) {
    for (size_t t = 0; t < count; ++t) {
      const std::string full = t == 0 ? name : fmt::format("{} ({})", name, t + 1);
      metadata("thread_name", next_tid_ + t, fmt::format("\"name\":{}", json_quoted(full)));
      metadata("thread_sort_index", next_tid_ + t, fmt::format("\"sort_index\":{}", next_tid_ + t));
    }
  }
  void metadata(std::string_view what, uint64_t tid, const std::string& args) {
    event("{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{{}}}}}", what, pid_, tid, args);
  }
  void slice(uint64_t tid, int64_t begin_ns, int64_t duration_ns, std::string_view category, const std::string& name,
             const std::string& args) {
    event("{{\"ph\":\"X\",\"name\":{},\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"args\":{{{}}}}}",
          json_quoted(name), category, pid_, tid, json_us(begin_ns), json_us(duration_ns), args);
  }
  template <class... Args>
  void event(fmt::format_string<Args...> format, Args&&... args) {
    if (!is_first_event_) sink_.print(",\n");
    is_first_event_ = false;
    sink_.print(format, std::forward<Args>(args)...);
  }

  const std::vector<TraceFile>& files_;
  const Timeline timeline_;
  const SelectedRecords selected_;
  MessageFlows messages_;
  std::vector<FlowEnd> ends_;
  TextSink sink_;
  ExportReport report_;
  uint64_t pid_ = 0, next_tid_ = 1;
  bool is_first_event_ = true;
};

}  // namespace

Expected<ExportReport> export_chrome(const std::vector<TraceFile>& files, std::FILE* out,
                                     const TraceSelection& selection) {
  return ChromeWriter(files, out, selection).run();
}

}  // namespace rondo
