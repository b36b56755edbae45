// The end of a symbolic execution: blocked lanes and their reasons, unreceived messages, results in the outputs.
#include <fmt/format.h>

#include <algorithm>

#include "schedule/check_machine_state.h"

namespace rondo::check {

// ", which has ended after sending 2 messages" if the writer can never send more; else empty.
std::string Machine::never_sent(const LaneState& l, const Connection& c, uint64_t sent) const {
  if (o_.ragged) return "";
  const uint32_t base = lane_base_[l.op][static_cast<size_t>(c.writer)];
  const size_t num = p_.ops[l.op].schedule->ranks[static_cast<size_t>(c.writer)].lanes.size();
  for (size_t k = 0; k < num; ++k)
    if (lanes_[base + k].loop < static_cast<uint32_t>(o_.loops)) return "";
  return fmt::format(", which has ended after sending {}", counted(sent, "message"));
}

std::string Machine::why_blocked(uint32_t lane, bool named, bool* for_want_of_room) const {
  const LaneState& l = lanes_[lane];
  const Instruction& i = l.code[l.pc];
  const OpTable& op = p_.ops[l.op];
  const std::string line = named ? op.words().line({l.rank, l.index, static_cast<int>(l.pc)}) : "";
  const std::string place = fmt::format("rank {} lane {} pc {}{} waits for ", l.rank, l.index, l.pc,
                                        line.empty() ? "" : fmt::format(" ({})", line));
  if (i.verb == Verb::kWait) return place + fmt::format("its lane {} to finish pc {}", i.src_first, i.dst_first);
  for (const uint32_t end : op.receives(l.rank, i)) {
    const Connection& c = p_.connections[p_.ends[end].connection];
    if (head_[end] == tail_[p_.ends[end].connection])
      return place + fmt::format("a message from rank {} (tag {})", c.writer, c.tag) + never_sent(l, c, head_[end]);
  }
  for (const uint32_t connection : op.sends(l.rank, i)) {
    const Connection& c = p_.connections[connection];
    for (uint32_t end = c.first_end; end < c.first_end + c.num_ends; ++end)
      if (tail_[connection] - head_[end] >= depth()) {
        *for_want_of_room = true;
        return place + fmt::format("space towards rank {} (tag {})", p_.ends[end].reader, c.tag);
      }
  }
  return place + "the operation before it";
}

void Machine::find_deadlock() {
  constexpr int kMaxNamed = 6;
  std::string text;
  int blocked = 0;
  bool for_want_of_room = false, unanswered = false;
  uint32_t first = kNone;
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].loop == static_cast<uint32_t>(o_.loops)) continue;
    if (first == kNone) first = lane;
    const bool named = ++blocked <= kMaxNamed;
    const std::string why = why_blocked(lane, named, &for_want_of_room);
    if (!named) continue;
    unanswered |= why.find("which has ended") != std::string::npos;
    text += (blocked > 1 ? "; " : "") + why;
  }
  if (first == kNone) return;
  if (blocked > kMaxNamed) text += fmt::format("; and {} more lanes", blocked - kMaxNamed);
  if (!o_.ragged)
    text += unanswered         ? ". Add the missing send, or take the recv out"
            : for_want_of_room ? ". Receive earlier, so that fewer messages are under way at a time"
                               : ". Each waits for another: send earlier, or add the missing send";
  fail(first, fmt::format("deadlock with FIFOs of {}: {}", o_.depth, text));
  out_.failure->for_want_of_room = for_want_of_room;
}

// A message without a receive. Its sender is known if lengths are equal and there is one loop.
Failure Machine::left_over(size_t end) const {
  const uint32_t connection = p_.ends[end].connection;
  const Connection& c = p_.connections[connection];
  const Rank reader = p_.ends[end].reader;
  const uint64_t number = tail_[connection] - head_[end];
  std::string text = fmt::format("never receives {} that rank {} sends to it with tag {}", counted(number, "message"),
                                 c.writer, c.tag);
  const Words words = p_.ops[0].words();
  const auto sender = words.sender(c.writer, reader, {reader, c.tag, c.group}, head_[end]);
  if (sender && p_.ops.size() == 1 && o_.loops == 1 && !o_.ragged)
    text += fmt::format(": {} sends {}", words.place(*sender), number == 1 ? "it" : "the first of them");
  return {text + fmt::format("; add the recv to rank {}, or take the send out", reader), reader};
}

void Machine::finish() {
  for (size_t e = 0; e < p_.ends.size(); ++e) {
    if (head_[e] == tail_[p_.ends[e].connection]) continue;
    out_.failure = left_over(e);
    return;
  }
  out_.sent_elems = *std::ranges::max_element(sent_elems_);
  out_.host_sent_elems = *std::ranges::max_element(host_sent_elems_);
  for (uint16_t op = 0; op < p_.ops.size() && !out_.failure; ++op)
    if (auto wrong = memory_.check_results(op, &out_.order_fingerprint)) {
      out_.failure = std::move(wrong);
      out_.failure->op = op;
    }
  if (!out_.failure && o_.races) check_exits();
  if (!out_.failure && heard_words_ != 0) check_barriers();
  out_.traffic_fingerprint = out_.order_fingerprint;
  for (size_t c = 0; c < traffic_.size(); ++c) {
    const Connection& k = p_.connections[c];
    uint64_t name = mix(static_cast<uint64_t>(k.writer) << 32 | static_cast<uint64_t>(k.group) << 16 | k.tag);
    for (uint32_t end = k.first_end; end < k.first_end + k.num_ends; ++end)
      name = mix(name + static_cast<uint64_t>(p_.ends[end].reader));
    out_.traffic_fingerprint += mix(name + traffic_[c]);
  }
}

// A rank's operation must end after all accesses of peers to its buffers.
void Machine::check_exits() {
  std::vector<uint32_t> end_clock(lanes_.size());
  for (uint16_t op = 0; op < p_.ops.size(); ++op) {
    if (!p_.ops[op].direct) continue;
    for (Rank r = 0; r < p_.nranks && !out_.failure; ++r) {
      std::ranges::fill(end_clock, 0);
      const uint32_t base = lane_base_[op][static_cast<size_t>(r)];
      const size_t num = p_.ops[op].schedule->ranks[static_cast<size_t>(r)].lanes.size();
      for (uint32_t k = 0; k < num; ++k)
        for (size_t c = 0; c < end_clock.size(); ++c)
          end_clock[c] = std::max(end_clock[c], memory_.races().clock(base + k)[c]);
      if (const auto late = memory_.uncovered(op, r, end_clock.data())) {
        const LaneState& l = lanes_[late->lane];
        out_.failure =
            Failure{fmt::format("accesses buffers of rank {0}, whose operation may have ended by then: rank {0} "
                                "must receive a credit that is sent after this",
                                r),
                    l.rank, l.index, static_cast<int>(late->pc), op};
      }
    }
  }
}

// A barrier's postcondition: no rank ends before every rank has begun.
void Machine::check_barriers() {
  std::vector<uint64_t> all(heard_words_);
  for (uint16_t op = 0; op < p_.ops.size(); ++op) {
    if (p_.ops[op].schedule->collective != Collective::kBarrier) continue;
    for (const RankSchedule& r : p_.ops[op].schedule->ranks) {
      std::ranges::fill(all, 0);
      all[static_cast<size_t>(r.rank) / 64] |= uint64_t{1} << r.rank % 64;
      const uint32_t base = lane_base_[op][static_cast<size_t>(r.rank)];
      for (uint32_t k = 0; k < r.lanes.size(); ++k) join(all, heard(base + k));
      for (Rank other = 0; other < p_.nranks; ++other)
        if ((all[static_cast<size_t>(other) / 64] >> other % 64 & 1) == 0) {
          out_.failure = Failure{fmt::format("may leave the barrier before rank {0} has come: no credit tells it, from "
                                             "rank {0} or by way of others",
                                             other),
                                 r.rank};
          out_.failure->op = op;
          return;
        }
    }
  }
}

}  // namespace rondo::check
