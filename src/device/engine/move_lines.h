// Moves one message whose lines carry flags (LL, LL128). Every thread gathers, reduces and scatters its own units of 8
// bytes, and waits only for the writers of these lines.
//
//     recv slots   ==line u==>  wait for the flag, take the data --+
//                                                                  +-- reduce --> dst, and line u of all send slots
//     own chunk    --8 bytes of the wire, at unit u----------------+
//
// The step's tables: sources are receive slots except `own`. Sinks are send slots, except the first if the shape has a
// dst. Flags are stored next to them.
#pragma once

#include "device/engine/block_state.h"
#include "device/engine/waiting.h"
#include "kernels/cuda/units.h"
#include "protocol/ll.h"
#include "protocol/ll128.h"

namespace rondo {

template <class Env, class Ops>
struct LineMover {
  using Mem = typename Env::Mem;
  using State = BlockState<Mem>;
  using Unit = typename Ops::Unit;

  Env& env;
  State& b;
  const Standing& at;
  const device_kernels::ReduceStep& step;
  const StepShape& shape;
  uint64_t bytes;  // wire bytes
  uint32_t fingerprint;

  /// The rank that sends source s.
  RONDO_HOST_DEVICE_INLINE Rank sender_of(uint32_t s) const {
    return b.read_peers[shape.reader(s > step.own ? s - 1 : s)];
  }

  /// Returns false if the block must leave.
  RONDO_HOST_DEVICE_INLINE bool move_ll() {
    const uint32_t per = Ops::unit_elems(step);
    const uint32_t lines = static_cast<uint32_t>(ll_lines(bytes));
    const uint32_t first_send = shape.has_dst ? 1 : 0;
    RONDO_NO_UNROLL
    for (uint32_t line = env.thread(); line < lines; line += env.threads()) {
      const uint64_t first = uint64_t{line} * per;
      const uint32_t n = static_cast<uint32_t>(step.num_elems - first < per ? step.num_elems - first : per);
      Unit acc{};
      RONDO_NO_UNROLL
      for (uint32_t s = 0; s < step.num_src; ++s) {
        Unit x;
        if (s == step.own) {
          x = Ops::load(step, s, first, n);
        } else {
          uint64_t data = 0;
          const std::byte* p = b.sources[s] + line * kLlLineBytes;
          const uint32_t flag = static_cast<uint32_t>(b.source_flags[s]);
          if (!wait_until<false>(env, at, sender_of(s), false, [&] { return Ll<Mem>::load(p, flag, data); }))
            return false;
          x = Ops::from_wire(step, device_kernels::to_words(data));
        }
        if (s == 0) acc = x;
        else Ops::join(acc, x);
      }
      Ops::finish(step, acc);
      if (shape.has_dst) Ops::store(step, 0, first, n, acc);
      if (step.num_dst == first_send) continue;
      const uint64_t data = device_kernels::to_u64(Ops::to_wire(step, acc));
      RONDO_NO_UNROLL
      for (uint32_t d = first_send; d < step.num_dst; ++d)
        Ll<Mem>::store(b.sinks[d] + line * kLlLineBytes, data, static_cast<uint32_t>(b.sink_flags[d]));
    }
    return true;
  }

  /// Fills the lines of a slot after the message, in the order in which slots are filled (ll.h). The same thread always
  /// writes a line, so that its stores keep their order.
  RONDO_HOST_DEVICE_INLINE void fill_ll(std::byte* slot, uint32_t slot_bytes, uint32_t flag) {
    const uint32_t lines = static_cast<uint32_t>(ll_lines(bytes));
    RONDO_NO_UNROLL
    for (uint32_t line = env.thread(); line < slot_bytes / kLlLineBytes; line += env.threads())
      if (line >= lines) Ll<Mem>::store(slot + line * kLlLineBytes, 0, flag);
  }

  RONDO_HOST_DEVICE_INLINE bool move_ll128() {
    constexpr uint32_t kGroup = Env::kLineThreads, kUnits = kLl128DataBytes / 8;
    const uint32_t per = Ops::unit_elems(step);
    const uint32_t lines = static_cast<uint32_t>(ll128_lines(bytes));
    const uint32_t first_send = shape.has_dst ? 1 : 0;
    RONDO_NO_UNROLL
    for (uint32_t line = env.thread() / kGroup; line < lines; line += env.threads() / kGroup) {
      RONDO_NO_UNROLL
      for (uint32_t piece = env.thread() % kGroup; piece < kLl128Pieces; piece += kGroup) {
        const uint64_t unit = uint64_t{line} * kUnits + 2 * piece;
        const uint64_t first0 = unit * per, first1 = first0 + per;
        const uint32_t n0 = elems_at(first0, per);
        const uint32_t n1 = piece == kLl128Pieces - 1 ? 0 : elems_at(first1, per);
        Unit acc0{}, acc1{};
        RONDO_NO_UNROLL
        for (uint32_t s = 0; s < step.num_src; ++s) {
          Unit x0{}, x1{};
          if (s == step.own) {
            if (n0 != 0) x0 = Ops::load(step, s, first0, n0);
            if (n1 != 0) x1 = Ops::load(step, s, first1, n1);
          } else {
            WordPair data{};
            const std::byte* p = b.sources[s] + line * kLl128LineBytes;
            const uint64_t step_number = b.source_flags[s];
            if (!wait_until<true>(env, at, sender_of(s), false,
                                  [&] { return Ll128<Mem>::load(p, piece, fingerprint, step_number, data); }))
              return false;
            x0 = Ops::from_wire(step, device_kernels::to_words(data.lo));
            x1 = Ops::from_wire(step, device_kernels::to_words(data.hi));
          }
          if (s == 0) {
            acc0 = x0;
            acc1 = x1;
          } else {
            Ops::join(acc0, x0);
            Ops::join(acc1, x1);
          }
        }
        Ops::finish(step, acc0);
        Ops::finish(step, acc1);
        if (shape.has_dst) {
          if (n0 != 0) Ops::store(step, 0, first0, n0, acc0);
          if (n1 != 0) Ops::store(step, 0, first1, n1, acc1);
        }
        if (step.num_dst == first_send) continue;
        const WordPair data{device_kernels::to_u64(Ops::to_wire(step, acc0)),
                            device_kernels::to_u64(Ops::to_wire(step, acc1))};
        RONDO_NO_UNROLL
        for (uint32_t d = first_send; d < step.num_dst; ++d)
          Ll128<Mem>::store(b.sinks[d] + line * kLl128LineBytes, piece, data, b.sink_flags[d]);
      }
    }
    return true;
  }

 private:
  RONDO_HOST_DEVICE_INLINE uint32_t elems_at(uint64_t first, uint32_t per) const {
    if (first >= step.num_elems) return 0;
    return static_cast<uint32_t>(step.num_elems - first < per ? step.num_elems - first : per);
  }
};

}  // namespace rondo
