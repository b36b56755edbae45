#include "schedule/recorder.h"

#include <algorithm>

namespace rondo {

namespace {

size_t hash_ports(const PortSet& set) {
  uint64_t h = set.size();
  for (const Port& p : set)
    h = (h ^ (static_cast<uint64_t>(p.peer) << 32 | static_cast<uint64_t>(p.tag) << 16 | p.group)) *
        0x9e3779b97f4a7c15u;
  return static_cast<size_t>(h ^ (h >> 32));
}

}  // namespace

void Recorder::grow_index() {
  index_.assign(std::max<size_t>(16, index_.size() * 2), 0);
  for (size_t i = 1; i < s_.port_sets.size(); ++i) {
    size_t slot = hash_ports(s_.port_sets[i]) & (index_.size() - 1);
    while (index_[slot] != 0) slot = (slot + 1) & (index_.size() - 1);
    index_[slot] = static_cast<uint16_t>(i);
  }
}

uint16_t Recorder::intern(const PortSet* set) {
  if (set == nullptr) return 0;
  if (2 * s_.port_sets.size() >= index_.size()) grow_index();
  size_t slot = hash_ports(*set) & (index_.size() - 1);
  for (; index_[slot] != 0; slot = (slot + 1) & (index_.size() - 1))
    if (s_.port_sets[index_[slot]] == *set) return index_[slot];
  RONDO_CHECK(!set->empty() && s_.port_sets.size() < 65535);
  for (const Port& p : *set) RONDO_CHECK(p.peer >= 0 && p.peer < s_.nranks && p.peer != s_.rank);
  index_[slot] = static_cast<uint16_t>(s_.port_sets.size());
  s_.port_sets.push_back(*set);
  return index_[slot];
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
