#include "trace/flight_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/json_text.h"
#include "base/process_name.h"
#include "base/read_file.h"
#include "trace/trace_file.h"

namespace rondo {
namespace {

// Joins the items, each on a line of its own.
template <class List, class Text>
std::string lines_of(const List& list, std::string_view indent, Text text) {
  std::string out;
  for (const auto& x : list) out += fmt::format("{}\n{}{}", out.empty() ? "" : ",", indent, text(x));
  return out;
}

int64_t started_ns(const FlightRecord& r, const FlightOperation& o) {
  const auto ago = static_cast<int64_t>(r.time.ticks - o.posted.started_ticks);
  return r.time.monotonic_ns - static_cast<int64_t>(static_cast<double>(ago) * r.ns_per_tick);
}

std::string members(const FlightRecord& r, const FlightOperation& o) {
  const OperationShape& s = o.posted.shape;
  std::string text = fmt::format("\"sequence\": {}, \"collective\": \"{}\", \"count_elems\": {}, \"dtype\": \"{}\"",
                                 o.posted.sequence, collective_name(s.collective), s.count_elems, dtype_name(s.dtype));
  if (collective_reduces(s.collective)) text += fmt::format(", \"op\": \"{}\"", op_name(s.op));
  if (collective_is_rooted(s.collective)) text += fmt::format(", \"root\": {}", s.root);
  if (is_point_to_point(s.collective)) text += fmt::format(", \"peer\": {}", s.root == kAnyPeer ? -1 : s.root);
  if (s.row != 0) text += fmt::format(", \"type_row\": {}", s.row);
  if (s.variable) text += ", \"variable\": true";
  text += fmt::format(", \"algorithm\": {}, \"tag\": {}, \"finished\": {}", json_quoted(o.algorithm), o.posted.tag,
                      o.finished);
  if (o.posted.started_ticks == 0) return text;  // not posted yet
  text += fmt::format(", \"started_ns\": {}", started_ns(r, o));
  if (o.finished && o.posted.finished_ns != 0)  // the coarse clock may lag behind the start
    text +=
        fmt::format(", \"finished_ns\": {}", std::max(static_cast<int64_t>(o.posted.finished_ns), started_ns(r, o)));
  return text;
}

std::string operation(const FlightRecord& r, const FlightOperation& o) { return "{" + members(r, o) + "}"; }

std::string lane(const FlightLane& l) {
  return fmt::format(
      "{{\"lane\": {}, \"step\": {}, \"steps\": {}, \"loop\": {}, \"loops\": {}, \"verb\": \"{}\", "
      "\"state\": \"{}\", \"peers\": [{}]}}",
      l.lane, l.step, l.num_steps, l.loop, l.num_loops, verb_name(l.verb), lane_state_name(l.state),
      fmt::join(l.peers, ", "));
}

std::string current(const FlightRecord& r, const FlightCurrent& c) {
  return fmt::format(
      "{{{}, \"protocol\": {}, \"reason\": {},\n     \"begun\": {}, \"waited_ns\": {}, \"lanes\": [{}]}}",
      members(r, c.operation), json_quoted(c.protocol), json_quoted(c.reason), c.started, c.waited_ns,
      lines_of(c.lanes, "      ", lane));
}

std::string peer(const FlightRecord& r, const FlightPeer& p) {
  return fmt::format(
      "{{\"rank\": {}, \"pid\": {}, \"process\": {}, \"last_posted\": {}, \"last_finished\": {}, "
      "\"departed\": {}, \"operations\": [{}]}}",
      p.rank, p.pid, json_quoted(p.process), p.last_posted, p.last_finished, p.departed,
      lines_of(p.operations, "      ", [&](const auto& o) { return operation(r, o); }));
}

}  // namespace

std::string to_json(const FlightRecord& r) {
  std::string text = fmt::format(
      "{{\n  \"rondo_flight_record\": 1,\n  \"communicator\": \"{:x}\", \"rank\": {}, \"nranks\": {}, \"pid\": {}, "
      "\"host\": {},\n  \"trigger\": {}, \"monotonic_ns\": {}, \"realtime_ns\": {},\n",
      r.identity.communicator, r.identity.rank, r.identity.nranks, r.pid, json_quoted(r.host), json_quoted(r.trigger),
      r.time.monotonic_ns, r.time.realtime_ns);
  text += fmt::format("  \"status\": {}, \"message\": {},\n", json_quoted(status_text(r.status.code())),
                      json_quoted(r.status.message()));
  if (r.lost_rank)
    text += fmt::format("  \"lost_rank\": {}, \"lost_how\": {},\n", *r.lost_rank, json_quoted(r.lost_how));
  if (r.aborted_by) text += fmt::format("  \"aborted_by\": {},\n", *r.aborted_by);
  text += fmt::format("  \"last_posted\": {}, \"last_finished\": {}, \"current_known\": {},\n", r.last_posted,
                      r.last_finished, r.current_known);
  text +=
      fmt::format("  \"current\": [{}],\n", lines_of(r.current, "    ", [&](const auto& c) { return current(r, c); }));
  text += fmt::format("  \"peers\": [{}],\n", lines_of(r.peers, "    ", [&](const auto& p) { return peer(r, p); }));
  return text + fmt::format("  \"operations\": [{}]\n}}\n",
                            lines_of(r.operations, "    ", [&](const auto& o) { return operation(r, o); }));
}

std::string flight_path(const std::string& directory, const TraceIdentity& identity) {
  return fmt::format("{}/rank-{}-comm-{:x}{}", directory, identity.rank, identity.communicator, kFlightSuffix);
}

Status write_flight_record(const FlightRecord& record, const std::string& directory) {
  const std::string text = to_json(record);
  const std::string_view pieces[] = {text};
  return write_file(flight_path(directory, record.identity), pieces);
}

std::string process_state(uint64_t pid, uint64_t pid_namespace) {
  if (pid == 0 || pid_namespace == 0 || pid_namespace != this_pid_namespace()) return "unknown";
  const auto line = read_file(fmt::format("/proc/{}/stat", pid));
  if (!line) return errno == ENOENT || errno == ESRCH ? "gone" : "unknown";  // ESRCH: it ended after the open
  const char* after_name = std::strrchr(line->c_str(), ')');  // the name may contain anything, brackets too
  if (after_name == nullptr || std::strlen(after_name) < 3) return "unknown";
  switch (after_name[2]) {
    case 'T': case 't': return "stopped";
    case 'Z': case 'X': case 'x': return "gone";
    default: return "running";
  }
}

}  // namespace rondo
