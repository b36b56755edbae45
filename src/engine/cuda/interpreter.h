// The interpreter: a block runs one lane of a unit's calls in one channel (device_program.h). The same semantics as the
// host's executor (engine/executor.cc), for many threads that may wait:
//
//     for each call of the unit
//       load the lane's ends; for each loop, for each instruction
//         poll      thread i waits for port i: a message of each receive, room in each send     | all threads agree to
//         gather    tables of sources and sinks: the own chunk, rings, slots, peers' buffers    | go on, or leave
//         move      all threads: reduce or copy (reduce_copy.h), or line by line (move_lines.h)
//         post      thread i posts or releases port i
//       store the ends; the lanes of the channel meet
//
// One text for host and device: Env brings threads, barriers, clock and memory orders, Ops the reduction.
//   Env::Mem, kPollEvery, kLineThreads      memory policy; tries between looks at the control words; threads of a line
//   env.thread(), threads(), block()        who I am
//   env.sync(), env.any(bool)               barriers of the block; true if it is true of any thread
//   env.line_any(bool)                      the same among the threads of a line
//   env.now_ns(), env.relax(tries)
//
// Invariants: between the barriers of an instruction an end belongs to the thread that handles its port. What decides
// the way through the code is the same for all threads: instructions, extents, and what env.any() says.
// After a failure the block leaves where it stands: the communicator's ends are of no use any more.
#pragma once

#include <type_traits>

#include "engine/cuda/block_state.h"
#include "engine/cuda/move_lines.h"
#include "engine/cuda/waiting.h"
#include "kernels/cuda/reduce_copy.h"

namespace rondo {

template <class Env, class Ops>
class Interpreter {
  using Mem = typename Env::Mem;
  using State = BlockState<Mem>;
  using ReduceStep = device_kernels::ReduceStep;

 public:
  RONDO_HOST_DEVICE_INLINE Interpreter(Env& env, State& state, const LaunchArgs& args)
      : env_(env), b_(state), args_(args) {}

  RONDO_HOST_DEVICE_INLINE void run() {
    const DeviceUnit* units = args_.more_units != nullptr ? args_.more_units : args_.units;
    const DeviceCall* calls = args_.more_calls != nullptr ? args_.more_calls : args_.calls;
    uint32_t u = 0;
    while (u + 1 < args_.num_units && env_.block() >= units[u + 1].first_block) ++u;
    const DeviceUnit& unit = units[u];
    const uint32_t place = env_.block() - unit.first_block;
    if (place >= unit.num_lanes * unit.num_channels) return;
    lane_ = place % unit.num_lanes;
    channel_ = place / unit.num_lanes;
    for (uint32_t i = 0; i < unit.num_calls; ++i) {
      call_ = unit.first_call + i;
      load_call(calls[call_]);
      const DeviceProgram& p = b_.program;
      if (lane_ < p.num_lanes && channel_ < p.num_channels && p.num_loops != 0 && !run_call()) return;
      const bool last = i + 1 == unit.num_calls;
      if (unit.num_lanes > 1 && (!last || p.waits) && !meet(unit.num_lanes)) return;
    }
  }

 private:
  // ---- a call -------------------------------------------------------------------------------------------------------
  RONDO_HOST_DEVICE_INLINE void load_call(const DeviceCall& call) {
    env_.sync();  // nobody looks at the last one any more
    copy_words(&b_.call, &call, sizeof call);
    copy_words(&b_.program, call.program, sizeof(DeviceProgram));
    if (env_.thread() == 0) {
      const Dtype type = static_cast<Dtype>(call.program->own_type);
      b_.scale = 0;
      if (call.program->premul)
        b_.scale = call.premul_at != nullptr
                       ? Ops::scale_from_element(static_cast<const std::byte*>(call.premul_at), type)
                       : device_kernels::load_aligned<uint64_t>(call.premul);
    }
    env_.sync();
    standing_ = {b_.call.comm, b_.call.control, b_.call.deadline_ns, call_, lane_, channel_, 0, 0};
  }

  RONDO_HOST_DEVICE_INLINE void copy_words(void* to, const void* from, uint32_t bytes) {
    for (uint32_t i = env_.thread() * 4; i < bytes; i += env_.threads() * 4)
      device_kernels::store_aligned(static_cast<std::byte*>(to) + i,
                                    device_kernels::load_aligned<uint32_t>(static_cast<const std::byte*>(from) + i));
  }

  RONDO_HOST_DEVICE_INLINE bool run_call() {
    const DeviceProgram& p = b_.program;
    load_ends();
    const uint32_t steps = p.lane_first[lane_ + 1] - p.lane_first[lane_];
    window_first_ = 0;
    window_end_ = 0;
    completed_ = 0;
    for (uint64_t loop = 0; loop < p.num_loops; ++loop)
      for (uint32_t pc = 0; pc < steps; ++pc) {
        if (pc < window_first_ || pc >= window_end_) load_window(pc, steps);
        standing_.loop = loop;
        standing_.pc = pc;
        if (!run_step(b_.window[pc - window_first_])) return false;
      }
    store_ends();
    return true;
  }

  // From the channel's tables, and back into them.
  RONDO_HOST_DEVICE_INLINE void load_ends() {
    const uint16_t* list = b_.call.program->index() + b_.program.lane_ends[lane_];
    const DeviceComm& comm = *b_.call.comm;
    num_reads_ = list[0];
    num_writes_ = list[1];
    for (uint32_t i = env_.thread(); i < num_reads_; i += env_.threads()) {
      const DeviceReadEnd& end = comm.reads[channel_ * comm.read_stride + list[2 + i]];
      b_.read_at[i] = list[2 + i];
      b_.readers[i] = FifoReader<Mem, SoloGroup>(end.view, end.counter, end.step);
      b_.read_slot_bytes[i] = end.slot_bytes;
      b_.read_peers[i] = end.peer;
    }
    for (uint32_t i = env_.thread(); i < num_writes_; i += env_.threads()) {
      const DeviceWriteEnd& end = comm.writes[channel_ * comm.write_stride + list[2 + num_reads_ + i]];
      b_.write_at[i] = list[2 + num_reads_ + i];
      b_.writers[i].load_from(end);
      b_.write_slot_bytes[i] = end.slot_bytes;
    }
    env_.sync();
  }
  RONDO_HOST_DEVICE_INLINE void store_ends() {
    const DeviceComm& comm = *b_.call.comm;
    for (uint32_t i = env_.thread(); i < num_reads_; i += env_.threads())
      comm.reads[channel_ * comm.read_stride + b_.read_at[i]].step = b_.readers[i].step();
    for (uint32_t i = env_.thread(); i < num_writes_; i += env_.threads())
      b_.writers[i].store_to(comm.writes[channel_ * comm.write_stride + b_.write_at[i]]);
    env_.sync();
  }

  // Instructions from pc on, with the channel's share of each.
  RONDO_HOST_DEVICE_INLINE void load_window(uint32_t pc, uint32_t steps) {
    const DeviceProgram& p = b_.program;
    env_.sync();
    window_first_ = pc;
    window_end_ = steps - pc < State::kWindowSteps ? steps : pc + State::kWindowSteps;
    const DeviceStep* from = b_.call.program->steps() + p.lane_first[lane_] + pc;
    for (uint32_t i = env_.thread(); i < window_end_ - pc; i += env_.threads()) {
      DeviceStep s = from[i];
      const Extent share = channel_extent(s.num_elems, p.num_channels, channel_, p.wire_bytes);
      s.src_first_elem += share.first_elem;
      s.dst_first_elem += share.first_elem;
      s.num_elems = share.num_elems;
      b_.window[i] = s;
    }
    index_first_ = from[0].first_index;
    const uint16_t* index = b_.call.program->index() + index_first_;
    const DeviceStep& last = from[window_end_ - pc - 1];
    const uint32_t entries = last.first_index + last.num_recv + last.num_send - index_first_;
    for (uint32_t i = env_.thread(); i < entries && i < State::kWindowIndex; i += env_.threads())
      b_.index[i] = index[i];
    env_.sync();
  }
  RONDO_HOST_DEVICE_INLINE const uint16_t* index_of(const DeviceStep& s) const {
    const uint32_t at = s.first_index - index_first_;
    return at + s.num_recv + s.num_send <= State::kWindowIndex ? b_.index + at
                                                               : b_.call.program->index() + s.first_index;
  }

  // All lanes of the unit in this channel: the ends that one has stored are there for the others.
  RONDO_HOST_DEVICE_INLINE bool meet(uint32_t num_lanes) {
    bool ok = true;
    if (env_.thread() == 0) {
      uint64_t* m = b_.call.comm->meetings + channel_ * 8;
      const uint64_t meeting = Mem::load_acquire(m + 1);
      if (Mem::fetch_add(m, 1) + 1 == num_lanes) {
        Mem::store_relaxed(m, 0);
        LaneProgress* lanes = b_.call.comm->lanes + channel_ * DeviceProgram::kMaxLanes;
        for (uint32_t l = 0; l < num_lanes; ++l) Mem::store_relaxed(&lanes[l].completed, 0);
        Mem::store_release(m + 1, meeting + 1);
      } else {
        ok = wait_until<false>(env_, standing_, -1, false, [&] {
          return Mem::load_acquire(m + 1) != meeting ? Arrival::kReady : Arrival::kNotYet;
        });
      }
    }
    return !env_.any(!ok);
  }

  // ---- an instruction -----------------------------------------------------------------------------------------------
  RONDO_HOST_DEVICE_INLINE bool run_step(const DeviceStep& s) {
    const bool traced = args_.trace.records != nullptr;
    const uint64_t begin_ns = traced ? env_.now_ns() : 0;
    waited_ns_ = 0;
    bool ok;
    if (s.verb == Verb::kWait) ok = wait_for_lane(s);
    else if ((s.flags & kFlagCredit) != 0) ok = credit(s, begin_ns);
    else if ((s.flags & kFlagDirect) != 0) ok = direct(s);
    else ok = message(s, begin_ns);
    if (!ok) return false;
    if (env_.thread() != 0) return true;
    if (b_.program.waits) {
      LaneProgress& mine = b_.call.comm->lanes[channel_ * DeviceProgram::kMaxLanes + lane_];
      Mem::store_release(&mine.completed, ++completed_);
    }
    if (traced) write_record(begin_ns);
    return true;
  }

  RONDO_HOST_DEVICE_INLINE void write_record(uint64_t begin_ns) {
    const DeviceTrace& t = args_.trace;
    DeviceRecord r{};
    r.begin_ns = begin_ns;
    r.end_ns = env_.now_ns();
    r.wait_ns = waited_ns_ < UINT32_MAX ? static_cast<uint32_t>(waited_ns_) : UINT32_MAX;
    r.call = static_cast<uint16_t>(call_);
    r.pc = static_cast<uint16_t>(standing_.pc);
    r.lane = static_cast<uint8_t>(lane_);
    r.channel = static_cast<uint8_t>(channel_);
    r.loop = static_cast<uint32_t>(standing_.loop);
    t.records[Mem::fetch_add(t.next, 1) & (t.capacity - 1)] = r;
  }

  RONDO_HOST_DEVICE_INLINE bool wait_for_lane(const DeviceStep& s) {
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

  // Thread i waits for port i: `arrived(reader)` of receives, `room(writer)` of sends; each fills in its tables.
  template <class OfRead, class OfWrite>
  RONDO_HOST_DEVICE_INLINE bool poll(const DeviceStep& s, uint64_t begin_ns, OfRead of_read, OfWrite of_write) {
    const uint16_t* index = index_of(s);
    const uint32_t ports = uint32_t{s.num_recv} + s.num_send;
    bool ok = true;
    for (uint32_t i = env_.thread(); i < ports && ok; i += env_.threads())
      ok = i < s.num_recv ? of_read(i, index[i]) : of_write(i - s.num_recv, index[i]);
    if (env_.any(!ok)) return false;
    if (begin_ns != 0) waited_ns_ = env_.now_ns() - begin_ns;
    return true;
  }
  template <class OfRead, class OfWrite>
  RONDO_HOST_DEVICE_INLINE void post(const DeviceStep& s, OfRead of_read, OfWrite of_write) {
    const uint16_t* index = index_of(s);
    const uint32_t ports = uint32_t{s.num_recv} + s.num_send;
    for (uint32_t i = env_.thread(); i < ports; i += env_.threads()) {
      if (i < s.num_recv) of_read(b_.readers[index[i]]);
      else of_write(b_.writers[index[i]]);
    }
    env_.sync();  // an end may be handled by another thread in the next instruction
  }
  RONDO_HOST_DEVICE_INLINE bool wait_room(FifoWriter<Mem, SoloGroup>& w) {
    return wait_until<false>(env_, standing_, -1, true, [&] { return w.room(1) ? Arrival::kReady : Arrival::kNotYet; });
  }

  RONDO_HOST_DEVICE_INLINE bool take_address(Rank peer, const PeerBuffers& theirs) {
    const DeviceComm& comm = *b_.call.comm;
    std::byte *in, *out;
    if (!resolve_peer(comm, peer, theirs.in, in) || !resolve_peer(comm, peer, theirs.out, out)) {
      report_failure(env_, standing_, DeviceFailure::kUnreachable, peer, false, 0);
      return false;
    }
    comm.peers[uint64_t{channel_} * comm.num_ranks + static_cast<uint32_t>(peer)] = {in, out};
    return true;
  }

  // A message without elements, in a line alone. Of a direct program it says where the sender's buffers stand.
  RONDO_HOST_DEVICE_INLINE bool credit(const DeviceStep& s, uint64_t begin_ns) {
    const bool carries = b_.program.direct;
    const bool arrived = poll(
        s, begin_ns,
        [&](uint32_t, uint32_t end) {
          FifoReader<Mem, SoloGroup>& r = b_.readers[end];
          if (!wait_until<false>(env_, standing_, b_.read_peers[end], false,
                                 [&] { return r.arrived(1, s.fingerprint); }))
            return false;
          return !carries || take_address(b_.read_peers[end], *reinterpret_cast<const PeerBuffers*>(r.line(0)));
        },
        [&](uint32_t, uint32_t end) {
          FifoWriter<Mem, SoloGroup>& w = b_.writers[end];
          if (!wait_room(w)) return false;
          if (carries) *reinterpret_cast<PeerBuffers*>(w.line(0)) = {b_.call.in, b_.call.out};
          return true;
        });
    if (!arrived) return false;
    post(
        s, [](auto& r) { r.release(1); }, [&](auto& w) { w.post(1, s.fingerprint); });
    return true;
  }

  RONDO_HOST_DEVICE_INLINE std::byte* at(uint8_t buffer, uint64_t elem) const {
    const uint64_t offset = elem * b_.program.elem_bytes[buffer];
    if (buffer == static_cast<uint8_t>(Buffer::kIn)) return const_cast<std::byte*>(b_.call.in) + offset;
    if (buffer == static_cast<uint8_t>(Buffer::kOut)) return b_.call.out + offset;
    return b_.call.scratch + offset;
  }

  // One message's worth of a chunk: where it lies in the rank's own buffers.
  struct Piece {
    uint64_t skip, num_elems;
    std::byte* src;  // nullptr: the verb has none
    std::byte* dst;
  };
  RONDO_HOST_DEVICE_INLINE Piece piece_of(const DeviceStep& s) const {
    const uint64_t loop_elems = b_.program.loop_elems;
    Piece piece{standing_.loop * loop_elems, 0, nullptr, nullptr};
    if (piece.skip >= s.num_elems) return piece;
    const uint64_t rest = s.num_elems - piece.skip;
    piece.num_elems = rest < loop_elems ? rest : loop_elems;
    if ((verb_bits(s.verb) & kVerbSrc) != 0) piece.src = at(s.src_buffer, s.src_first_elem + piece.skip);
    if ((verb_bits(s.verb) & kVerbDst) != 0) piece.dst = at(s.dst_buffer, s.dst_first_elem + piece.skip);
    return piece;
  }

  // What the kernels are asked for.
  RONDO_HOST_DEVICE_INLINE ReduceStep reduce_step(const DeviceStep& s, const Piece& piece) const {
    const DeviceProgram& p = b_.program;
    ReduceStep r;
    r.src = b_.sources;
    r.dst = b_.sinks;
    r.num_src = s.num_recv + (piece.src != nullptr ? 1 : 0);
    r.num_dst = s.num_send + (piece.dst != nullptr ? 1 : 0);
    r.num_elems = piece.num_elems;
    r.own = ReduceStep::kNoOwn;
    if (piece.src != nullptr) r.own = s.src_position < s.num_recv ? s.src_position : s.num_recv;
    r.scale_own = (s.bits & kStepPrescale) != 0;
    r.divide_by = (s.flags & kFlagFinal) != 0 ? p.divide_by : 0;
    r.scale = b_.scale;
    r.own_type = type_in(s.src_buffer);
    r.wire_type = static_cast<Dtype>(p.wire_type);
    r.dst_type = type_in(s.dst_buffer);
    r.has_dst = piece.dst != nullptr;
    r.result_as_wire = (s.bits & kStepAsWire) != 0;
    r.raw = false;
    return r;
  }
  RONDO_HOST_DEVICE_INLINE Dtype type_in(uint8_t buffer) const {
    const DeviceProgram& p = b_.program;
    return static_cast<Dtype>(buffer == static_cast<uint8_t>(Buffer::kIn)    ? p.own_type
                              : buffer == static_cast<uint8_t>(Buffer::kOut) ? p.out_type
                                                                             : p.wire_type);
  }

  // Thread 0 puts the own chunk into the tables, thread i its port: receive i stands behind the own source if that
  // comes before it in the order of addition.
  RONDO_HOST_DEVICE_INLINE void put_own(const ReduceStep& r, const Piece& piece) {
    if (env_.thread() != 0) return;
    if (piece.src != nullptr) b_.sources[r.own] = piece.src;
    if (piece.dst != nullptr) b_.sinks[0] = piece.dst;
  }
  static RONDO_HOST_DEVICE_INLINE uint32_t source_place(const ReduceStep& r, uint32_t receive) {
    return receive + (receive >= r.own ? 1 : 0);
  }
  RONDO_HOST_DEVICE_INLINE device_kernels::Threads threads() const { return {env_.thread(), env_.threads()}; }

  RONDO_HOST_DEVICE_INLINE void reduce(ReduceStep& r, bool copies, uint32_t elem_bytes) {
    if constexpr (kReduces) {
      if (!copies) return device_kernels::reduce_copy<Ops>(r, threads());
    }
    r.num_elems *= elem_bytes;
    device_kernels::copy_bytes(r, threads());
  }

  RONDO_HOST_DEVICE_INLINE bool message(const DeviceStep& s, uint64_t begin_ns) {
    Piece piece = piece_of(s);
    if (piece.num_elems == 0) return true;  // an empty window: no message, on either end
    const DeviceProgram& p = b_.program;
    const bool changes = (s.bits & kStepCopies) == 0;
    if (piece.src == piece.dst && s.num_recv == 0 && !changes) piece.dst = nullptr;  // in place
    if (p.protocol != DeviceProtocol::kSimple) return line_message(s, piece, begin_ns);
    ReduceStep r = reduce_step(s, piece);
    const uint32_t bytes = static_cast<uint32_t>(piece.num_elems * p.wire_bytes);
    put_own(r, piece);
    const bool arrived = poll(
        s, begin_ns,
        [&](uint32_t i, uint32_t end) {
          FifoReader<Mem, SoloGroup>& reader = b_.readers[end];
          if (!wait_until<false>(env_, standing_, b_.read_peers[end], false,
                                 [&] { return reader.arrived(1, s.fingerprint); }))
            return false;
          b_.sources[source_place(r, i)] = reader.data();
          return true;
        },
        [&](uint32_t i, uint32_t end) {
          FifoWriter<Mem, SoloGroup>& w = b_.writers[end];
          if (!wait_until<false>(env_, standing_, -1, true,
                                 [&] { return w.room_for(bytes, p.lap_bytes) ? Arrival::kReady : Arrival::kNotYet; }))
            return false;
          b_.sinks[i + (r.has_dst ? 1 : 0)] = w.data();
          return true;
        });
    if (!arrived) return false;
    reduce(r, !changes, p.wire_bytes);
    env_.sync();  // all of it is read and written
    post(
        s, [](auto& reader) { reader.release(1); }, [&](auto& w) { w.post_data(bytes, s.fingerprint); });
    return true;
  }

  // Lines bring their own flags: what is polled here is room alone.
  RONDO_HOST_DEVICE_INLINE bool line_message(const DeviceStep& s, const Piece& piece, uint64_t begin_ns) {
    const DeviceProgram& p = b_.program;
    const bool ll = p.protocol == DeviceProtocol::kLl, copies = (s.bits & kStepCopies) != 0;
    ReduceStep r = reduce_step(s, piece);
    put_own(r, piece);
    const uint32_t first_send = r.has_dst ? 1 : 0;
    const bool ready = poll(
        s, begin_ns,
        [&](uint32_t i, uint32_t end) {
          const FifoReader<Mem, SoloGroup>& reader = b_.readers[end];
          const uint32_t place = source_place(r, i);
          b_.sources[place] =
              reader.view().data + slot_offset(reader.step(), reader.view().num_lines, b_.read_slot_bytes[end]);
          b_.source_flags[place] = ll ? make_ll_flag(s.fingerprint, reader.step()) : reader.step();
          return true;
        },
        [&](uint32_t i, uint32_t end) {
          FifoWriter<Mem, SoloGroup>& w = b_.writers[end];
          if (!wait_room(w)) return false;
          b_.sinks[i + first_send] = w.view().data + slot_offset(w.step(), w.num_lines(), b_.write_slot_bytes[end]);
          b_.sink_flags[i + first_send] =
              ll ? make_ll_flag(s.fingerprint, w.step()) : make_flag(s.fingerprint, w.step());
          return true;
        });
    if (!ready) return false;
    const LineMessage m{index_of(s), r.own, r.has_dst, piece.num_elems * p.wire_bytes, s.fingerprint};
    bool ok;
    if (kReduces && !copies) {
      ok = move_lines<Ops>(s, r, m, ll);
    } else {
      r.num_elems = m.bytes;
      ok = move_lines<device_kernels::BytesOps>(s, r, m, ll);
    }
    if (env_.any(!ok)) return false;
    post(
        s, [](auto& reader) { reader.release(1); }, [](auto& w) { w.advance(1); });
    return true;
  }
  template <class LineOps>
  RONDO_HOST_DEVICE_INLINE bool move_lines(const DeviceStep& s, const ReduceStep& r, const LineMessage& m, bool ll) {
    LineMover<Env, LineOps> mover{env_, b_, standing_, r, m};
    if (!ll) return mover.move_ll128();
    if (!mover.move_ll()) return false;
    const uint16_t* sends = index_of(s) + s.num_recv;
    for (uint32_t i = 0; i < s.num_send; ++i) {
      const auto& w = b_.writers[sends[i]];
      const uint32_t d = i + (r.has_dst ? 1 : 0);
      if (ll_fills(w.step(), w.num_lines()))
        mover.fill_ll(b_.sinks[d], b_.write_slot_bytes[sends[i]], static_cast<uint32_t>(b_.sink_flags[d]));
    }
    return true;
  }

  // From and to the peers' own buffers, which their entry credits have named.
  RONDO_HOST_DEVICE_INLINE bool direct(const DeviceStep& s) {
    Piece piece = piece_of(s);
    if (piece.num_elems == 0) return true;
    const DeviceProgram& p = b_.program;
    const DeviceComm& comm = *b_.call.comm;
    if (piece.src == piece.dst && s.num_recv == 0 && (s.bits & kStepPrescale) == 0) piece.dst = nullptr;
    ReduceStep r = reduce_step(s, piece);
    // A peer's input in a call of mixed types is not yet what would have travelled; its result is what shall arrive.
    const bool mixed = p.row != 0, converts = mixed && s.src_buffer == static_cast<uint8_t>(Buffer::kIn);
    if (converts) {
      r.raw = true;
      r.own_type = static_cast<Dtype>(p.own_type);
    }
    const uint32_t elem_bytes = p.elem_bytes[s.src_buffer];
    const uint16_t* ranks = index_of(s);
    const PeerBuffers* peers = comm.peers + uint64_t{channel_} * comm.num_ranks;
    put_own(r, piece);
    for (uint32_t i = env_.thread(); i < uint32_t{s.num_recv} + s.num_send; i += env_.threads()) {
      const PeerBuffers& peer = peers[ranks[i]];
      if (i < s.num_recv) {
        const std::byte* buffer = s.src_buffer == static_cast<uint8_t>(Buffer::kOut) ? peer.out : peer.in;
        b_.sources[source_place(r, i)] = buffer + (s.src_first_elem + piece.skip) * elem_bytes;
      } else {
        b_.sinks[i - s.num_recv + (r.has_dst ? 1 : 0)] = peer.out + (s.dst_first_elem + piece.skip) * elem_bytes;
      }
    }
    env_.sync();
    reduce(r, mixed ? !converts : (s.bits & kStepCopies) != 0, elem_bytes);
    env_.sync();
    return true;
  }

  static constexpr bool kReduces = !std::is_same_v<Ops, device_kernels::BytesOps>;

  Env& env_;
  State& b_;
  const LaunchArgs& args_;
  Standing standing_{};
  uint32_t lane_ = 0, channel_ = 0, call_ = 0;
  uint32_t num_reads_ = 0, num_writes_ = 0;
  uint32_t window_first_ = 0, window_end_ = 0, index_first_ = 0;
  uint64_t completed_ = 0;  // thread 0
  uint64_t waited_ns_ = 0;
};

}  // namespace rondo
