#include "schedule/check_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "schedule/check_program.h"
#include "schedule/checker.h"

namespace rondo {

std::string instruction_text(const RankSchedule& schedule, const Instruction& i) {
  if (i.verb == Verb::kWait) return fmt::format("wait for lane {} pc {}", i.src_first, i.dst_first);
  auto chunks = [&](Buffer b, uint16_t first) {
    return i.num_chunks == 1 ? check::chunk_text(b, first)
                             : fmt::format("{}[{}+{}]", check::buffer_name(b), first, i.num_chunks);
  };
  std::string text(verb_name(i.verb));
  auto add = [&text](std::string part) { text += (text.find(' ') == std::string::npos ? " " : ", ") + part; };
  if (i.is(kFlagCredit)) text += "_credit";
  if (i.is(kFlagDirect)) text += "_direct";
  if (i.has(kVerbSrc) && !i.is(kFlagCredit)) add(chunks(i.src_buffer(), i.src_first));
  if (i.recv_set != 0 && i.recv_set < schedule.port_sets.size())
    add("from " + check::ports_text(schedule.recv_ports(i)));
  if (i.has(kVerbDst)) add("into " + chunks(i.dst_buffer(), i.dst_first));
  if (i.send_set != 0 && i.send_set < schedule.port_sets.size()) add("to " + check::ports_text(schedule.send_ports(i)));
  if (i.has(kVerbSrc) && i.has(kVerbRecv)) add(fmt::format("own after {}", i.src_position));
  if (i.is(kFlagFinal)) add("final");
  return text;
}

namespace check {
namespace {

/// The index of the unrolled instruction `one` within the chunk range of `whole`.
uint32_t place_in_range(const RankSchedule& r, const Instruction& whole, const Instruction& one) {
  const bool dst = whole.has(kVerbDst);
  const uint32_t all = std::max<uint32_t>(1, r.chunks(dst ? whole.dst_buffer() : whole.src_buffer()));
  const uint32_t first = dst ? whole.dst_first : whole.src_first, now = dst ? one.dst_first : one.src_first;
  return (now + all - first % all) % all;
}

bool covers(const RankSchedule& r, Buffer b, const Instruction& i, uint32_t chunk) {
  const uint32_t all = r.chunks(b);
  return i.dst_first < all && chunk < all && (chunk + all - i.dst_first) % all < i.num_chunks;
}

uint64_t num_messages(const Instruction& i) { return i.is(kFlagCredit) ? 1 : i.num_chunks; }

}  // namespace

std::string_view buffer_name(Buffer b) {
  constexpr std::string_view kNames[] = {"in", "out", "scratch", "?"};
  return kNames[std::min(3, static_cast<int>(b))];
}

std::string chunk_text(Buffer b, uint32_t chunk) { return fmt::format("{}[{}]", buffer_name(b), chunk); }

std::string ranks_text(uint64_t mask) {
  std::string text = "{";
  for (int r = 0; r < 64; ++r)
    if (mask >> r & 1) text += fmt::format("{}{}", text.size() > 1 ? " " : "", r);
  return text + "}";
}

std::string counted(uint64_t number, const char* what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

const Instruction& Words::instruction(const Place& at) const {
  return rank(at.rank).lanes[static_cast<size_t>(at.lane)][static_cast<size_t>(at.pc)];
}

std::string Words::place(const Place& at) const {
  const std::string where = line(at);
  return fmt::format("rank {} lane {} pc {} ({}{}{})", at.rank, at.lane, at.pc, where, where.empty() ? "" : ": ",
                     instruction_text(rank(at.rank), instruction(at)));
}

std::vector<Place> Words::writers(Rank owner, Buffer buffer, uint32_t chunk) const {
  std::vector<Place> all;
  for (const RankSchedule& r : s_.ranks)
    for (size_t lane = 0; lane < r.lanes.size(); ++lane)
      for (size_t pc = 0; pc < r.lanes[lane].size(); ++pc) {
        const Instruction& i = r.lanes[lane][pc];
        const bool own = r.rank == owner && i.has(kVerbDst) && !i.is(kFlagCredit) && i.dst_buffer() == buffer;
        const bool push = i.is(kFlagDirect) && i.has(kVerbSend) && buffer == Buffer::kOut &&
                          std::ranges::any_of(r.send_ports(i), [&](const Port& p) { return p.peer == owner; });
        if ((own || push) && covers(rank(owner), buffer, i, chunk))
          all.push_back({r.rank, static_cast<int>(lane), static_cast<int>(pc)});
      }
  return all;
}

std::optional<Place> Words::sender(Rank writer, Rank reader, const Port& port, uint64_t number) const {
  const RankSchedule& r = rank(writer);
  for (size_t lane = 0; lane < r.lanes.size(); ++lane)
    for (size_t pc = 0; pc < r.lanes[lane].size(); ++pc) {
      const Instruction& i = r.lanes[lane][pc];
      if (!i.has(kVerbSend) || i.is(kFlagDirect)) continue;
      const bool sends = std::ranges::any_of(r.send_ports(i), [&](const Port& p) {
        return p.peer == reader && p.tag == port.tag && p.group == port.group;
      });
      if (!sends) continue;
      if (number < num_messages(i)) return Place{writer, static_cast<int>(lane), static_cast<int>(pc)};
      number -= num_messages(i);
    }
  return std::nullopt;
}

std::optional<Place> Words::sender_to(const Place& at, const Instruction& one, const Port& from) const {
  const RankSchedule& r = rank(at.rank);
  const Lane& lane = r.lanes[static_cast<size_t>(at.lane)];
  uint64_t number = one.is(kFlagCredit) ? 0 : place_in_range(r, instruction(at), one);
  for (size_t pc = 0; pc < static_cast<size_t>(at.pc); ++pc)
    if (lane[pc].has(kVerbRecv) && !lane[pc].is(kFlagDirect))
      for (const Port& p : r.recv_ports(lane[pc]))
        if (p == from) number += num_messages(lane[pc]);
  return sender(from.peer, at.rank, from, number);
}

std::string Words::sent(const Place& at, const Instruction& one, const Port& from) const {
  const std::optional<Place> place_of = sender_to(at, one, from);
  if (!place_of) return fmt::format("the message from rank {}", from.peer);
  return fmt::format("data from {}", place(*place_of));
}

std::string Words::origin(Rank owner, uint32_t chunk) const {
  const std::vector<Place> all = writers(owner, Buffer::kOut, chunk);
  if (all.empty()) return "";
  const Place& last = all.back();
  const RankSchedule& r = rank(last.rank);
  std::string text = fmt::format("; {} writes it", place(last));
  const Instruction& i = instruction(last);
  if (!i.has(kVerbRecv) || i.is(kFlagDirect) || r.recv_ports(i).size() != 1) return text;
  const uint32_t all_chunks = r.chunks(i.dst_buffer());
  const Instruction one = unrolled(r, i, (chunk + all_chunks - i.dst_first) % all_chunks);
  return text + ", with " + sent(last, one, r.recv_ports(i)[0]);
}

}  // namespace check
}  // namespace rondo
