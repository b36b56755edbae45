#include "schedule/recorder.h"

#include <algorithm>

namespace rondo {

uint16_t Recorder::intern(const PortSet* set) {
  if (set == nullptr) return 0;
  RONDO_CHECK(!set->empty());
  for (const Port& p : *set) RONDO_CHECK(p.peer >= 0 && p.peer < s_.nranks && p.peer != s_.rank);
  auto it = std::find(s_.port_sets.begin() + 1, s_.port_sets.end(), *set);
  if (it == s_.port_sets.end()) {
    RONDO_CHECK(s_.port_sets.size() < 65535);
    it = s_.port_sets.insert(s_.port_sets.end(), *set);
  }
  return static_cast<uint16_t>(it - s_.port_sets.begin());
}

void Recorder::put(Verb verb, const Chunk* src, const PortSet* from, const Chunk* dst, const PortSet* to, Sum sum,
                   Order order, const Chunk* shape) {
  RONDO_CHECK(lane_ < s_.lanes.size());
  Instruction i;
  i.verb = verb;
  i.flags = static_cast<uint8_t>(next_flags_ | (sum == Sum::kFinal ? kFlagFinal : 0));
  next_flags_ = 0;
  i.recv_set = intern(from);
  i.send_set = intern(to);
  const Chunk* s = src != nullptr ? src : shape;
  const int num = s != nullptr ? s->num : dst != nullptr ? dst->num : 0;
  i.num_chunks = static_cast<uint16_t>(num);
  auto operand = [&](const Chunk* c) {
    RONDO_CHECK(c->num == num && num >= 1 && num <= s_.chunks(c->buffer));
    RONDO_CHECK(c->first >= 0 && c->first < s_.chunks(c->buffer));
    return static_cast<uint16_t>(c->first);
  };
  if (s != nullptr) {
    i.src_first = operand(s);
    i.buffers |= static_cast<uint8_t>(s->buffer);
  }
  if (dst != nullptr) {
    RONDO_CHECK(dst->buffer != Buffer::kIn);
    i.dst_first = operand(dst);
    i.buffers |= static_cast<uint8_t>(static_cast<uint8_t>(dst->buffer) << 4);
  }
  RONDO_CHECK(order.position >= 0 && order.position <= static_cast<int>(from != nullptr ? from->size() : 0));
  i.src_position = static_cast<uint16_t>(order.position);
  s_.lanes[lane_].push_back(i);
}

}  // namespace rondo
