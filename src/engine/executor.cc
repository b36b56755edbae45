#include "engine/executor.h"

#include <algorithm>
#include <cstring>

#include "base/round_up.h"

namespace rondo {
namespace {

// Stores own + data in dst. `data` is in the transport's memory and may be misaligned for the element type. Then it is
// copied through a block that stays in the L1 cache.
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

}  // namespace

bool Executor::step_lane(Operation& op, uint32_t lane) {
  const Program& p = *op.program;
  LaneState& at = op.lanes[lane];
  const ProgramStep& s = p.lanes[lane][at.pc];
  if (s.is(kFlagDirect)) [[unlikely]] return direct(op, s) && advance(op, lane);
  if (s.is(kFlagCredit)) [[unlikely]] {
    if (!credit(op, s)) return false;
    return op.program != &p || advance(op, lane);  // after a fallback the lanes have started over
  }
  if (s.verb == Verb::kWait) [[unlikely]] {
    const LaneState& other = op.lanes[s.wait_lane];
    if (other.loop < at.loop || (other.loop == at.loop && other.pc <= s.wait_pc)) {
      blocked_by_ = WaitReason::kOrder;
      return false;
    }
    return advance(op, lane);
  }
  const uint64_t skip = at.loop * p.loop_elems;
  if (skip >= s.src.num_elems) return advance(op, lane);  // an empty window: no message, on either end
  const uint64_t num_elems = std::min(p.loop_elems, s.src.num_elems - skip);
  const uint32_t steps = p.steps_of_message(num_elems);
  if (!ready(op, s, steps, p.ring_bytes_of_message(num_elems))) {
    if (blocked_by_ == WaitReason::kData) offer_posted_receive(op, s, skip, num_elems);
    return false;
  }
  if (!op.zero_copy.empty() && overwrites_zero_copy(op, s, skip, num_elems)) [[unlikely]] {
    blocked_by_ = WaitReason::kRoom;
    return false;
  }
  if (!s.recv.empty() && !pull_zero_copy(op, s, skip, num_elems)) [[unlikely]]
    return false;
  if (!move(op, s, skip, num_elems, steps)) [[unlikely]]
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
  const uint64_t skip = at.loop * p.loop_elems;
  if (s.recv.size() != 1 || s.is(kFlagDirect) || s.is(kFlagCredit) || skip >= s.src.num_elems) return;
  const uint64_t num_elems = std::min(p.loop_elems, s.src.num_elems - skip);
  if (!ready(op, s, p.steps_of_message(num_elems), p.ring_bytes_of_message(num_elems)) &&
      blocked_by_ == WaitReason::kData)
    offer_posted_receive(op, s, skip, num_elems);
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
  if (op.waits_for_turn && !my_turn(op, s)) [[unlikely]] {
    blocked_by_ = WaitReason::kOrder;
    return false;
  }
  for (ReadPort* r : s.recv) {
    const uint32_t fingerprint = op.fingerprint(s);
    const Arrival a = r->fifo.arrived(steps, fingerprint);
    if (a == Arrival::kReady) [[likely]] continue;
    for (const ReadPort* other : s.recv)
      if (other->fifo.arrived(steps, fingerprint) != Arrival::kReady) note_missing(other->writer_bell);
    if (a == Arrival::kMismatch) note_mismatch(op, s, *r);
    else if (!r->connected && ports_.try_connect(*r)) return ready(op, s, steps, ring_bytes);
    blocked_by_ = WaitReason::kData;
    if (oversubscribed_) look_ahead(op, s);
    return false;
  }
  for (WritePort* w : s.send)
    if (!(ring_bytes == 0 ? w->fifo.room(steps) : w->fifo.room_for(ring_bytes, op.program->lap_bytes))) {
      for (const Doorbell* reader : w->reader_bells) note_missing(reader);
      blocked_by_ = WaitReason::kRoom;
      return false;
    }
  return true;
}

// Posts a receive to the transport, if only the data is missing. The message must end in a buffer of this operation, as
// a copy or added to one operand.
void Executor::offer_posted_receive(Operation& op, const ProgramStep& s, uint64_t skip, uint64_t num_elems) {
  if (s.recv.size() != 1 || s.recv[0]->posted_receive == nullptr || !s.has(kVerbDst)) return;
  const Program& p = *op.program;
  const bool adds = !s.copies;
  if (adds && (p.mixed || s.prescale || (s.is(kFlagFinal) && p.divide_by != 0))) return;
  PostedReceive& posted_receive = *s.recv[0]->posted_receive;
  const uint64_t flag = make_flag(op.fingerprint(s), s.recv[0]->fifo.step());
  if (posted_receive.has_asked(flag)) return;
  const uint32_t bytes = p.ring_bytes_of_message(num_elems);
  for (WritePort* w : s.send)
    if (!w->fifo.room_for(bytes, p.lap_bytes)) return;
  std::byte* dst = at(op, s.dst_buffer, s.dst.first_elem + skip);
  if (op.has_zero_copy(dst, bytes) || op.may_land_on(dst, bytes)) return;
  op.asked.push_back({&posted_receive, flag, dst, bytes});
  if (!adds) return posted_receive.ask(flag, bytes, dst);
  const std::byte* own = at(op, s.src_buffer, s.src.first_elem + skip);
  posted_receive.ask(flag, bytes, dst,
                     [=, reduce = p.reduce, elem_bytes = p.wire_bytes, own_first = s.src_position == 0](
                         const std::byte* data, uint32_t offset, uint32_t num_bytes) {
                       add(reduce, elem_bytes, own + offset, data, own_first, dst + offset, num_bytes);
                     });
}

bool Executor::overwrites_zero_copy(Operation& op, const ProgramStep& s, uint64_t skip, uint64_t num_elems) {
  if (!s.has(kVerbDst)) return false;
  const std::byte* dst = at(op, s.dst_buffer, s.dst.first_elem + skip);
  const uint64_t bytes = num_elems * op.program->elem_bytes[static_cast<int>(s.dst_buffer)];
  if (!op.has_zero_copy(dst, bytes)) return false;
  op.bring_in(dst, bytes);  // its readers may wait for the result of this step
  return op.has_zero_copy(dst, bytes);
}

// Fetches messages that are still in the sender's buffer. A plain copy goes straight to its destination. For a sum only
// the first block is fetched here, and move() fetches the rest. Returns false if a writer's memory cannot be read or is
// gone. A living writer then puts this message and all later ones into the ring.
bool Executor::pull_zero_copy(Operation& op, const ProgramStep& s, uint64_t skip, uint64_t num_elems) {
  has_fetched_ = false;
  if (!op.reach_error.ok()) [[unlikely]] {
    blocked_by_ = WaitReason::kData;
    return false;  // permanent: the diagnosis ends the operation
  }
  const Program& p = *op.program;
  if (p.protocol == Protocol::kInline) return true;
  bool waits = false;  // for a writer: then pull no more, because the step will be repeated
  auto wait_for = [&](const ReadPort& r) {
    r.refuse();
    note_missing(r.writer_bell);
    waits = true;
  };
  for (const ReadPort* r : s.recv)
    if (r->waits_for_ring()) wait_for(*r);
  for (size_t i = 0; i < s.recv.size() && (has_fetched_ || !waits); ++i) {
    const ReadPort& r = *s.recv[i];
    const uint64_t address = r.pulls ? r.fifo.zero_copy_at() : 0;
    if (address == 0) continue;
    const bool as_it_is = s.copies && s.recv.size() == 1 && s.has(kVerbDst) && !p.mixed && !s.prescale &&
                          !(s.is(kFlagFinal) && p.divide_by != 0);
    if (!has_fetched_) {
      has_fetched_ = true;
      const auto zero_copy = std::count_if(s.recv.begin(), s.recv.end(), [](const ReadPort* port) {
        return port->pulls && port->fifo.zero_copy_at() != 0;
      });
      const uint64_t block_bytes = std::max<uint64_t>(
          kPullBytes / (2 * std::max<uint64_t>(1, static_cast<uint64_t>(zero_copy))) / 4096 * 4096, 16 * 1024);
      block_elems_ = as_it_is ? num_elems : std::min(num_elems, block_bytes / p.wire_bytes);
      fetched_.assign(s.recv.size(), {});
      pulled_.reserve(round_up(block_bytes, uint64_t{64}) * s.recv.size());
    }
    const uint32_t bytes = p.ring_bytes_of_message(block_elems_);
    std::byte* to = as_it_is ? at(op, s.dst_buffer, s.dst.first_elem + skip)
                             : pulled_.data() + round_up(uint64_t{bytes}, uint64_t{64}) * i;
    auto pull = [&](uint64_t first, std::byte* into, uint64_t num_bytes) {
      return ports_.transport().pull(r.key.writer, {RemoteAddress::kByCopy, address}, first, into, num_bytes).ok();
    };
    // Read the last byte too: after the first block it is too late to refuse.
    std::byte last;
    const uint32_t all_bytes = p.ring_bytes_of_message(num_elems);
    const bool ok = pull(0, to, bytes) && (bytes == all_bytes || pull(all_bytes - 1, &last, 1));
    if (!r.fifo.was_zero_copy()) continue;
    if (ok) fetched_[i] = {to, address};
    else wait_for(r);
  }
  if (waits) {
    blocked_by_ = WaitReason::kData;
    has_fetched_ = false;
  }
  return !waits;
}

// Fetches the next block, from `first` on, of each message that was not copied into the ring meanwhile. Returns false
// if a block cannot be read. Earlier blocks may then have been added already.
bool Executor::pull_block(Operation& op, const ProgramStep& s, uint64_t first, uint64_t num_elems) {
  const Program& p = *op.program;
  for (size_t i = 0; i < s.recv.size(); ++i) {
    Fetched& f = fetched_[i];
    if (f.block == nullptr) continue;
    const ReadPort& r = *s.recv[i];
    const Status status = ports_.transport().pull(r.key.writer, {RemoteAddress::kByCopy, f.address},
                                                  first * p.wire_bytes, f.block, num_elems * p.wire_bytes);
    if (!r.fifo.was_zero_copy()) f = {};
    else if (!status.ok()) op.reach_error = status;
  }
  return op.reach_error.ok();
}

// Notes the writer of a message of another operation. If that operation is equal to this one, computes its number.
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
        std::find(s.recv.begin(), s.recv.end(), p.reads[i].first) != s.recv.end())
      return false;
  for (size_t i = 0; i < p.writes.size(); ++i)
    if (p.writes[i].first->fifo.step() < op.first_write_steps[i] &&
        std::find(s.send.begin(), s.send.end(), p.writes[i].first) != s.send.end())
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
  if (s.is(kFlagDirect) && !converts(p, s)) {  // a peer's result already has the output's type
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

namespace {

// Returns true if the data is already at its destination.
bool is_in_place(const Program& p, const ProgramStep& s, const std::byte* src, const std::byte* dst) {
  return src == dst && s.recv.empty() && !s.prescale && !s.is(kFlagFinal) && !p.mixed;
}

}  // namespace

// Stores the operands of a step in sources_, in the order of addition: `src` (nullptr: none) and received(i) of each
// port i. Returns their number.
template <class Received>
uint32_t Executor::gather(const ProgramStep& s, const std::byte* src, Received received) {
  uint32_t n = 0;
  for (size_t i = 0; i < s.recv.size(); ++i) {
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

// Returns whether a message can stay in its buffer. Then its reader pulls it (by address), or the transport sends it.
Executor::ZeroCopy Executor::may_zero_copy(Operation& op, const WritePort& to, const std::byte* data, uint32_t bytes) {
  constexpr uint32_t kLeastBytes = 4096;  // copying shorter ones is faster
  constexpr uint32_t kLeastPulledBytes = 32 * 1024;
  // Only for sums. Readers of a gather copy the data in any case, and write it far from their caches.
  const bool by_address =
      to.sends_by_address && bytes >= kLeastPulledBytes && collective_reduces(op.program->operation.collective);
  if (!by_address && (bytes < kLeastBytes || to.zero_copy_send() == nullptr)) return ZeroCopy::kNot;
  if (!op.asked.empty() && op.may_land_on(data, bytes)) return ZeroCopy::kNot;
  return by_address ? ZeroCopy::kByAddress : ZeroCopy::kToTransport;
}

// Notes a zero-copy send. Call it directly before the message is posted. Afterwards bring_in can copy the message.
void Executor::send_zero_copy(Operation& op, WritePort& to, ZeroCopy how, const std::byte* data, uint32_t bytes) {
  constexpr size_t kManyZeroCopy = 64;
  if (op.zero_copy.size() % kManyZeroCopy == kManyZeroCopy - 1) op.repaid();  // in case no step overwrites data
  if (how == ZeroCopy::kByAddress) {
    to.zero_copy_now = data;
    op.zero_copy.push_back({nullptr, &to, to.fifo.step(), data, bytes});
    return;
  }
  ZeroCopySend* zero_copy_send = to.zero_copy_send();
  zero_copy_send->send_zero_copy(data, to.fifo.step());
  op.zero_copy.push_back({zero_copy_send, &to, to.fifo.step(), data, bytes});
}

// Chooses for each port whether the message goes into its ring or is sent from the buffer.
void Executor::choose_ways(Operation& op, const ProgramStep& s, const std::byte* stays, uint32_t bytes) {
  for (WritePort* w : s.send) {
    const ZeroCopy how = stays == nullptr ? ZeroCopy::kNot : may_zero_copy(op, *w, stays, bytes);
    if (how == ZeroCopy::kNot) into_ring_.push_back(w->fifo.data());
    else zero_copy_.emplace_back(w, how);
  }
}

// Writes a message into header lines, without their flags. Each line has its own part of the message.
void Executor::fill_lines(const Operation& op, const ProgramStep& s, uint64_t skip, uint64_t num_elems) {
  const Program& p = *op.program;
  const std::byte* src = s.has(kVerbSrc) ? at(op, s.src_buffer, s.src.first_elem + skip) : nullptr;
  std::byte* dst = s.has(kVerbDst) ? at(op, s.dst_buffer, s.dst.first_elem + skip) : nullptr;
  if (is_in_place(p, s, src, dst)) dst = nullptr;
  if (s.copies) return copy_lines(s, src, dst, num_elems * p.wire_bytes);
  const uint64_t line_elems = kLinePayloadBytes / p.wire_bytes;
  for (uint32_t k = 0; num_elems != 0; ++k) {
    const uint64_t n = std::min(line_elems, num_elems);
    const uint32_t num_src = gather(s, src, [&](size_t i) { return s.recv[i]->fifo.line(k); });
    uint32_t num_dst = 0;
    if (dst != nullptr) sinks_[num_dst++] = dst;
    for (WritePort* w : s.send) sinks_[num_dst++] = w->fifo.line(k);
    run_kernel(op, s, num_src, num_dst, n, dst != nullptr);
    if (src != nullptr) src += n * p.elem_bytes[static_cast<int>(s.src_buffer)];
    if (dst != nullptr) dst += n * p.elem_bytes[static_cast<int>(s.dst_buffer)];
    num_elems -= n;
  }
}

// Moves a message. Pulled data is added block by block while it is in the core's cache. Returns false if a later block
// cannot be read.
bool Executor::move(Operation& op, const ProgramStep& s, uint64_t skip, uint64_t num_elems, uint32_t steps) {
  const Program& p = *op.program;
  if (p.protocol == Protocol::kInline || s.is(kFlagCredit)) {
    fill_lines(op, s, skip, num_elems);
    for (WritePort* w : s.send) w->post(steps, op.fingerprint(s));
    for (ReadPort* r : s.recv) r->release(steps);
    return true;
  }
  const std::byte* src = s.has(kVerbSrc) ? at(op, s.src_buffer, s.src.first_elem + skip) : nullptr;
  std::byte* dst = s.has(kVerbDst) ? at(op, s.dst_buffer, s.dst.first_elem + skip) : nullptr;
  // Data that is in a buffer after this step can be sent from there.
  const std::byte* stays = p.mixed ? nullptr : dst != nullptr ? dst : s.copies ? src : nullptr;
  if (is_in_place(p, s, src, dst)) dst = nullptr;
  const uint32_t ring_bytes = p.ring_bytes_of_message(num_elems);
  const std::byte* landed = s.recv.size() == 1 ? s.recv[0]->landed(op.fingerprint(s)) : nullptr;
  if (has_fetched_ && fetched_[0].block == dst && dst != nullptr) landed = dst;
  if (landed != nullptr) src = dst = nullptr;  // only the forwarding is left to do
  into_ring_.clear();
  zero_copy_.clear();
  choose_ways(op, s, stays, ring_bytes);
  const bool in_blocks = has_fetched_ && landed == nullptr;
  const uint64_t part_elems = in_blocks ? block_elems_ : num_elems;
  for (uint64_t first = 0; first < num_elems;) {
    const uint64_t n = std::min(part_elems, num_elems - first), first_bytes = first * p.wire_bytes;
    if (in_blocks && first != 0 && !pull_block(op, s, first, n)) [[unlikely]] {
      has_fetched_ = false;
      blocked_by_ = WaitReason::kData;
      return false;
    }
    const uint32_t num_src = gather(s, src, [&](size_t i) -> const std::byte* {
      return landed != nullptr                           ? landed
             : in_blocks && fetched_[i].block != nullptr ? fetched_[i].block
                                                         : s.recv[i]->fifo.data() + first_bytes;
    });
    uint32_t num_dst = 0;
    if (dst != nullptr) sinks_[num_dst++] = dst;
    for (std::byte* to : into_ring_) sinks_[num_dst++] = to + first_bytes;
    run_kernel(op, s, num_src, num_dst, n, dst != nullptr);
    if (src != nullptr) src += n * p.elem_bytes[static_cast<int>(s.src_buffer)];
    if (dst != nullptr) dst += n * p.elem_bytes[static_cast<int>(s.dst_buffer)];
    first += n;
  }
  for (const auto& [w, how] : zero_copy_) send_zero_copy(op, *w, how, stays, ring_bytes);
  for (WritePort* w : s.send) w->post_data(ring_bytes, op.fingerprint(s));
  for (ReadPort* r : s.recv) r->release(steps);
  has_fetched_ = false;
  return true;
}

bool Executor::step_once(Operation& op, const ProgramStep& s) {
  if (s.once_steps == 0) return true;
  for (ReadPort* r : s.recv)
    if (r->fifo.arrived(s.once_steps, op.fingerprint(s)) != Arrival::kReady &&
        !ready(op, s, s.once_steps))  // finds the reason and connects; the message may have arrived meanwhile
      return false;
  for (WritePort* w : s.send)
    if (!w->fifo.room(s.once_steps)) {
      blocked_by_ = WaitReason::kRoom;
      return false;
    }
  fill_lines(op, s, 0, s.once_elems);
  for (WritePort* w : s.send) w->post(s.once_steps, op.fingerprint(s));
  for (ReadPort* r : s.recv) r->release(s.once_steps);
  return true;
}

}  // namespace rondo
