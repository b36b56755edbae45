// Parses flight records from JSON and merges them over the ranks. Bad input throws here, and the caller reports it.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "diagnose.h"
#include "trace/flight_record.h"

namespace rondo::tools {
namespace {

using Json = nlohmann::json;

// Refuses numbers that are not whole. A number like 1e99 cannot be a rank, and its conversion is undefined.
Json parse(const std::string& text) {
  return Json::parse(text, [](int, Json::parse_event_t event, const Json& value) {
    if (event == Json::parse_event_t::value && value.is_number_float())
      throw std::runtime_error("holds a number that is not whole: " + value.dump());
    return true;
  });
}

std::string call_text(const Json& o) {
  std::string text = o.at("collective").get<std::string>() + (o.value("variable", false) ? "_v" : "");
  if (text != "barrier")
    text += fmt::format(" of {} {}", o.at("count_elems").get<uint64_t>(), o.at("dtype").get<std::string>());
  if (o.contains("op")) text += " " + o.at("op").get<std::string>();
  if (o.contains("type_row")) text += fmt::format(" (type row {})", o.at("type_row").get<int>());
  if (o.contains("root")) text += fmt::format(", root {}", o.at("root").get<int>());
  if (o.contains("peer"))
    text += o.at("peer").get<int>() < 0
                ? " from any rank"
                : fmt::format(" {} rank {}", text.starts_with("send") ? "to" : "from", o.at("peer").get<int>());
  if (o.value("algorithm", "") == "matched message") text += fmt::format(" with tag {}", o.at("tag").get<uint64_t>());
  return text;
}

LaneView read_lane(const Json& l) {
  LaneView v;
  v.where = fmt::format("step {} of {} of lane {} ({}) in loop {} of {}", l.at("step").get<uint64_t>(),
                        l.at("steps").get<uint64_t>(), l.at("lane").get<uint64_t>(), l.at("verb").get<std::string>(),
                        l.at("loop").get<uint64_t>(), l.at("loops").get<uint64_t>());
  v.state = l.at("state");
  v.peers = l.at("peers").get<std::vector<int>>();
  return v;
}

CurrentView read_current(const Json& c) {
  CurrentView v;
  v.sequence = c.at("sequence");
  v.point_to_point = c.contains("peer");
  v.peer = c.value("peer", -1);
  v.call = call_text(c);
  const std::string algorithm = c.at("algorithm"), protocol = c.at("protocol");
  v.how = v.point_to_point ? protocol : algorithm + ", " + protocol;
  v.begun = c.at("begun");
  v.waited_s = c.at("waited_ns").get<double>() * 1e-9;
  for (const Json& l : c.at("lanes")) v.lanes.push_back(read_lane(l));
  return v;
}

// Reads the operations of a status page: the collectives, which all ranks must call in the same order.
void read_operations(const Json& list, int64_t now_ns, RankView& v) {
  for (const Json& o : list) {
    if (o.contains("peer")) continue;
    const uint64_t sequence = o.at("sequence");
    v.calls[sequence] = call_text(o) + " (" + o.at("algorithm").get<std::string>() + ")";
    if (sequence == v.posted && o.contains("finished_ns"))
      v.idle_s = std::max(0.0, (static_cast<double>(now_ns) - o.at("finished_ns").get<double>()) * 1e-9);
  }
}

void read_own(const Json& r, RankView& v) {
  v.has_record = true;
  v.pid = r.at("pid");
  v.host = r.at("host");
  if (v.process == "unknown") v.process = "running";  // it ran when it wrote its record
  v.status = r.at("status");
  v.message = r.at("message");
  if (r.contains("lost_rank")) v.lost_rank = r.at("lost_rank").get<int>();
  v.lost_how = r.value("lost_how", "");
  if (r.contains("aborted_by")) v.aborted_by = r.at("aborted_by").get<int>();
  v.posted = r.at("last_posted");
  v.finished = r.at("last_finished");
  v.current_known = r.at("current_known");
  read_operations(r.at("operations"), r.at("monotonic_ns"), v);
  for (const Json& c : r.at("current")) {
    v.current.push_back(read_current(c));
    if (v.current.back().point_to_point) continue;
    const uint64_t sequence = v.current.back().sequence;
    v.posted = std::max(v.posted, sequence);  // it may be under way but not yet on the status page
    v.calls[sequence] = v.current.back().call + " (" + c.at("algorithm").get<std::string>() + ")";
  }
}

// Reads another rank's view. It is used for processes that ended or stopped after they wrote their own record. For a
// rank without a record, all of it is used.
void read_seen(const Json& p, int64_t now_ns, RankView& v) {
  const std::string process = p.at("process");
  if (process == "gone" || (process == "stopped" && v.process != "gone") || v.process == "unknown") v.process = process;
  v.departed = v.departed || p.at("departed").get<bool>();
  if (v.has_record) return;
  v.pid = p.at("pid");
  if (p.at("last_posted").get<uint64_t>() < v.posted) return;
  v.posted = p.at("last_posted");
  v.finished = std::max<uint64_t>(v.finished, p.at("last_finished"));
  read_operations(p.at("operations"), now_ns, v);
}

}  // namespace

std::vector<CommunicatorView> merge_flight_records(const std::vector<std::string>& texts,
                                                   std::vector<std::string>* problems) {
  std::map<std::string, CommunicatorView> comms;
  std::vector<Json> records;
  for (const std::string& text : texts) {
    try {
      Json r = parse(text);
      if (r.at("rondo_flight_record") != 1) throw std::runtime_error("is of another version");
      CommunicatorView& c = comms[r.at("communicator").get<std::string>()];
      const int rank = r.at("rank"), nranks = r.at("nranks");
      if (nranks < 1 || nranks > 65535 || rank < 0 || rank >= nranks || (c.nranks != 0 && c.nranks != nranks))
        throw std::runtime_error(fmt::format("names rank {} of {}", rank, nranks));
      c.id = r.at("communicator");
      c.nranks = nranks;
      c.ranks.resize(static_cast<size_t>(nranks));
      for (int i = 0; i < nranks; ++i) c.ranks[static_cast<size_t>(i)].rank = i;
      RankView own;
      own.rank = rank;
      read_own(r, own);
      c.ranks[static_cast<size_t>(rank)] = std::move(own);
      records.push_back(std::move(r));
    } catch (const std::exception& e) {
      problems->push_back(e.what());
    }
  }
  for (const Json& r : records) {
    try {
      CommunicatorView& c = comms.at(r.at("communicator").get<std::string>());
      for (const Json& p : r.at("peers"))
        if (const int peer = p.at("rank"); peer >= 0 && peer < c.nranks)
          read_seen(p, r.at("monotonic_ns"), c.ranks[static_cast<size_t>(peer)]);
    } catch (const std::exception& e) {
      problems->push_back(e.what());
    }
  }
  std::vector<CommunicatorView> out;
  for (auto& [id, c] : comms)
    if (c.nranks != 0) out.push_back(std::move(c));
  return out;
}

std::vector<CommunicatorView> read_flight_records(const std::string& folder, std::vector<std::string>* problems) {
  std::vector<std::string> paths, texts;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (entry.path().string().ends_with(kFlightSuffix)) paths.push_back(entry.path().string());
  if (error) problems->push_back(folder + ": " + error.message());
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    texts.push_back(text.str());
    std::vector<std::string> wrong;
    if (merge_flight_records({texts.back()}, &wrong); wrong.empty()) continue;
    problems->push_back(path + ": " + wrong[0]);
    texts.pop_back();
  }
  return merge_flight_records(texts, problems);
}

}  // namespace rondo::tools
