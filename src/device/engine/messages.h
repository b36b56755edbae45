// Messages: processes one message with resolved operands.
//
//     poll      each port's thread waits for it: data of a receive, space of a send. Then all threads agree to go on or
//               to leave
//     gather    tables of the sources, the sinks (the own chunk, rings, slots) and the later stores
//     move      all threads: reduce or copy (reduce_copy.h), or line by line (move_lines.h)
//     post      one of the last threads for each port: the store of the flag or the counter
//
// The connection of a port has a ring or slots of lines (slot_bytes != 0). In a program of LL or LL128 each port may
// have either: connections between hosts have rings. In a Simple program all have rings.
//
// Invariant: until the first barrier of a message an end belongs to the thread that polls its port. That thread already
// advances it. Afterwards no thread changes it until the next message.
#pragma once

#include <type_traits>

#include "device/engine/block_calls.h"
#include "device/engine/move_lines.h"
#include "kernels/cuda/reduce_copy.h"

namespace rondo {

/// One loop's window of a chunk: its place in the rank's own buffers, and its processing.
struct Operands {
  uint64_t num_elems;
  std::byte* src;  // if the shape has it
  std::byte* dst;
  uint32_t position;         // order of addition: the number of receives before the own source
  bool copies;               // one source, copied unchanged
  bool prescale, is_final;   // premul_sum scales the own source; avg divides
  bool as_wire;              // mixed types: rounded to the wire type first
  Dtype src_type, dst_type;  // mixed types
  uint32_t fingerprint;
};

template <class Env, class Ops>
class Messages : public BlockCalls<Env, Ops> {
 protected:
  using Base = BlockCalls<Env, Ops>;
  using Mem = typename Env::Mem;
  using ReduceStep = device_kernels::ReduceStep;
  using Base::args_, Base::b_, Base::channel_, Base::env_, Base::lane_, Base::standing_, Base::turn_;
  static constexpr bool kReduces = !std::is_same_v<Ops, device_kernels::BytesOps>;

  RONDO_HOST_DEVICE_INLINE Messages(Env& env, BlockState<Mem>& state, const LaunchArgs& args)
      : Base(env, state, args) {}

  /// Returns false if the block must leave.
  RONDO_HOST_DEVICE_INLINE bool message(const StepShape& shape, const Operands& o) {
    if (o.num_elems == 0) {  // an empty window: no message, on either end
      if (env_.thread() == 0) b_.moved = false;
      return true;
    }
    const DeviceProgram& p = b_.program;
    const uint32_t bytes = static_cast<uint32_t>(o.num_elems * p.wire_bytes);
    const uint32_t first_send = shape.has_dst ? 1 : 0;
    ReduceStep r = reduce_step(shape, o);
    put_own(shape, r, o);
    const bool ready = poll(
        shape, [&](uint32_t i, uint32_t end, FifoPost& post) { return take_source(source_place(r, i), end, o, post); },
        [&](uint32_t i, uint32_t end, FifoPost& post) { return take_sink(first_send + i, end, bytes, o, post); });
    if (!ready) return false;
    if (p.protocol == DeviceProtocol::kSimple) {
      reduce(r, o.copies, p.wire_bytes);
      env_.sync();  // all data is read and written
    } else if (env_.any(!move_lines(shape, r, o.copies, bytes))) {
      return false;
    }
    post(shape.num_recv + shape.num_send);
    return true;
  }

  /// Calls of_read(i, end, post) and of_write(i, end, post) for each port. They wait for it, advance its end by one
  /// step, and set the store that post() does later.
  template <class OfRead, class OfWrite>
  RONDO_HOST_DEVICE_INLINE bool poll(const StepShape& shape, OfRead of_read, OfWrite of_write) {
    const uint32_t recvs = shape.num_recv, ports = recvs + shape.num_send;
    turn_ ^= 1;
    FifoPost* posts = b_.posts[turn_];
    const bool ok = shape.handle_mine(
        env_,
        [&](uint32_t i, uint32_t end) {
          if (!of_read(i, end, posts[i])) return false;
          if (Base::traced()) Base::note_number(i, recvs, ports, b_.readers[end].step() - 1);
          return true;
        },
        [&](uint32_t i, uint32_t end) {
          if (!of_write(i, end, posts[recvs + i])) return false;
          if (Base::traced()) Base::note_number(recvs + i, recvs, ports, b_.writers[end].step() - 1);
          return true;
        });
    if (env_.any(!ok)) return false;
    if (Base::traced()) Base::end_wait(ports);
    return true;
  }
  /// Posts the first `ports` ports, after a barrier, except sends in lines. A fence takes long. Therefore the last
  /// threads post, while the first ones poll the next message, whose stores go to the other table. The readers'
  /// counters need the fence too: without it the memory model does not order the loads of other threads before this
  /// store.
  RONDO_HOST_DEVICE_INLINE void post(uint32_t ports) {
    RONDO_NO_UNROLL
    for (uint32_t i = env_.threads() - 1 - env_.thread(); i < ports; i += env_.threads()) {
      const FifoPost p = b_.posts[turn_][i];
      if (p.word == nullptr) continue;
      Mem::fence();
      Mem::store_fenced(p.word, p.value);
    }
  }
  RONDO_HOST_DEVICE_INLINE bool wait_room(FifoWriter<Mem>& w) {
    return wait_until<false>(env_, standing_, -1, true, [&] { return w.room(1) ? Arrival::kReady : Arrival::kNotYet; });
  }

  RONDO_HOST_DEVICE_INLINE std::byte* at(uint8_t buffer, uint64_t elem) const {
    const uint64_t offset = elem * b_.program.elem_bytes[buffer];
    if (buffer == static_cast<uint8_t>(Buffer::kIn)) return const_cast<std::byte*>(b_.call.in) + offset;
    if (buffer == static_cast<uint8_t>(Buffer::kOut)) return b_.call.out + offset;
    return b_.call.scratch + offset;
  }

  /// Arguments for the kernels.
  RONDO_HOST_DEVICE_INLINE ReduceStep reduce_step(const StepShape& shape, const Operands& o) const {
    ReduceStep r;
    r.src = b_.sources;
    r.dst = b_.sinks;
    r.num_src = shape.num_recv + (shape.has_src ? 1 : 0);
    r.num_dst = shape.num_send + (shape.has_dst ? 1 : 0);
    r.num_elems = o.num_elems;
    r.own = ReduceStep::kNoOwn;
    if (shape.has_src) r.own = o.position > shape.num_recv ? shape.num_recv : o.position;
    r.scale_own = o.prescale;
    r.divide_by = o.is_final ? b_.program.divide_by : 0;
    r.scale = b_.scale;
    r.own_type = o.src_type;
    r.wire_type = static_cast<Dtype>(b_.program.wire_type);
    r.dst_type = o.dst_type;
    r.has_dst = shape.has_dst;
    r.result_as_wire = o.as_wire;
    r.raw = false;
    return r;
  }

  /// Thread 0 adds the own chunk to the tables, and each port's thread its entry. Receive i comes after the own source
  /// if that is earlier in the order of addition.
  RONDO_HOST_DEVICE_INLINE void put_own(const StepShape& shape, const ReduceStep& r, const Operands& o) {
    if (env_.thread() != 0) return;
    if (shape.has_src) b_.sources[r.own] = o.src, b_.source_flags[r.own] = 0;
    if (shape.has_dst) b_.sinks[0] = o.dst;
  }
  static RONDO_HOST_DEVICE_INLINE uint32_t source_place(const ReduceStep& r, uint32_t receive) {
    return receive + (receive >= r.own ? 1 : 0);
  }

  RONDO_HOST_DEVICE_INLINE void reduce(ReduceStep& r, bool copies, uint32_t elem_bytes) {
    const device_kernels::Threads threads{env_.thread(), env_.threads()};
    if (moves_bytes(copies)) {
      r.num_elems *= elem_bytes;
      device_kernels::copy_bytes(r, threads);
    } else if constexpr (kReduces) {
      device_kernels::reduce_copy<Ops>(r, threads);
    }
  }

 private:
  static RONDO_HOST_DEVICE_INLINE bool moves_bytes(bool copies) { return !kReduces || copies; }

  // The flag of the lines of a connection's step. Never 0.
  RONDO_HOST_DEVICE_INLINE uint64_t line_flag(uint32_t fingerprint, uint64_t step) const {
    return b_.program.protocol == DeviceProtocol::kLl ? make_ll_flag(fingerprint, step) : make_flag(fingerprint, step);
  }
  // A source: data in a ring, which must have arrived, or a slot of lines, which the threads that read them wait for.
  RONDO_HOST_DEVICE_INLINE bool take_source(uint32_t place, uint32_t end, const Operands& o, FifoPost& post) {
    FifoReader<Mem>& reader = b_.readers[end];
    const uint32_t slot_bytes = b_.read_slot_bytes[end];
    if (slot_bytes == 0) {
      if (!wait_until<false>(env_, standing_, b_.read_peers[end], false,
                             [&] { return reader.arrived(1, o.fingerprint); }))
        return false;
      b_.sources[place] = reader.data();
      b_.source_flags[place] = 0;
    } else {
      b_.sources[place] = reader.view().data + slot_offset(reader.step(), reader.view().num_lines, slot_bytes);
      b_.source_flags[place] = line_flag(o.fingerprint, reader.step());
    }
    post = reader.take(1);
    return true;
  }
  // A sink: space in a ring, whose flag post() stores, or a slot of lines, which carry their flags themselves.
  RONDO_HOST_DEVICE_INLINE bool take_sink(uint32_t place, uint32_t end, uint32_t bytes, const Operands& o,
                                          FifoPost& post) {
    FifoWriter<Mem>& w = b_.writers[end];
    const uint32_t slot_bytes = b_.write_slot_bytes[end];
    if (!wait_until<false>(env_, standing_, -1, true, [&] {
          const bool room = slot_bytes == 0 ? w.room_for(bytes, b_.call.counts.lap_bytes) : w.room(1);
          return room ? Arrival::kReady : Arrival::kNotYet;
        }))
      return false;
    if (slot_bytes == 0) {
      b_.sinks[place] = w.data();
      b_.sink_flags[place] = 0;
      post = w.take_data(bytes, o.fingerprint);
    } else {
      b_.sinks[place] = w.view().data + slot_offset(w.step(), w.num_lines(), slot_bytes);
      b_.sink_flags[place] = line_flag(o.fingerprint, w.step());
      post.word = nullptr;
      w.advance(1);
    }
    return true;
  }

  // Returns false if the block must leave.
  RONDO_HOST_DEVICE_INLINE bool move_lines(const StepShape& shape, ReduceStep& r, bool copies, uint32_t bytes) {
    if (moves_bytes(copies)) {
      r.num_elems = bytes;
      return move_lines_by<device_kernels::BytesOps>(shape, r, bytes);
    }
    if constexpr (kReduces) return move_lines_by<Ops>(shape, r, bytes);
    return true;
  }
  template <class LineOps>
  RONDO_HOST_DEVICE_INLINE bool move_lines_by(const StepShape& shape, const ReduceStep& r, uint32_t bytes) {
    LineMover<Env, LineOps> mover{env_, b_, standing_, r, shape, bytes};
    if (b_.program.protocol != DeviceProtocol::kLl) return mover.move_ll128();
    if (!mover.move_ll()) return false;
    for (uint32_t i = 0; i != shape.num_send; ++i) {
      const uint32_t end = shape.writer(i), d = i + (shape.has_dst ? 1 : 0);
      const auto& w = b_.writers[end];
      if (ll_fills(w.step() - 1, w.num_lines()))  // a ring has no slots to fill
        mover.fill_ll(b_.sinks[d], b_.write_slot_bytes[end], static_cast<uint32_t>(b_.sink_flags[d]));
    }
    return true;
  }
};

}  // namespace rondo
