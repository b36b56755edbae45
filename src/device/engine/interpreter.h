// The interpreter: a block runs one lane of a unit's calls in one channel (block_calls.h), instruction by instruction.
// Same semantics as the host's executor (engine/executor.cc), for many threads that may wait:
//
//     for each call of the unit
//       load the header and the lane's ends
//       for each loop, for each instruction
//         poll, gather, move, post    a message (messages.h); credits and direct instructions skip some of these
//       store the ends; the lanes of the channel meet
//
// Invariants: ends as in messages.h. All threads take the same branches: these depend only on instructions, extents and
// env.any().
#pragma once

#include "device/engine/messages.h"

namespace rondo {

template <class Env, class Ops>
class Interpreter : public Messages<Env, Ops> {
  using Base = Messages<Env, Ops>;
  using Mem = typename Env::Mem;
  using ReduceStep = device_kernels::ReduceStep;
  using State = BlockState<Mem>;
  using Base::args_, Base::at, Base::b_, Base::call_, Base::channel_, Base::env_, Base::lane_, Base::standing_;

 public:
  RONDO_HOST_DEVICE_INLINE Interpreter(Env& env, State& state, const LaunchArgs& args) : Base(env, state, args) {}

  RONDO_HOST_DEVICE_INLINE void run() {
    const DeviceUnit* units = args_.units();
    uint32_t u = 0;
    while (u + 1 < args_.num_units && env_.block() >= units[u + 1].first_block) ++u;
    const DeviceUnit& unit = units[u];
    const uint32_t place = env_.block() - unit.first_block;
    if (place >= unit.num_lanes * unit.num_channels) return;
    lane_ = place % unit.num_lanes;
    channel_ = place / unit.num_lanes;
    if (env_.thread() == 0) {  // load_call has a barrier
      b_.unit = unit;
      b_.calls = args_.calls();
    }
    for (call_ = unit.first_call;; ++call_) {
      Base::load_call(call_);
      const DeviceProgram& p = b_.program;
      if (takes_part() && !run_call())
        return leave_early(env_, b_, args_, {call_, lane_, channel_, standing_.pc, standing_.loop, true});
      const bool last = call_ + 1 == b_.unit.first_call + b_.unit.num_calls;
      if (last) Base::leave(b_.unit.num_lanes);
      if (b_.unit.num_lanes > 1 && (!last || p.waits) && !Base::meet(b_.unit.num_lanes)) {
        if (!last) leave_early(env_, b_, args_, {call_ + 1, lane_, channel_, 0, 0, false});
        return;
      }
      if (last) return;
    }
  }

 private:
  // Where a block has failed: a call, and the position in it.
  struct Place {
    uint32_t call, lane, channel, pc;
    uint64_t loop;
    bool begun;  // the call
  };
  // Apart from run(), so that it takes no registers from it.
  static RONDO_HOST_DEVICE_APART void leave_early(Env env, State& state, const LaunchArgs& args, Place at) {
    Interpreter(env, state, args).spoil(at);
  }

  // Fills the outputs that the block has not yet written with bytes 0xFF, because later work of the stream may read
  // them before the host sees the failure. In place, other lanes of the channel read these bytes, so it waits until
  // they have left.
  RONDO_HOST_DEVICE_INLINE void spoil(const Place& at) {
    const DeviceUnit& unit = b_.unit;
    lane_ = at.lane;
    channel_ = at.channel;
    Base::leave(unit.num_lanes);
    if (unit.num_lanes > 1) Base::wait_for_lanes();
    const bool midway = at.begun && b_.call.fallback == 0;  // else the call has not chosen yet
    uint64_t loop = midway ? at.loop : 0;
    uint32_t pc = midway ? at.pc : 0;
    for (uint32_t i = at.call; i < unit.first_call + unit.num_calls; ++i, loop = 0, pc = 0) {
      if (i != at.call || !at.begun) Base::load_call(i);
      const DeviceProgram& p = b_.program;
      if (lane_ >= p.num_lanes || !takes_part()) continue;
      if (p.pushes == 0) spoil_steps(loop, pc);  // else peers may be writing there
    }
  }
  // Steps from pc on in this loop, and all in later loops.
  RONDO_HOST_DEVICE_INLINE void spoil_steps(uint64_t loop, uint32_t pc) {
    const DeviceProgram& p = b_.program;
    const DeviceStep* steps = b_.call.program->steps() + p.lane_first[lane_];
    for (uint32_t i = 0; i < p.lane_first[lane_ + 1] - p.lane_first[lane_]; ++i) {
      const WindowStep s = share_of(steps[i]);
      if (!writes_out(s) || stays(s)) continue;
      const uint64_t skip = (loop + (i < pc ? 1 : 0)) * p.loop_elems;
      if (skip < s.num_elems) fill(s.dst_first_elem + skip, s.num_elems - skip);
    }
  }
  RONDO_HOST_DEVICE_INLINE bool writes_out(const DeviceStep& s) const {
    return (verb_bits(s.verb) & kVerbDst) != 0 && (s.flags & kFlagCredit) == 0 &&
           s.dst_buffer == static_cast<uint8_t>(Buffer::kOut);
  }
  // In place: the input is the output.
  RONDO_HOST_DEVICE_INLINE bool stays(const WindowStep& s) const {
    return s.num_recv == 0 && (s.bits & kStepPrescale) == 0 &&
           at(s.src_buffer, s.src_first_elem) == at(s.dst_buffer, s.dst_first_elem);
  }
  RONDO_HOST_DEVICE_INLINE void fill(uint64_t first_elem, uint64_t num_elems) {
    std::byte* const begin = at(static_cast<uint8_t>(Buffer::kOut), first_elem);
    std::byte* const end = at(static_cast<uint8_t>(Buffer::kOut), first_elem + num_elems);
    std::byte* const aligned = begin - reinterpret_cast<uintptr_t>(begin) % 16;
    for (std::byte* p = aligned + env_.thread() * 16; p < end; p += env_.threads() * 16) {
      if (p >= begin && p + 16 <= end) Mem::store_pair(p, {UINT64_MAX, UINT64_MAX});
      else
        for (uint32_t i = 0; i < 16; ++i)
          if (p + i >= begin && p + i < end) p[i] = std::byte{0xFF};
    }
  }

  // The channel has a part of the call.
  RONDO_HOST_DEVICE_INLINE bool takes_part() const {
    return channel_ < b_.call.counts.num_channels && b_.call.counts.num_loops != 0;
  }

  // For a call with a fallback lane 0 first runs the entry credits. Then all lanes know which program follows.
  RONDO_HOST_DEVICE_INLINE bool run_call() {
    for (;;) {
      if (lane_ < b_.program.num_lanes && !run_program()) return false;
      if (b_.call.fallback == 0) return true;
      if (!Base::choose()) return false;
    }
  }
  RONDO_HOST_DEVICE_INLINE bool run_program() {
    Base::load_ends();
    if (!run_loops()) return false;
    env_.sync();  // all threads are done with their ends
    Base::store_ends();
    return true;
  }

  RONDO_HOST_DEVICE_INLINE bool run_loops() {
    const DeviceProgram& p = b_.program;
    uint32_t steps = p.lane_first[lane_ + 1] - p.lane_first[lane_];
    if (b_.call.fallback != 0) steps = p.entry_steps;  // the call has not chosen yet
    window_first_ = 0;
    window_end_ = 0;
    if (env_.thread() == 0) b_.completed = 0;
    for (uint64_t loop = 0; loop < b_.call.counts.num_loops; ++loop)
      for (uint32_t pc = b_.first_step; pc < steps; ++pc) {
        if (pc < window_first_ || pc >= window_end_) load_window(pc, steps);
        standing_.loop = loop;
        standing_.pc = pc;
        if (!run_step(b_.window[pc - window_first_])) return false;
      }
    return true;
  }

  RONDO_HOST_DEVICE_INLINE Extent chunk_of(Buffer buffer, uint16_t chunk) const {
    if (chunk == DeviceStep::kNoChunk) return {};
    const uint32_t like = static_cast<uint32_t>(buffer == Buffer::kScratch ? b_.program.scratch_like : buffer);
    if (const uint32_t parts = b_.call.parts[like]; parts != 0) return args_.template at<Extent>(parts)[chunk];
    return EqualChunks{b_.call.counts.base_elems[like], b_.call.counts.longer[like]}.chunk(chunk);
  }
  RONDO_HOST_DEVICE_INLINE WindowStep share_of(const DeviceStep& step) const {
    const DeviceCounts& counts = b_.call.counts;
    WindowStep s{step, counts.fingerprint, 0, 0, 0};
    const Extent src = chunk_of(static_cast<Buffer>(s.src_buffer), s.src_chunk);
    const Extent dst = chunk_of(static_cast<Buffer>(s.dst_buffer), s.dst_chunk);
    const uint64_t num_elems = s.dst_chunk != DeviceStep::kNoChunk ? dst.num_elems : src.num_elems;
    if (counts.pairwise != 0 && num_elems != 0) s.fingerprint = pair_fingerprint(counts.fingerprint, num_elems);
    const Extent share = channel_extent(num_elems, counts.num_channels, channel_, b_.program.wire_bytes);
    s.src_first_elem = src.first_elem + share.first_elem;
    s.dst_first_elem = dst.first_elem + share.first_elem;
    s.num_elems = share.num_elems;
    return s;
  }

  // Loads instructions from pc on, with the channel's share of each.
  RONDO_HOST_DEVICE_INLINE void load_window(uint32_t pc, uint32_t steps) {
    const DeviceProgram& p = b_.program;
    env_.sync();
    window_first_ = pc;
    window_end_ = steps - pc < State::kWindowSteps ? steps : pc + State::kWindowSteps;
    const DeviceStep* from = b_.call.program->steps() + p.lane_first[lane_] + pc;
    for (uint32_t i = env_.thread(); i < window_end_ - pc; i += env_.threads()) b_.window[i] = share_of(from[i]);
    index_first_ = from[0].first_index;
    const uint16_t* index = b_.call.program->index() + index_first_;
    const DeviceStep& last = from[window_end_ - pc - 1];
    const uint32_t entries = last.first_index + last.num_recv + last.num_send - index_first_;
    for (uint32_t i = env_.thread(); i < entries && i < State::kWindowIndex; i += env_.threads())
      b_.index[i] = index[i];
    env_.sync();
  }
  RONDO_HOST_DEVICE_INLINE const uint16_t* index_of(const WindowStep& s) const {
    const uint32_t at = s.first_index - index_first_;
    return at + s.num_recv + s.num_send <= State::kWindowIndex ? b_.index + at
                                                               : b_.call.program->index() + s.first_index;
  }

  RONDO_HOST_DEVICE_INLINE bool run_step(const WindowStep& s) {
    Base::begin_record();
    bool ok;
    if (s.verb == Verb::kWait) ok = wait_for_lane(s);
    else if ((s.flags & kFlagCredit) != 0) ok = credit(s);
    else if ((s.flags & kFlagDirect) != 0) ok = direct(s);
    else ok = chunk(s);
    if (!ok) return false;
    if (b_.program.waits && env_.thread() == 0) {
      LaneProgress& mine = b_.call.comm->lanes[channel_ * DeviceProgram::kMaxLanes + lane_];
      Mem::store_release(&mine.completed, ++b_.completed);
    }
    Base::end_record();
    return true;
  }

  RONDO_HOST_DEVICE_INLINE bool wait_for_lane(const WindowStep& s) {
    const DeviceProgram& p = b_.program;
    bool ok = true;
    if (env_.thread() == 0) {
      const uint64_t steps = p.lane_first[s.wait_lane + 1] - p.lane_first[s.wait_lane];
      const uint64_t needed = standing_.loop * steps + s.wait_pc + 1;
      const LaneProgress& other = b_.call.comm->lanes[channel_ * DeviceProgram::kMaxLanes + s.wait_lane];
      ok = wait_until<false>(env_, standing_, -1, false, [&] {
        return Mem::load_acquire(&other.completed) >= needed ? Arrival::kReady : Arrival::kNotYet;
      });
    }
    return !env_.any(!ok);
  }

  // Sets `nowhere` if the peer's buffers cannot be reached. Without a fallback that is a failure.
  RONDO_HOST_DEVICE_INLINE bool take_address(Rank peer, const PeerCredit& theirs, bool& nowhere) {
    const DeviceComm& comm = *b_.call.comm;
    if (b_.call.fallback != 0 && (theirs.in_region == kRegionNowhere || theirs.out_region == kRegionNowhere)) {
      nowhere = true;
      return true;
    }
    std::byte *in, *out;
    if (!resolve_peer(comm, peer, theirs.in_region, theirs.buffers.in, in) ||
        !resolve_peer(comm, peer, theirs.out_region, theirs.buffers.out, out)) {
      report_failure(env_, standing_, DeviceFailure::kUnreachable, peer, false, 0);
      return false;
    }
    comm.peers[uint64_t{channel_} * comm.num_ranks + static_cast<uint32_t>(peer)] = {in, out};
    return true;
  }

  // A message without elements, in a line. In a direct program it carries the addresses of the sender's buffers.
  RONDO_HOST_DEVICE_INLINE bool credit(const WindowStep& s) {
    const bool carries = b_.program.direct;
    bool nowhere = b_.call.in_region == kRegionNowhere || b_.call.out_region == kRegionNowhere;
    const StepShape shape{s.num_recv, s.num_send, false, false, index_of(s)};
    const bool arrived = Base::poll(
        shape,
        [&](uint32_t, uint32_t end, FifoPost& post) {
          FifoReader<Mem>& r = b_.readers[end];
          if (!wait_until<false>(env_, standing_, b_.read_peers[end], false,
                                 [&] { return r.arrived(1, Base::fingerprint(s.fingerprint)); }))
            return false;
          if (carries && !take_address(b_.read_peers[end], *reinterpret_cast<const PeerCredit*>(r.line(0)), nowhere))
            return false;
          post = r.take(1);
          return true;
        },
        [&](uint32_t, uint32_t end, FifoPost& post) {
          FifoWriter<Mem>& w = b_.writers[end];
          if (!Base::wait_room(w)) return false;
          if (carries)
            *reinterpret_cast<PeerCredit*>(w.line(0)) = {
                {b_.call.in, b_.call.out}, b_.call.in_region, b_.call.out_region};
          post = w.take(Base::fingerprint(s.fingerprint));
          return true;
        });
    if (!arrived) return false;
    Base::post(shape.num_recv + shape.num_send);
    if (carries && b_.call.fallback != 0 && env_.any(nowhere) && env_.thread() == 0) b_.nowhere = 1;
    return true;
  }

  // One loop's window of the instruction's chunk.
  RONDO_HOST_DEVICE_INLINE Operands operands_of(const WindowStep& s) const {
    const uint64_t loop_elems = b_.program.loop_elems, skip = standing_.loop * loop_elems;
    Operands o{};
    if (skip >= s.num_elems) return o;
    const uint64_t rest = s.num_elems - skip;
    o.num_elems = rest < loop_elems ? rest : loop_elems;
    if ((verb_bits(s.verb) & kVerbSrc) != 0) o.src = at(s.src_buffer, s.src_first_elem + skip);
    if ((verb_bits(s.verb) & kVerbDst) != 0) o.dst = at(s.dst_buffer, s.dst_first_elem + skip);
    o.position = s.src_position;
    o.copies = (s.bits & kStepCopies) != 0;
    o.prescale = (s.bits & kStepPrescale) != 0;
    o.is_final = (s.flags & kFlagFinal) != 0;
    o.as_wire = (s.bits & kStepAsWire) != 0;
    o.src_type = type_in(s.src_buffer);
    o.dst_type = type_in(s.dst_buffer);
    o.fingerprint = Base::fingerprint(s.fingerprint);
    return o;
  }
  RONDO_HOST_DEVICE_INLINE Dtype type_in(uint8_t buffer) const {
    const DeviceProgram& p = b_.program;
    return static_cast<Dtype>(buffer == static_cast<uint8_t>(Buffer::kIn)    ? p.own_type
                              : buffer == static_cast<uint8_t>(Buffer::kOut) ? p.out_type
                                                                             : p.wire_type);
  }

  RONDO_HOST_DEVICE_INLINE bool chunk(const WindowStep& s) {
    Operands o = operands_of(s);
    if (o.src == o.dst && s.num_recv == 0 && o.copies) o.dst = nullptr;  // in place
    const StepShape shape{s.num_recv, s.num_send, o.src != nullptr, o.dst != nullptr, index_of(s)};
    return Base::message(shape, o);
  }

  // Reads and writes the peers' own buffers, whose addresses came with their entry credits.
  RONDO_HOST_DEVICE_INLINE bool direct(const WindowStep& s) {
    Operands o = operands_of(s);
    if (o.num_elems == 0) {
      if (env_.thread() == 0) b_.moved = false;
      return true;
    }
    const DeviceProgram& p = b_.program;
    const DeviceComm& comm = *b_.call.comm;
    if (o.src == o.dst && s.num_recv == 0 && !o.prescale) o.dst = nullptr;
    const uint16_t* ranks = index_of(s);
    const StepShape shape{s.num_recv, s.num_send, o.src != nullptr, o.dst != nullptr, ranks};
    ReduceStep r = Base::reduce_step(shape, o);
    // In a call of mixed types a peer's input must be converted to the wire type first; its result has the right type.
    const bool mixed = p.row != 0, converts = mixed && s.src_buffer == static_cast<uint8_t>(Buffer::kIn);
    if (converts) {
      r.raw = true;
      r.own_type = static_cast<Dtype>(p.own_type);
    }
    const uint32_t elem_bytes = p.elem_bytes[s.src_buffer];
    const uint64_t skip = standing_.loop * p.loop_elems;
    const PeerBuffers* peers = comm.peers + uint64_t{channel_} * comm.num_ranks;
    Base::put_own(shape, r, o);
    for (uint32_t i = env_.thread(); i < uint32_t{s.num_recv} + s.num_send; i += env_.threads()) {
      const PeerBuffers& peer = peers[ranks[i]];
      if (i < s.num_recv) {
        const std::byte* buffer = s.src_buffer == static_cast<uint8_t>(Buffer::kOut) ? peer.out : peer.in;
        b_.sources[Base::source_place(r, i)] = buffer + (s.src_first_elem + skip) * elem_bytes;
      } else {
        b_.sinks[i - s.num_recv + (r.has_dst ? 1 : 0)] = peer.out + (s.dst_first_elem + skip) * elem_bytes;
      }
    }
    env_.sync();
    Base::reduce(r, mixed ? !converts : o.copies, elem_bytes);
    env_.sync();
    return true;
  }

  uint32_t window_first_ = 0, window_end_ = 0, index_first_ = 0;
};

}  // namespace rondo
