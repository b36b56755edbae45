#include "trace/timeline.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>

#include "trace/read_trace.h"

namespace rondo {
namespace {

constexpr int64_t kSameLineNs = 100'000;  // allowed distance of a pair from the host's line

struct HostLine {
  ClockPair first, last;
  bool holds = true;
};

int64_t realtime_at(const TraceFile& f, const ClockPair& p) { return p.realtime_ns + f.clock_offset_ns; }

std::map<std::string, HostLine> lines_of(const std::vector<TraceFile>& files) {
  std::map<std::string, HostLine> lines;
  for (const TraceFile& f : files) {
    auto [it, is_new] = lines.try_emplace(f.host, HostLine{f.start, f.end});
    if (f.start.ticks < it->second.first.ticks) it->second.first = f.start;
    if (f.end.ticks > it->second.last.ticks) it->second.last = f.end;
  }
  for (const TraceFile& f : files) {
    HostLine& line = lines.at(f.host);
    const TickScale scale(line.first, line.last);
    for (const ClockPair& p : {f.start, f.end})
      line.holds = line.holds && std::abs(scale.monotonic_ns(p.ticks) - p.monotonic_ns) <= kSameLineNs;
  }
  return lines;
}

// One end of a message.
struct End {
  uint32_t connection, number;
  bool sends;
  uint32_t file, record;
  int32_t reader;
};

// A connection has a sequence of messages for each channel.
using ConnectionNumbers = std::map<std::tuple<uint64_t, uint64_t, TracedConnection>, uint32_t>;

// Adds the message ends of one record.
void add_ends(const TraceFile& f, uint32_t file, uint32_t index, ConnectionNumbers& numbers, std::vector<End>& ends) {
  const TracedInstruction* i = f.instruction(f.records[index]);
  if (i == nullptr) return;
  const bool is_envelope = (i->flags & kFlagCredit) != 0 && is_matched(f.plans[f.records[index].plan].shape);
  if (is_envelope) return;  // its receiver does not record it
  auto add = [&](const TracedConnection& c, size_t port, bool sends) {
    const auto number = message_number(f, index, port);
    if (!number) return;
    const auto key = std::tuple(f.identity.communicator, uint64_t{f.records[index].channel}, c);
    const uint32_t connection = numbers.try_emplace(key, static_cast<uint32_t>(numbers.size())).first->second;
    ends.push_back({connection, *number, sends, file, index, sends ? c.reader : f.identity.rank});
  };
  for (size_t k = 0; k < i->recv.size(); ++k) add(i->recv[k], k, false);
  for (size_t k = 0; k < i->send.size(); ++k) add(i->send[k], i->recv.size() + k, true);
}

// Matches the ends of one message number of one connection. Sends come first.
void match_group(const std::vector<TraceFile>& files, std::span<const End> group, MessageFlows& out) {
  const auto sends =
      static_cast<size_t>(std::count_if(group.begin(), group.end(), [](const End& e) { return e.sends; }));
  if (sends != 1 || group.size() == 1) {  // several sends: the 32-bit numbers have wrapped within the trace
    out.unmatched_sends += sends;
    out.unmatched_recvs += group.size() - sends;
    return;
  }
  const End& send = group[0];
  for (const End& recv : group.subspan(1))
    out.flows.push_back({send.file, send.record, recv.file, recv.record, files[send.file].identity.rank, recv.reader});
}

}  // namespace

Timeline::Timeline(const std::vector<TraceFile>& files) {
  const auto lines = lines_of(files);
  std::vector<int64_t> first_realtime_ns;
  origin_realtime_ns_ = INT64_MAX;
  for (const TraceFile& f : files) {
    const HostLine& line = lines.at(f.host);
    const ClockPair &first = line.holds ? line.first : f.start, &last = line.holds ? line.last : f.end;
    placed_.push_back({TickScale(first, last), 0, line.holds});
    first_realtime_ns.push_back(realtime_at(f, first));
    origin_realtime_ns_ = std::min(origin_realtime_ns_, first_realtime_ns.back());
  }
  for (size_t i = 0; i < placed_.size(); ++i) placed_[i].first_ns = first_realtime_ns[i] - origin_realtime_ns_;
}

MessageFlows match_messages(const std::vector<TraceFile>& files) {
  ConnectionNumbers numbers;
  std::vector<End> ends;
  for (uint32_t f = 0; f < files.size(); ++f)
    for (uint32_t i = 0; i < files[f].records.size(); ++i)
      if (files[f].records[i].kind == static_cast<uint64_t>(RecordKind::kStep)) add_ends(files[f], f, i, numbers, ends);
  std::sort(ends.begin(), ends.end(), [](const End& a, const End& b) {
    return std::tuple(a.connection, a.number, !a.sends, a.file) < std::tuple(b.connection, b.number, !b.sends, b.file);
  });
  MessageFlows out;
  for (size_t a = 0; a < ends.size();) {
    size_t b = a + 1;
    while (b < ends.size() && ends[b].connection == ends[a].connection && ends[b].number == ends[a].number) ++b;
    match_group(files, std::span(ends).subspan(a, b - a), out);
    a = b;
  }
  return out;
}

}  // namespace rondo
