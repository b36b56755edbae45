#include "schedule/check_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "schedule/check_collective.h"

namespace rondo::check {
namespace {

constexpr Rank kManyReaders = 0xffff;

uint64_t connection_name(Rank writer, Rank reader, const Port& port) {
  return static_cast<uint64_t>(writer) << 48 |
         static_cast<uint64_t>(port.group == kUnicast ? reader : kManyReaders) << 32 |
         static_cast<uint64_t>(port.group) << 16 | port.tag;
}

std::string connection_text(const Connection& c) {
  return c.group == kUnicast ? fmt::format("the connection from rank {}, tag {}", c.writer, c.tag)
                             : fmt::format("the multicast of rank {}, group {}, tag {}", c.writer, c.group, c.tag);
}

// The holder of a buffer in a rooted collective: "only the root, rank 0, has an input".
std::string holder_text(const Schedule& s, Buffer b) {
  const CollectiveTraits& t = collective_traits(s.collective);
  const std::string_view what = b == Buffer::kIn ? "an input" : "an output";
  const Holders h = b == Buffer::kIn ? t.in_holders : t.out_holders;
  return h == Holders::kRoot ? fmt::format("only the root, rank {}, has {} in a {}", s.root, what, t.name)
                             : fmt::format("no rank has {} in a {}", what, t.name);
}

// Checks that an instruction of rank r accesses only existing buffers: its own and, if direct, its peers'.
std::optional<Failure> check_holders(const Schedule& s, const RankSchedule& r, const Instruction& i) {
  auto missing = [&](const char* act, Rank rank, Buffer b, uint16_t chunk) -> std::optional<Failure> {
    if (Conditions::holds(s.collective, s.root, rank, b)) return std::nullopt;
    const std::string whose = rank == r.rank ? "" : fmt::format(" of rank {}", rank);
    return Failure{fmt::format("{} {}{}, but {}", act, chunk_text(b, chunk), whose, holder_text(s, b))};
  };
  if (i.has(kVerbSrc))
    if (auto f = missing("reads", r.rank, i.src_buffer(), i.src_first)) return f;
  if (i.has(kVerbDst))
    if (auto f = missing("writes", r.rank, i.dst_buffer(), i.dst_first)) return f;
  if (!i.is(kFlagDirect)) return std::nullopt;
  for (const PortSet* ports : {&r.recv_ports(i), &r.send_ports(i)})
    for (const Port& p : *ports)
      if (p.peer < 0 || p.peer >= s.nranks || p.peer == r.rank)
        return Failure{fmt::format("accesses buffers of rank {}, which is not a peer", p.peer)};
  for (const Port& p : r.recv_ports(i))
    if (auto f = missing("reads", p.peer, i.src_buffer(), i.src_first)) return f;
  for (const Port& p : r.send_ports(i))
    if (auto f = missing("writes", p.peer, Buffer::kOut, i.dst_first)) return f;
  return std::nullopt;
}

// The other ranks of a rank's host, ascending.
std::vector<Rank> local_peers(const Schedule& s, Rank rank) {
  std::vector<Rank> all;
  for (Rank r = 0; r < s.nranks; ++r)
    if (r != rank && (s.hosts.empty() || s.hosts[static_cast<size_t>(r)] == s.hosts[static_cast<size_t>(rank)]))
      all.push_back(r);
  return all;
}

// The messages from one rank to another, for a receive that waits for a message that is never sent.
std::string what_it_sends(const Schedule& s, Rank writer, Rank reader) {
  const RankSchedule& r = s.ranks[static_cast<size_t>(writer)];
  std::string text;
  std::vector<Port> seen;
  for (const Lane& lane : r.lanes)
    for (const Instruction& i : lane)
      for (const Port& p : r.send_ports(i)) {
        if (p.peer != reader || i.is(kFlagDirect) || std::ranges::find(seen, p) != seen.end()) continue;
        seen.push_back(p);
        text += fmt::format("{}group {}, tag {}", text.empty() ? "" : "; ", p.group, p.tag);
      }
  return text.empty() ? fmt::format(": it sends nothing to rank {}; add the send to rank {}, or do not wait for it",
                                    reader, writer)
                      : fmt::format("; to rank {} it sends {}: name the same on both sides", reader, text);
}

bool known_verb(Verb v) { return verb_name(v) != "?"; }

}  // namespace

std::string ports_text(const PortSet& ports) {
  std::string text = "{";
  for (const Port& p : ports) text += fmt::format("{}{}", text.size() > 1 ? " " : "", p.peer);
  return text + "}";
}

Instruction unrolled(const RankSchedule& r, const Instruction& i, uint32_t chunk) {
  if (i.num_chunks <= 1) return i;
  Instruction one = i;
  one.num_chunks = 1;
  auto shifted = [&](Buffer b, uint16_t first) {
    return static_cast<uint16_t>((first + chunk) % std::max<uint32_t>(1, r.chunks(b)));
  };
  one.src_first = shifted(i.src_buffer(), i.src_first);
  one.dst_first = shifted(i.dst_buffer(), i.dst_first);
  return one;
}

std::optional<Failure> Program::build(std::span<const Operation> operations) {
  nranks = operations[0].schedule->nranks;
  ops.resize(operations.size());
  for (uint32_t op = 0; op < ops.size(); ++op) {
    ops[op].schedule = operations[op].schedule;
    ops[op].line_of = operations[op].line_of;
    auto f = check_shape(*ops[op].schedule, nranks);
    if (!f) f = scan(op);
    if (f) {
      f->op = static_cast<int>(op);
      return f;
    }
  }
  return check_ends();
}

// All ranks cut `in` and `out` into the same numbers of chunks, whether they hold them or not. A buffer of one part is
// cut into q chunks, a buffer of one part per rank into N q chunks, part 0's first, with the same q for both. (For q >
// 1 the lengths of different parts' chunks rarely match, because extent() cuts the whole; the proof of lengths reports
// it.) Scratch chunk c has the length of chunk c of the buffer with the same chunk count, `in` first.
std::optional<Failure> check_shape(const Schedule& s, int nranks) {
  if (is_point_to_point(s.collective)) return Failure{"send and recv are not collectives of all ranks"};
  if (s.nranks != nranks || s.nranks < 1 || s.ranks.size() != static_cast<size_t>(s.nranks))
    return Failure{"the schedule does not have one entry for each rank"};
  if (!s.hosts.empty() && s.hosts.size() != s.ranks.size())
    return Failure{"the schedule does not name a host for each rank"};
  if (s.root < 0 || s.root >= nranks) return Failure{fmt::format("the root, rank {}, does not exist", s.root)};
  for (Rank r = 0; r < nranks; ++r) {
    const RankSchedule& me = s.ranks[static_cast<size_t>(r)];
    const RankSchedule& first = s.ranks[0];
    if (me.rank != r || me.nranks != nranks) return Failure{"has the schedule of another rank", r};
    if (me.in_chunks != first.in_chunks || me.out_chunks != first.out_chunks)
      return Failure{fmt::format("calls chunks({}, {}) and rank 0 calls chunks({}, {}): all ranks must use the same "
                                 "numbers",
                                 me.in_chunks, me.out_chunks, first.in_chunks, first.out_chunks),
                     r};
    const CollectiveTraits& t = collective_traits(s.collective);
    const uint64_t in_parts = parts(t.in_parts, nranks), out_parts = parts(t.out_parts, nranks);
    const uint64_t per_part = me.in_chunks / in_parts;
    if (per_part == 0 || me.in_chunks != per_part * in_parts || me.out_chunks != per_part * out_parts)
      return Failure{
          fmt::format("calls chunks({0}, {1}): {0} chunks in and {1} out do not fit the collective; {2} ranks "
                      "of {3} need chunks({4}, {5}), or a multiple of both",
                      me.in_chunks, me.out_chunks, nranks, t.name, in_parts, out_parts),
          r};
    if (me.scratch_chunks != 0 && me.scratch_chunks != me.in_chunks && me.scratch_chunks != me.out_chunks)
      return Failure{fmt::format("cuts scratch wrongly: {} chunks of scratch are neither as many as in nor as out",
                                 me.scratch_chunks),
                     r};
    if (me.port_sets.empty() || !me.port_sets[0].empty()) return Failure{"has ports in set 0, which must be empty", r};
  }
  return std::nullopt;
}

std::optional<Failure> Program::check_instruction(const Schedule& s, const RankSchedule& r,
                                                  const Instruction& i) const {
  auto bad = [](const char* what) { return Failure{what}; };
  if (!known_verb(i.verb) || i.reserved != 0 || (i.flags & ~(kFlagFinal | kFlagDirect | kFlagCredit)) != 0)
    return bad("is not a valid instruction");
  if (i.verb == Verb::kWait) {
    const bool lane_exists = i.src_first < r.lanes.size();
    if (!lane_exists || i.dst_first >= r.lanes[i.src_first].size() || i.flags != 0)
      return Failure{"waits for an instruction that does not exist: " +
                     (lane_exists ? fmt::format("lane {} has {}, counted from 0", i.src_first,
                                                counted(r.lanes[i.src_first].size(), "instruction"))
                                  : fmt::format("the rank has {}, counted from 0", counted(r.lanes.size(), "lane")))};
    return std::nullopt;
  }
  if (i.recv_set >= r.port_sets.size() || i.send_set >= r.port_sets.size()) return bad("names no port set");
  if (i.has(kVerbRecv) == r.recv_ports(i).empty() || i.has(kVerbSend) == r.send_ports(i).empty())
    return bad("has ports that do not fit its verb");
  if (i.src_position > r.recv_ports(i).size()) return bad("places its own operand after the last one");
  if (i.is(kFlagCredit)) {
    const bool plain = (i.verb == Verb::kSend || i.verb == Verb::kRecv) && i.flags == kFlagCredit;
    return plain && i.num_chunks == 0 ? std::nullopt : std::optional(bad("is a credit that carries chunks"));
  }
  if (s.collective == Collective::kBarrier) return bad("moves chunks in a barrier, which has none: only credits");
  const bool shaped_by_src = i.has(kVerbSrc) || i.verb == Verb::kRecvSend || (i.is(kFlagDirect) && i.has(kVerbRecv));
  if (i.num_chunks == 0) return bad("moves no chunk");
  auto fits = [&](Buffer b, uint16_t first) {
    return b <= Buffer::kScratch && first < r.chunks(b) && i.num_chunks <= r.chunks(b);
  };
  if (shaped_by_src && !fits(i.src_buffer(), i.src_first)) return bad("reads a chunk that does not exist");
  if (i.has(kVerbDst) && (!fits(i.dst_buffer(), i.dst_first) || i.dst_buffer() == Buffer::kIn))
    return bad("writes a chunk that does not exist or must not be written");
  if (i.is(kFlagDirect)) {
    const bool pulls = !i.has(kVerbRecv) || i.src_buffer() == Buffer::kIn ||
                       (!i.has(kVerbSrc) && i.src_buffer() == Buffer::kOut);
    const bool pushes = !i.has(kVerbSend) || (i.has(kVerbDst) && i.dst_buffer() == Buffer::kOut);
    if (!pulls || !pushes || !(i.has(kVerbRecv) || i.has(kVerbSend)))
      return bad("accesses peers' buffers without naming the chunk");
  }
  return check_holders(s, r, i);
}

std::optional<Failure> Program::scan(uint32_t op) {
  OpTable& table = ops[op];
  writing_lane_.assign(connections.size(), kNone);
  reading_lane_.assign(ends.size(), kNone);
  // Senders first: the writer makes a connection, and its readers must then find it.
  for (const bool sending : {true, false}) {
    for (const RankSchedule& r : table.schedule->ranks) {
      if (sending) {
        table.set_base.push_back(static_cast<uint32_t>(table.sets.size()));
        table.sets.resize(table.sets.size() + r.port_sets.size());
      }
      std::vector<uint32_t> used_by(r.port_sets.size(), kNone);
      for (uint32_t lane = 0; lane < r.lanes.size(); ++lane) {
        for (uint32_t pc = 0; pc < r.lanes[lane].size(); ++pc) {
          const Instruction& i = r.lanes[lane][pc];
          auto located = [&](Failure f) {
            f.rank = r.rank, f.lane = static_cast<int>(lane), f.pc = static_cast<int>(pc);
            return f;
          };
          if (sending)
            if (auto f = check_instruction(*table.schedule, r, i)) return located(*f);
          table.direct |= i.is(kFlagDirect);
          const uint16_t set = sending ? i.send_set : i.recv_set;
          if (i.verb == Verb::kWait || i.is(kFlagDirect) || set == 0) continue;
          if (used_by[set] == lane) continue;
          const bool fresh = used_by[set] == kNone;
          used_by[set] = lane;
          if (!fresh)
            return located(
                {fmt::format("uses a connection {} ports {} that another lane uses: give the messages of each "
                             "lane a tag of their own",
                             sending ? "to" : "from", ports_text(r.port_sets[set]))});
          if (auto f = sending ? use_send_set(op, r, set, lane) : use_recv_set(op, r, set, lane)) return located(*f);
        }
      }
    }
  }
  return std::nullopt;
}

std::optional<Failure> Program::claim(uint32_t id, const Connection& c, uint32_t* owner, uint32_t lane,
                                      std::string_view done) {
  if (mark_.size() <= id) mark_.resize(std::max(ends.size(), connections.size()) + 1, 0);
  if (std::exchange(mark_[id], stamp_) == stamp_) return Failure{"names a connection twice in one set"};
  if (*owner != kNone && *owner != lane)
    return Failure{fmt::format("{} is {} by two lanes: give the messages of each lane a tag of their own",
                               connection_text(c), done)};
  *owner = lane;
  return std::nullopt;
}

std::optional<Failure> Program::use_send_set(uint32_t op, const RankSchedule& r, uint16_t set, uint32_t lane) {
  OpTable& table = ops[op];
  SetTable& entry = table.set(r.rank, set);
  entry.send_begin = static_cast<uint32_t>(table.send_connections.size());
  const PortSet& ports = r.port_sets[set];
  ++stamp_;
  for (const Port& port : ports) {
    if (port.peer < 0 || port.peer >= nranks || port.peer == r.rank)
      return Failure{"sends to a rank that is not a peer"};
    const uint64_t name = connection_name(r.rank, port.peer, port);
    std::vector<Rank> readers{port.peer};
    if (port.group != kUnicast) {
      if (&port !=
          &*std::ranges::find_if(ports, [&](const Port& p) { return p.group == port.group && p.tag == port.tag; }))
        continue;  // one message for the whole group: its first port represents it
      readers.clear();
      for (const Port& p : ports)
        if (p.group == port.group && p.tag == port.tag) readers.push_back(p.peer);
      std::ranges::sort(readers);
      const bool twice = std::adjacent_find(readers.begin(), readers.end()) != readers.end();
      if (twice || (port.group == kGroupAll && readers.size() != static_cast<size_t>(nranks) - 1))
        return Failure{fmt::format("sends to group {} but to the readers {} only", port.group, ports_text(ports))};
      if (port.group == kGroupHost && readers != local_peers(*table.schedule, r.rank))
        return Failure{fmt::format("sends to the other ranks of its host but to the readers {}", ports_text(ports))};
    }
    auto [it, fresh] = by_name_.try_emplace(name, static_cast<uint32_t>(connections.size()));
    const uint32_t id = it->second;
    if (fresh) {
      connections.push_back(
          {r.rank, port.group, port.tag, static_cast<uint32_t>(ends.size()), static_cast<uint32_t>(readers.size())});
      for (Rank reader : readers) ends.push_back({id, reader});
      writing_lane_.push_back(kNone);
      reading_lane_.resize(ends.size(), kNone);
      written_in_.push_back(0);
      read_in_.resize(ends.size(), 0);
    } else {
      const Connection& c = connections[id];
      bool same = c.num_ends == readers.size();
      for (uint32_t k = 0; same && k < c.num_ends; ++k) same = ends[c.first_end + k].reader == readers[k];
      if (!same) return Failure{connection_text(c) + " is meant for different readers elsewhere"};
    }
    if (auto f = claim(id, connections[id], &writing_lane_[id], lane, "written")) return f;
    written_in_[id] |= static_cast<uint8_t>(1u << op);
    table.send_connections.push_back(id);
  }
  entry.send_num = static_cast<uint32_t>(table.send_connections.size()) - entry.send_begin;
  return std::nullopt;
}

std::optional<Failure> Program::use_recv_set(uint32_t op, const RankSchedule& r, uint16_t set, uint32_t lane) {
  OpTable& table = ops[op];
  SetTable& entry = table.set(r.rank, set);
  entry.recv_begin = static_cast<uint32_t>(table.recv_ends.size());
  ++stamp_;
  for (const Port& port : r.port_sets[set]) {
    if (port.peer < 0 || port.peer >= nranks || port.peer == r.rank)
      return Failure{"receives from a rank that is not a peer"};
    const auto it = by_name_.find(connection_name(port.peer, r.rank, port));
    if (it == by_name_.end() || (written_in_[it->second] >> op & 1) == 0)
      return Failure{fmt::format("receives from rank {}, group {}, tag {}, which never sends such a message{}",
                                 port.peer, port.group, port.tag, what_it_sends(*table.schedule, port.peer, r.rank))};
    const Connection& c = connections[it->second];
    const auto last = ends.begin() + c.first_end + c.num_ends;
    const auto found = std::lower_bound(ends.begin() + c.first_end, last, r.rank,
                                        [](const End& e, Rank rank) { return e.reader < rank; });
    if (found == last || found->reader != r.rank) return Failure{connection_text(c) + " is not meant for this reader"};
    const uint32_t end = static_cast<uint32_t>(found - ends.begin());
    if (auto f = claim(end, c, &reading_lane_[end], lane, "read")) return f;
    read_in_[end] |= static_cast<uint8_t>(1u << op);
    table.recv_ends.push_back(end);
  }
  entry.recv_num = static_cast<uint32_t>(table.recv_ends.size()) - entry.recv_begin;
  return std::nullopt;
}

std::optional<Failure> Program::check_ends() const {
  for (size_t e = 0; e < ends.size(); ++e) {
    const Connection& c = connections[ends[e].connection];
    const unsigned unread = written_in_[ends[e].connection] & ~read_in_[e];
    if (unread == 0) continue;
    const int op = (unread & 1) != 0 ? 0 : 1;
    const Words words = ops[static_cast<size_t>(op)].words();
    const auto sender = words.sender(c.writer, ends[e].reader, {ends[e].reader, c.tag, c.group}, 0);
    Failure f{
        fmt::format(
            "never receives the message that rank {} sends to it{}; add the recv to rank {}, or take the send out",
            c.writer, sender ? ": " + words.place(*sender) : "", ends[e].reader),
        ends[e].reader};
    f.op = op;
    return f;
  }
  return std::nullopt;
}

}  // namespace rondo::check
