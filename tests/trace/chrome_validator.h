// Checks a Chrome trace against the documented "Trace Event Format": the object form with metadata (M), complete (X)
// and flow (s, t, f) events. Independent of the exporter. Thread safety: a pure function.
#pragma once

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace rondo::testing {

class ChromeValidator {
 public:
  using Json = nlohmann::json;
  /// The errors, one sentence each, at most a few of a kind. Empty: the trace is valid.
  static std::vector<std::string> check(const Json& trace) {
    ChromeValidator v;
    v.run(trace);
    return v.problems_;
  }

 private:
  using Track = std::pair<int64_t, int64_t>;  // pid, tid
  struct Slice {
    double begin, end;
  };
  struct FlowEnd {
    Track track;
    double ts;
  };

  void run(const Json& trace) {
    if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array())
      return problem("no object with an array traceEvents");
    for (const Json& e : trace["traceEvents"]) check_event(e);
    for (const Track& t : used_) {
      if (named_processes_.count(t.first) == 0) problem("pid " + std::to_string(t.first) + " has no process_name");
      if (named_threads_.count(t) == 0)
        problem("pid " + std::to_string(t.first) + " tid " + std::to_string(t.second) + " has no thread_name");
    }
    check_flows();
  }

  void check_event(const Json& e) {
    if (!e.is_object() || !is_string(e, "ph")) return problem("an event without ph");
    if (!is_integer(e, "pid") || !is_integer(e, "tid")) return problem("an event without pid or tid: " + e.dump());
    const std::string ph = e["ph"];
    const Track track{e["pid"], e["tid"]};
    if (ph == "M") return check_metadata(e, track);
    used_.insert(track);
    if (!is_number(e, "ts") || e["ts"] < 0) return problem("no ts: " + e.dump());
    if (!is_string(e, "name") || e["name"].get<std::string>().empty()) return problem("no name: " + e.dump());
    const double ts = e["ts"];
    if (ph == "X") {
      if (!is_number(e, "dur") || e["dur"] < 0) return problem("a complete event without dur: " + e.dump());
      if (e.contains("args") && !e["args"].is_object()) problem("args is no object: " + e.dump());
      auto& slices = slices_[track];
      const double end = ts + e["dur"].get<double>();
      if (!slices.empty() && ts < slices.back().begin) problem("ts runs backwards on a track: " + e.dump());
      if (!slices.empty() && ts < slices.back().end - 1e-4 && end > slices.back().end + 1e-4)
        problem("slices overlap without nesting: " + e.dump());
      slices.push_back({ts, end});
    } else if (ph == "s" || ph == "f") {
      if (!e.contains("id") || !is_string(e, "cat")) return problem("a flow without id or cat: " + e.dump());
      if (ph == "f" && e.contains("bp") && e["bp"] != "e") problem("bp may only be e: " + e.dump());
      auto& ends = flows_[e["id"].dump() + e["cat"].dump()];
      (ph == "s" ? ends.first : ends.second).push_back({track, ts});
    } else {
      problem("phase " + ph + " is not one of M, X, s, f");
    }
  }

  void check_metadata(const Json& e, const Track& track) {
    static const std::set<std::string> kNames = {"process_name", "process_labels", "process_sort_index", "thread_name",
                                                 "thread_sort_index"};
    if (!is_string(e, "name") || kNames.count(e["name"]) == 0) return problem("unknown metadata: " + e.dump());
    const std::string name = e["name"];
    const bool sorts = name.find("sort_index") != std::string::npos;
    const char* key = sorts ? "sort_index" : name == "process_labels" ? "labels" : "name";
    if (!e.contains("args") || !e["args"].contains(key)) return problem("metadata without args." + std::string(key));
    if (name == "process_name") named_processes_.insert(track.first);
    if (name == "thread_name") named_threads_.insert(track);
  }

  void check_flows() {
    for (const auto& [id, ends] : flows_) {
      if (ends.first.size() != 1 || ends.second.size() != 1) {
        problem("flow " + id + " has " + std::to_string(ends.first.size()) + " starts and " +
                std::to_string(ends.second.size()) + " ends");
        continue;
      }
      if (ends.first[0].ts > ends.second[0].ts) problem("flow " + id + " ends before it starts");
      for (const FlowEnd& end : {ends.first[0], ends.second[0]})
        if (!lies_in_slice(end)) problem("flow " + id + " is bound to no slice");
    }
  }

  bool lies_in_slice(const FlowEnd& end) {
    const auto& slices = slices_[end.track];  // in the order of their beginnings
    auto it = std::upper_bound(slices.begin(), slices.end(), end.ts + 1e-4,
                               [](double ts, const Slice& s) { return ts < s.begin; });
    return it != slices.begin() && (it - 1)->end >= end.ts - 1e-4;
  }

  static bool is_string(const Json& e, const char* key) { return e.contains(key) && e[key].is_string(); }
  static bool is_number(const Json& e, const char* key) { return e.contains(key) && e[key].is_number(); }
  static bool is_integer(const Json& e, const char* key) { return e.contains(key) && e[key].is_number_integer(); }
  void problem(const std::string& text) {
    if (problems_.size() < 20) problems_.push_back(text);
  }

  std::vector<std::string> problems_;
  std::set<Track> used_, named_threads_;
  std::set<int64_t> named_processes_;
  std::map<Track, std::vector<Slice>> slices_;
  std::map<std::string, std::pair<std::vector<FlowEnd>, std::vector<FlowEnd>>> flows_;
};

}  // namespace rondo::testing
