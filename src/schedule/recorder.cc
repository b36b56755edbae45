#include "rondo/recorder.h"

#include <fmt/format.h>

#include <algorithm>

#include "schedule/check_text.h"

namespace rondo {

namespace {

constexpr int kMost = 65535;  // chunks, lanes and port sets: 16 bits in an instruction

size_t hash_ports(const PortSet& set) {
  uint64_t h = set.size();
  for (const Port& p : set)
    h = (h ^ (static_cast<uint64_t>(p.peer) << 32 | static_cast<uint64_t>(p.tag) << 16 | p.group)) *
        0x9e3779b97f4a7c15u;
  return static_cast<size_t>(h ^ (h >> 32));
}

}  // namespace

std::string TextLine::text() const {
  if (file == nullptr) return "";
  const std::string_view path(file);
  return fmt::format("{}:{}", path.substr(path.find_last_of('/') + 1), line);
}

void Recorder::wrong(std::string_view what) {
  if (!error_.empty()) return;
  const std::string where = at_.text();
  error_ = fmt::format("{}{}rank {} of {}", where, where.empty() ? "" : ": ", s_.rank, s_.nranks);
  if (lane_ < s_.lanes.size())
    error_ += fmt::format(" lane {} pc {} ({})", lane_, s_.lanes[lane_].size(), verb_name(verb_));
  error_ += fmt::format(": {}", what);
}

void Recorder::append(const Instruction& i) {
  if (!error_.empty()) return;
  s_.lanes[lane_].push_back(i);
  if (lines_ == nullptr) return;
  lines_->resize(s_.lanes.size());
  (*lines_)[lane_].push_back(at_);
}

void Recorder::chunks(int in_chunks, int out_chunks, int scratch_chunks, TextLine at) {
  at_ = at;
  if (in_chunks < 1 || in_chunks > kMost || out_chunks < 1 || out_chunks > kMost)
    return wrong(
        fmt::format("cuts in into {} chunks and out into {}: 1 to {} are possible", in_chunks, out_chunks, kMost));
  if (scratch_chunks != 0 && scratch_chunks != in_chunks && scratch_chunks != out_chunks)
    return wrong(fmt::format("cuts scratch into {} chunks: it must be none, or as many as in ({}) or out ({})",
                             scratch_chunks, in_chunks, out_chunks));
  s_.in_chunks = static_cast<uint16_t>(in_chunks);
  s_.out_chunks = static_cast<uint16_t>(out_chunks);
  s_.scratch_chunks = static_cast<uint16_t>(scratch_chunks);
}

void Recorder::lane(int index, TextLine at) {
  at_ = at;
  if (index < 0 || index > kMost) return wrong(fmt::format("has no lane {}", index));
  if (!error_.empty()) return;
  lane_ = static_cast<size_t>(index);
  if (s_.lanes.size() <= lane_) s_.lanes.resize(lane_ + 1);
}

void Recorder::wait(int lane, int pc, TextLine at) {
  verb_ = Verb::kWait;
  at_ = at;
  if (lane_ >= s_.lanes.size()) return wrong("a verb precedes the first lane(): call lane(0) first");
  if (lane < 0 || lane > kMost || pc < 0 || pc > kMost) return wrong(fmt::format("no lane {} pc {}", lane, pc));
  Instruction i;
  i.verb = Verb::kWait;
  i.src_first = static_cast<uint16_t>(lane);
  i.dst_first = static_cast<uint16_t>(pc);
  i.num_chunks = 0;
  append(i);
}

void Recorder::grow_index() {
  index_.assign(std::max<size_t>(16, index_.size() * 2), 0);
  for (size_t i = 1; i < s_.port_sets.size(); ++i) {
    size_t slot = hash_ports(s_.port_sets[i]) & (index_.size() - 1);
    while (index_[slot] != 0) slot = (slot + 1) & (index_.size() - 1);
    index_[slot] = static_cast<uint16_t>(i);
  }
}

uint16_t Recorder::intern(const PortSet* set, bool sends) {
  if (set == nullptr) return 0;
  if (2 * s_.port_sets.size() >= index_.size()) grow_index();
  size_t slot = hash_ports(*set) & (index_.size() - 1);
  for (; index_[slot] != 0; slot = (slot + 1) & (index_.size() - 1))
    if (s_.port_sets[index_[slot]] == *set) return index_[slot];
  const std::string_view does = sends ? "sends to" : "receives from";
  if (set->empty()) return wrong(fmt::format("{} no rank: its set of ports is empty", does)), 0;
  if (s_.port_sets.size() >= kMost) return wrong("has too many sets of ports"), 0;
  for (const Port& p : *set) {
    if (p.peer == s_.rank && !is_message_tag(p.tag))
      return wrong(fmt::format("{} rank {}, which is itself: name another rank, or move the chunk within the rank with "
                               "copy()",
                               does, p.peer)),
             0;
    if (p.peer < 0 || p.peer >= s_.nranks)
      return wrong(fmt::format("{} rank {}, which does not exist: the ranks are 0 to {}; is a \"% nranks\" missing?",
                               does, p.peer, s_.nranks - 1)),
             0;
  }
  index_[slot] = static_cast<uint16_t>(s_.port_sets.size());
  s_.port_sets.push_back(*set);
  return index_[slot];
}

uint16_t Recorder::operand(const Chunk& c, int num) {
  const int all = s_.chunks(c.buffer);
  const std::string_view name = check::buffer_name(c.buffer);
  if (c.num != num) {
    wrong(fmt::format("moves {} chunk{} to {}: source and destination need the same number", num, num == 1 ? "" : "s",
                      c.num));
  } else if (all == 0) {
    wrong(fmt::format("names {}[{}], and there is no scratch: give chunks() a third argument", name, c.first));
  } else if (c.first < 0 || c.first >= all) {
    wrong(
        fmt::format("names {0}[{1}], which does not exist: {0} has {2} chunk{3} ({0}[0]{4}); correct the index, or the "
                    "numbers given to chunks()",
                    name, c.first, all, all == 1 ? "" : "s", all == 1 ? "" : fmt::format(" to {}[{}]", name, all - 1)));
  } else if (num < 1 || num > all) {
    wrong(fmt::format("names {} chunks of {}, which has {}", num, name, all));
  }
  return static_cast<uint16_t>(c.first);
}

void Recorder::put(TextLine at, Verb verb, const Chunk* src, const PortSet* from, const Chunk* dst, const PortSet* to,
                   Sum sum, Order order, const Chunk* shape) {
  verb_ = verb;
  at_ = at;
  if (lane_ >= s_.lanes.size()) return wrong("a verb precedes the first lane(): call lane(0) first");
  Instruction i;
  i.verb = verb;
  i.flags = static_cast<uint8_t>(next_flags_ | (sum == Sum::kFinal ? kFlagFinal : 0));
  next_flags_ = 0;
  i.recv_set = intern(from, false);
  i.send_set = intern(to, true);
  const Chunk* s = src != nullptr ? src : shape;
  const int num = s != nullptr ? s->num : dst != nullptr ? dst->num : 0;
  i.num_chunks = static_cast<uint16_t>(num);
  if (s != nullptr) {
    i.src_first = operand(*s, num);
    i.buffers |= static_cast<uint8_t>(s->buffer);
  }
  if (dst != nullptr) {
    if (dst->buffer == Buffer::kIn) wrong("writes into in, which is the caller's: write into out or scratch");
    i.dst_first = operand(*dst, num);
    i.buffers |= static_cast<uint8_t>(static_cast<uint8_t>(dst->buffer) << 4);
  }
  const size_t received = from != nullptr ? from->size() : 0;
  if (order.position < 0 || order.position > static_cast<int>(received))
    wrong(fmt::format("places its own operand after {} received ones, but receives {}", order.position, received));
  i.src_position = static_cast<uint16_t>(order.position);
  append(i);
}

}  // namespace rondo
