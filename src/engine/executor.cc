#include "engine/executor.h"

#include <algorithm>
#include <cstring>

namespace rondo {
namespace {

// Reduces `own` and `data` into dst. `data` is in the transport's memory and may be misaligned for the element type.
// Then it is copied through a block that stays in the L1 cache.
void add(Kernel reduce, uint32_t elem_bytes, const std::byte* own, const std::byte* data, bool own_first,
         std::byte* dst, uint32_t bytes) {
  auto add_block = [&](const std::byte* theirs, uint32_t at, uint32_t n) {
    const void* sources[] = {own_first ? own + at : theirs, own_first ? theirs : own + at};
    void* sinks[] = {dst + at};
    KernelArgs a;
    a.src = sources;
    a.dst = sinks;
    a.num_src = 2;
    a.num_dst = 1;
    a.num_elems = n / elem_bytes;
    reduce(a);
  };
  if (reinterpret_cast<uintptr_t>(data) % elem_bytes == 0) return add_block(data, 0, bytes);
  constexpr uint32_t kBlockBytes = 8192;
  alignas(64) std::byte block[kBlockBytes];
  for (uint32_t at = 0; at < bytes; at += kBlockBytes) {
    const uint32_t n = std::min(kBlockBytes, bytes - at);
    std::memcpy(block, data + at, n);
    add_block(block, at, n);
  }
}

// Bytes of an element of the step's receives and sends.
uint64_t peer_elem_bytes(const Program& p, const ProgramStep& s) {
  return s.is(kFlagDirect) ? p.elem_bytes[static_cast<int>(s.src_buffer)] : p.wire_bytes;
}

// Returns true if a message may still be stored in some of these bytes.
bool may_be_written(const Program& p, const std::byte* at, uint64_t bytes) {
  return std::ranges::any_of(p.reads, [&](const auto& read) {
    const PostedReceive* const posted = read.first->posted_receive;
    return posted != nullptr && posted->may_write(at, bytes);
  });
}

}  // namespace

bool Executor::step_lane(Operation& op, uint32_t lane) {
  const Program& p = *op.program;
  LaneState& at = op.lanes[lane];
  const ProgramStep& s = p.lanes[lane][at.pc];
  if (s.is(kFlagDirect)) [[unlikely]] return direct(op, s) && advance(op, lane);
  if (s.is(kFlagCredit)) [[unlikely]] {
    if (at.loop == 0 && !credit(op, s)) return false;
    return op.program != &p || advance(op, lane);  // after a fallback the lanes have started over
  }
  if (s.verb == Verb::kWait) [[unlikely]] {
    const LaneState& other = op.lanes[s.wait_lane];
    if (other.loop < at.loop || (other.loop == at.loop && other.pc <= s.wait_pc)) return blocked(WaitReason::kOrder);
    return advance(op, lane);
  }
  const Window w = p.window(s, at.loop);
  if (w.num_elems == 0) return advance(op, lane);  // no message, on either end
  if (!ready(op, s, w.steps, w.ring_bytes)) {
    if (blocked_by_ == WaitReason::kData) post_receive(op, s, w);
    return false;
  }
  if (!move(op, s, w)) [[unlikely]]
    return false;
  advance(op, lane);
  if (!s.recv.empty() && s.recv[0]->posted_receive != nullptr) expect_next(op, lane);
  return true;
}

// Posts the receive of the lane's next message, because it may arrive before the next step of the lane.
void Executor::expect_next(Operation& op, uint32_t lane) {
  const Program& p = *op.program;
  const LaneState& at = op.lanes[lane];
  if (at.loop == p.num_loops) return;
  const ProgramStep& s = p.lanes[lane][at.pc];
  if (s.recv.size() != 1 || s.is(kFlagDirect) || s.is(kFlagCredit)) return;
  const Window w = p.window(s, at.loop);
  if (w.num_elems != 0 && !ready(op, s, w.steps, w.ring_bytes) && blocked_by_ == WaitReason::kData)
    post_receive(op, s, w);
}

bool Executor::advance(Operation& op, uint32_t lane) {
  LaneState& at = op.lanes[lane];
  if (++at.pc == op.program->lanes[lane].size()) {
    at.pc = 0;
    if (++at.loop == op.program->num_loops) --op.lanes_left;
  }
  return true;
}

// Returns true if the next message can be moved: all receives have arrived, and all sends have `steps` free lines and
// space for `ring_bytes` in their rings.
bool Executor::ready(Operation& op, const ProgramStep& s, uint32_t steps, uint32_t ring_bytes) {
  if (op.waits_for_turn && !my_turn(op, s)) [[unlikely]]
    return blocked(WaitReason::kOrder);
  for (ReadPort* r : s.recv) {
    const uint32_t fingerprint = op.fingerprint(s);
    const Arrival a = r->fifo.arrived(steps, fingerprint);
    if (a == Arrival::kReady) [[likely]] continue;
    for (const ReadPort* other : s.recv)
      if (other->fifo.arrived(steps, fingerprint) != Arrival::kReady) note_missing(other->writer_bell);
    if (a == Arrival::kMismatch) note_mismatch(op, s, *r);
    else if (!r->connected && ports_.try_connect(*r)) return ready(op, s, steps, ring_bytes);
    if (oversubscribed_) look_ahead(op, s);
    return blocked(WaitReason::kData);
  }
  return has_space(s, steps, ring_bytes, op.program->lap_bytes);
}

bool Executor::has_space(const ProgramStep& s, uint32_t steps, uint32_t ring_bytes, uint32_t lap_bytes) {
  for (WritePort* w : s.send)
    if (!w->room_for(steps, ring_bytes, lap_bytes)) {
      for (const Doorbell* reader : w->reader_bells) note_missing(reader);
      return blocked(WaitReason::kRoom);
    }
  return true;
}

// Posts a receive to the transport, if only the data is missing. The message must end in a buffer of this operation, as
// a copy or added to one operand.
void Executor::post_receive(Operation& op, const ProgramStep& s, const Window& w) {
  if (s.recv.size() != 1 || s.recv[0]->posted_receive == nullptr || !s.has(kVerbDst)) return;
  const Program& p = *op.program;
  const bool adds = !s.copies;
  if (adds && (p.mixed || s.prescale || (s.is(kFlagFinal) && p.divide_by != 0))) return;
  PostedReceive& receive = *s.recv[0]->posted_receive;
  const uint64_t flag = make_flag(op.fingerprint(s), s.recv[0]->fifo.step());
  if (receive.has_asked(flag)) return;
  for (WritePort* to : s.send)
    if (!to->room_for(w.steps, w.ring_bytes, p.lap_bytes)) return;
  std::byte* dst = own_sink(op, s, w.skip);
  if (ports_.open_sends().any(OpenSends::in(dst, w.ring_bytes)) || may_be_written(p, dst, w.ring_bytes)) return;
  if (!adds) return receive.ask(flag, w.ring_bytes, dst);
  receive.ask(flag, w.ring_bytes, dst,
              [own = own_source(op, s, w.skip), dst, reduce = p.reduce, elem_bytes = p.wire_bytes,
               own_first = s.src_position == 0](const std::byte* data, uint32_t offset, uint32_t num_bytes) {
                add(reduce, elem_bytes, own + offset, data, own_first, dst + offset, num_bytes);
              });
}

// Notes the writer of a message of another operation. Also computes the number of that operation, which is right only
// if the two calls are equal.
void Executor::note_mismatch(Operation& op, const ProgramStep& s, const ReadPort& from) {
  const uint32_t found = from.fifo.found_fingerprint(),
                 ahead = (found + kFingerprints - op.fingerprint(s)) % kFingerprints;
  op.mismatch_with = from.key.writer;
  op.mismatch_at = ahead <= kFingerprints / 2 ? op.sequence + ahead : op.sequence - (kFingerprints - ahead);
}

// Notes a missing peer. Prefers a peer on this core, which cannot send before this thread yields.
void Executor::note_missing(const Doorbell* whose) {
  if (whose != nullptr && (missing_ == nullptr || same_cpu(*whose, *own_bell_))) missing_ = whose;
}

// Notes the missing peers of the following steps too. If such a peer is on this core, this thread should yield to it
// now.
void Executor::look_ahead(const Operation& op, const ProgramStep& s) {
  for (uint32_t k = 1; k <= s.further_receives && (missing_ == nullptr || !same_cpu(*missing_, *own_bell_)); ++k) {
    const ProgramStep& later = (&s)[k];
    for (const ReadPort* r : later.recv)
      if (r->fifo.arrived(1, op.fingerprint(later)) == Arrival::kNotYet) note_missing(r->writer_bell);
  }
}

// Returns true if all earlier operations have finished their steps on the connections of this step.
bool Executor::my_turn(const Operation& op, const ProgramStep& s) const {
  const Program& p = *op.program;
  for (size_t i = 0; i < p.reads.size(); ++i)
    if (p.reads[i].first->fifo.step() < op.first_read_steps[i] &&
        std::ranges::find(s.recv, p.reads[i].first) != s.recv.end())
      return false;
  for (size_t i = 0; i < p.writes.size(); ++i)
    if (p.writes[i].first->fifo.step() < op.first_write_steps[i] &&
        std::ranges::find(s.send, p.writes[i].first) != s.send.end())
      return false;
  return true;
}

std::byte* Executor::at(const Operation& op, Buffer b, uint64_t elem) const {
  const uint64_t offset = elem * op.program->elem_bytes[static_cast<int>(b)];
  if (b == Buffer::kIn) return const_cast<std::byte*>(op.in) + offset;
  if (b == Buffer::kOut) return op.out + offset;
  return const_cast<std::byte*>(op.scratch.data()) + offset;
}

void Executor::run_kernel(const Operation& op, const ProgramStep& s, uint32_t num_src, uint32_t num_dst,
                          uint64_t num_elems, bool has_dst) {
  if (num_dst == 0) return;
  const Program& p = *op.program;
  KernelArgs a;
  a.src = sources_.data();
  a.dst = sinks_.data();
  a.num_src = num_src;
  a.num_dst = num_dst;
  a.num_elems = num_elems;
  a.divide_by = s.is(kFlagFinal) ? p.divide_by : 0;
  if (p.mixed) [[unlikely]] return run_mixed(op, s, a, has_dst);
  if (num_src == 1 && !s.prescale && a.divide_by == 0) {
    a.num_elems *= p.wire_bytes;
    return p.copy(a);
  }
  if (s.prescale) {
    a.own = s.src_position;
    a.premul = op.premul;
  }
  p.reduce(a);
}

void Executor::run_mixed(const Operation& op, const ProgramStep& s, const KernelArgs& args, bool has_dst) {
  const Program& p = *op.program;
  if (s.is(kFlagDirect) && s.copies) {  // a peer's result already has the output's type
    KernelArgs copy = args;
    copy.num_elems *= p.elem_bytes[static_cast<int>(s.src_buffer)];
    return p.copy(copy);
  }
  auto type_in = [&](Buffer b) {
    return b == Buffer::kIn ? p.types.input : b == Buffer::kOut ? p.types.output : p.types.wire;
  };
  MixedKernelArgs m;
  m.args = args;
  m.op = p.operation.op;
  m.wire = p.types.wire;
  if (s.has(kVerbSrc)) {
    m.args.own = std::min<uint32_t>(s.src_position, args.num_src - 1);
    m.own_type = type_in(s.src_buffer);
  }
  if (s.prescale) m.args.premul = op.premul;
  if (s.is(kFlagDirect)) {
    m.raw = true;
    m.own_type = p.types.input;
  }
  m.has_dst = has_dst;
  m.dst_type = type_in(s.dst_buffer);
  m.result_as_wire = s.as_wire;
  p.mixed_kernel(m);
}

// Stores the operands of a step in sources_, in the order of addition: `src` (nullptr: none) and received(i) of each
// port or peer i. Returns their number.
template <class Received>
uint32_t Executor::gather(const ProgramStep& s, const std::byte* src, Received received) {
  uint32_t n = 0;
  for (size_t i = 0; i < s.recv_peers.size(); ++i) {
    if (src != nullptr && n == s.src_position) sources_[n++] = src;
    sources_[n++] = received(i);
  }
  if (src != nullptr && n <= s.src_position) sources_[n++] = src;
  return n;
}

// Copies lines without a kernel, because a line is too short for a call of one.
void Executor::copy_lines(const ProgramStep& s, const std::byte* src, std::byte* dst, uint64_t bytes) {
  for (uint32_t k = 0; bytes != 0; ++k) {
    const uint64_t n = std::min<uint64_t>(bytes, kLinePayloadBytes);
    const std::byte* from = src != nullptr ? src + k * kLinePayloadBytes : s.recv[0]->fifo.line(k);
    auto copy_to = [&](std::byte* to) {
      if (n == kLinePayloadBytes) [[likely]] std::memcpy(to, from, kLinePayloadBytes);
      else std::memcpy(to, from, n);
    };
    if (dst != nullptr) copy_to(dst + k * kLinePayloadBytes);
    for (const WritePort* w : s.send) copy_to(w->fifo.line(k));
    bytes -= n;
  }
}

// Moves one Inline message: combines the sources, and stores the result in dst and in the lines to send, without their
// flags. If a message has several lines, the kernel reads and writes contiguous copies of their data. One call of a
// kernel and these copies are faster than a call for each line.
void Executor::fill_lines(const Operation& op, const ProgramStep& s, uint64_t skip, uint64_t num_elems) {
  const Program& p = *op.program;
  const std::byte* src = own_source(op, s, skip);
  std::byte* dst = own_sink(op, s, skip);
  const uint64_t bytes = num_elems * p.wire_bytes;
  if (s.copies) return copy_lines(s, src, src != dst ? dst : nullptr, bytes);
  const bool one_line = bytes <= kLinePayloadBytes;
  if (!one_line) lines_.resize(std::max(lines_.size(), s.recv.size() + 1));
  const uint32_t num_src = gather(s, src, [&](size_t i) -> const std::byte* {
    const FifoReader<HostMem>& from = s.recv[i]->fifo;
    if (one_line) return from.line(0);
    std::byte* const to = lines_[i].bytes;
    for (uint32_t k = 0; k * kLinePayloadBytes < bytes; ++k)
      std::memcpy(to + k * kLinePayloadBytes, from.line(k), kLinePayloadBytes);
    return to;
  });
  uint32_t num_dst = 0;
  if (dst != nullptr) sinks_[num_dst++] = dst;
  if (one_line)
    for (WritePort* w : s.send) sinks_[num_dst++] = w->fifo.line(0);
  else if (!s.send.empty()) sinks_[num_dst++] = lines_.back().bytes;
  run_kernel(op, s, num_src, num_dst, num_elems, dst != nullptr);
  if (!one_line) copy_lines(s, lines_.back().bytes, nullptr, bytes);
}

// Moves a message: combines the step's own data and the received messages, stores the result, and sends it on. Data
// that is in a buffer after the step may be sent from there.
bool Executor::move(Operation& op, const ProgramStep& s, const Window& w) {
  const Program& p = *op.program;
  const uint32_t fingerprint = op.fingerprint(s);
  if (p.protocol == Protocol::kInline) {
    fill_lines(op, s, w.skip, w.num_elems);
    for (WritePort* to : s.send) to->post(w.steps, fingerprint);
    for (ReadPort* from : s.recv) from->release(w.steps);
    return true;
  }
  const std::byte* src = own_source(op, s, w.skip);
  std::byte* dst = own_sink(op, s, w.skip);
  if (!ports_.open_sends().empty() && dst != nullptr &&
      !may_overwrite(dst, w.num_elems * p.elem_bytes[static_cast<int>(s.dst_buffer)])) [[unlikely]]
    return blocked(WaitReason::kRoom);
  if (!find_messages(op, s, w.ring_bytes)) [[unlikely]]
    return false;
  const bool may_stay = !p.mixed && !s.send.empty() && w.ring_bytes >= WritePort::kLeastZeroCopyBytes;
  const std::byte* stays = !may_stay ? nullptr : dst != nullptr ? dst : s.copies ? src : nullptr;
  if (stays != nullptr && may_be_written(p, stays, w.ring_bytes)) stays = nullptr;
  into_.clear();
  for (WritePort* to : s.send)
    if (std::byte* at = to->place(stays, w.ring_bytes, collective_reduces(p.operation.collective))) into_.push_back(at);
  const bool is_stored = s.recv.size() == 1 && s.recv[0]->posted_data(fingerprint) != nullptr;
  if (is_stored) src = dst = nullptr;  // the transport has stored the result: only the forwarding is left to do
  if (!combine(op, s, w.num_elems, src, dst)) [[unlikely]]
    return false;
  for (WritePort* to : s.send) ports_.post_data(*to, w.ring_bytes, fingerprint, &op);
  for (ReadPort* from : s.recv) from->release_data();
  return true;
}

// Returns false if a peer or the transport still reads some of these bytes.
bool Executor::may_overwrite(const std::byte* at, uint64_t bytes) {
  OpenSends& sends = ports_.open_sends();
  if (!sends.any(OpenSends::in(at, bytes))) return true;
  sends.reclaim(OpenSends::in(at, bytes));  // its readers may wait for the result of this step
  return !sends.any(OpenSends::in(at, bytes));
}

// Finds the received messages. Returns false if a writer must first copy its message into the ring, or if an earlier
// read of a peer's memory has failed for good.
bool Executor::find_messages(Operation& op, const ProgramStep& s, uint32_t bytes) {
  received_.clear();
  for (const ReadPort* r : s.recv) {
    if (r->pulls) {
      if (!op.reach_error.ok()) return blocked(WaitReason::kData);  // permanent: the diagnosis ends the operation
      if (r->waits_for_ring()) return wait_for_ring(*r);
      if (const uint64_t address = r->fifo.zero_copy_at()) {
        received_.push_back({nullptr, r->key.writer, {RemoteAddress::kByCopy, address}, r, bytes});
        continue;
      }
    }
    const std::byte* stored = r->posted_data(op.fingerprint(s));
    received_.push_back({stored != nullptr ? stored : r->fifo.data()});
  }
  return true;
}

bool Executor::wait_for_ring(const ReadPort& r) {
  r.refuse();
  note_missing(r.writer_bell);
  return blocked(WaitReason::kData);
}

// Combines `src` and received_ into `dst` and into_. Data in peers' memory is pulled: a plain copy straight to its
// destination, other data block by block, so that it is added while it is in the core's cache. Returns false if some of
// it cannot be read.
bool Executor::combine(Operation& op, const ProgramStep& s, uint64_t num_elems, const std::byte* src, std::byte* dst) {
  constexpr uint64_t kCacheBytes = 256 * 1024;  // for the blocks of all peers, so that they stay in a core's L2
  const auto is_pulled = [](const Source& r) { return r.at == nullptr; };
  const auto num_pulls = static_cast<uint64_t>(std::ranges::count_if(received_, is_pulled));
  if (num_pulls == 0) [[likely]] {
    combine_part(op, s, {src, dst, 0, num_elems}, [this](size_t i) { return received_[i].at; });
    return true;
  }
  const Program& p = *op.program;
  const uint64_t peer_bytes = peer_elem_bytes(p, s);
  const bool straight = s.copies && dst != nullptr;
  uint64_t part_elems = num_elems, block_bytes = 0;
  if (!straight) {
    const uint64_t share = kCacheBytes / num_pulls / (s.is(kFlagDirect) ? 1 : 2);
    block_bytes = std::max(share / sizeof(Page), uint64_t{4}) * sizeof(Page);
    part_elems = std::min(num_elems, block_bytes / peer_bytes);
    pulled_.resize(std::max(pulled_.size(), received_.size() * block_bytes / sizeof(Page)));
  }
  for (uint64_t first = 0; first < num_elems; first += part_elems) {
    const uint64_t n = std::min(part_elems, num_elems - first);
    auto block = [&](size_t i) { return straight ? dst : pulled_[i * block_bytes / sizeof(Page)].bytes; };
    for (size_t i = 0; i < received_.size(); ++i) {
      Source& from = received_[i];
      if (is_pulled(from) && !pull(op, from, first * peer_bytes, n * peer_bytes, block(i))) return false;
    }
    combine_part(op, s, {src, dst, first, n}, [&](size_t i) -> const std::byte* {
      return is_pulled(received_[i]) ? block(i) : received_[i].at + first * peer_bytes;
    });
  }
  return true;
}

// Combines some elements of all operands. received(i): those of operand i.
template <class Received>
void Executor::combine_part(const Operation& op, const ProgramStep& s, const Part& part, Received received) {
  const Program& p = *op.program;
  const std::byte* const src =
      part.src != nullptr ? part.src + part.first_elem * p.elem_bytes[static_cast<int>(s.src_buffer)] : nullptr;
  std::byte* const dst =
      part.dst != nullptr ? part.dst + part.first_elem * p.elem_bytes[static_cast<int>(s.dst_buffer)] : nullptr;
  const uint32_t num_src = gather(s, src, received);
  uint32_t num_dst = 0;
  const bool has_dst = dst != nullptr && !(s.copies && sources_[0] == dst);
  if (has_dst) sinks_[num_dst++] = dst;
  for (std::byte* to : into_) sinks_[num_dst++] = to + part.first_elem * peer_elem_bytes(p, s);
  run_kernel(op, s, num_src, num_dst, part.num_elems, has_dst);
}

// Pulls a part of a source. If its writer has copied the message into the ring meanwhile, reads it there. Returns false
// if the memory cannot be read. If this is the first part, a living writer then uses the ring from this message on. In
// a later part it is an error, because earlier parts may have been added already.
bool Executor::pull(Operation& op, Source& from, uint64_t first_byte, uint64_t bytes, std::byte* to) {
  auto read = [&](uint64_t at, void* into, uint64_t n) {
    return ports_.transport().pull(from.peer, from.address, at, into, n);
  };
  Status status = read(first_byte, to, bytes);
  if (from.message == nullptr) {
    op.reach_error = status;
    return status.ok();
  }
  std::byte last;
  if (first_byte == 0 && bytes < from.message_bytes && status.ok()) status = read(from.message_bytes - 1, &last, 1);
  if (!from.message->fifo.was_zero_copy()) {
    from.at = from.message->fifo.data();
    return true;
  }
  if (status.ok()) return true;
  if (first_byte == 0) return wait_for_ring(*from.message);
  op.reach_error = status;
  return blocked(WaitReason::kData);
}

bool Executor::step_once(Operation& op, const OnceStep& step) {
  const ProgramStep& s = *step.step;
  const uint32_t fingerprint = op.fingerprint(s);
  for (ReadPort* r : s.recv)
    if (r->fifo.arrived(s.once_steps, fingerprint) != Arrival::kReady &&
        !ready(op, s, s.once_steps, s.once_bytes))  // finds the reason and connects; it may have arrived meanwhile
      return false;
  if (!has_space(s, s.once_steps, s.once_bytes, op.program->lap_bytes)) return false;
  if (s.once_bytes == 0) {
    fill_lines(op, s, 0, s.once_elems);
    for (WritePort* w : s.send) w->post(s.once_steps, fingerprint);
  } else {
    into_.clear();
    for (WritePort* w : s.send) into_.push_back(w->fifo.data());
    combine_part(op, s, {own_source(op, s, 0), own_sink(op, s, 0), 0, s.once_elems},
                 [&](size_t i) { return s.recv[i]->fifo.data(); });
    for (WritePort* w : s.send) w->post_data(s.once_bytes, fingerprint);
  }
  for (ReadPort* r : s.recv) r->release(s.once_steps);
  return true;
}

}  // namespace rondo
