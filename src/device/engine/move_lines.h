// Moves one message of a program whose lines carry flags (LL, LL128). Every thread gathers, reduces and scatters its
// own units of 8 bytes, and waits only for the writers of these lines. It loads several lines before it waits for the
// first (kLinesInFlight), because a load takes much longer than the rest.
//
//     recv slots        ==line u==>  wait for the flag, take the data --+
//                                                                       +-- reduce --> dst, line u of all send slots,
//     own chunk, rings  --8 bytes of the wire, at unit u----------------+              unit u of the send rings
//
// The step's tables: sources are receives except `own`. Sinks are sends, except the first if the shape has a dst. Flags
// are stored next to them. A source or sink with flag 0 is plain data: the own chunk, or a message in a ring, which has
// arrived as a whole.
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

  /// The rank that sends source s.
  RONDO_HOST_DEVICE_INLINE Rank sender_of(uint32_t s) const {
    return b.read_peers[shape.reader(s > step.own ? s - 1 : s)];
  }

  /// Returns false if the block must leave. The last lines of a message, one of which may be short, go one by one.
  RONDO_HOST_DEVICE_INLINE bool move_ll() {
    const uint32_t lines = static_cast<uint32_t>(ll_lines(bytes)), whole = static_cast<uint32_t>(bytes / kLlDataBytes);
    uint32_t line = env.thread();
    if constexpr (kLines > 1) {
      RONDO_NO_UNROLL
      for (; line + (kLines - 1) * env.threads() < whole; line += kLines * env.threads())
        if (!some_ll<kLines>(line)) return false;
    }
    RONDO_NO_UNROLL
    for (; line < lines; line += env.threads())
      if (!some_ll<1>(line)) return false;
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
    const uint32_t lines = static_cast<uint32_t>(ll128_lines(bytes));
    const uint32_t whole = static_cast<uint32_t>(bytes / kLl128DataBytes), stride = env.threads() / kGroup;
    uint32_t line = env.thread() / kGroup;
    if constexpr (kLines > 1) {
      RONDO_NO_UNROLL
      for (; line + (kLines - 1) * stride < whole; line += kLines * stride)
        if (!some_ll128<kLines>(line)) return false;
    }
    RONDO_NO_UNROLL
    for (; line < lines; line += stride)
      if (!some_ll128<1>(line)) return false;
    return true;
  }

 private:
  static constexpr uint32_t kGroup = Env::kLineThreads;  // LL128: the threads of a line
  static constexpr uint32_t kLines = Ops::kLinesInFlight;

  // Elements of the unit that begins with element `first`. In a whole line (kN > 1) all are there.
  template <uint32_t kN>
  RONDO_HOST_DEVICE_INLINE uint32_t elems_at(uint64_t first, uint32_t per) const {
    if (kN > 1) return per;
    if (first >= step.num_elems) return 0;
    return static_cast<uint32_t>(step.num_elems - first < per ? step.num_elems - first : per);
  }

  // The thread's lines `line`, line + env.threads(), ..., kN in flight.
  template <uint32_t kN>
  RONDO_HOST_DEVICE_INLINE bool some_ll(uint32_t line) {
    const uint32_t per = Ops::unit_elems(step), stride = env.threads();
    const uint32_t first_send = shape.has_dst ? 1 : 0;
    const auto first = [&](uint32_t u) { return (line + uint64_t{u} * stride) * per; };
    Unit acc[kN] = {};
    RONDO_NO_UNROLL
    for (uint32_t s = 0; s < step.num_src; ++s) {
      Unit x[kN];
      const uint32_t flag = static_cast<uint32_t>(b.source_flags[s]);
      if (flag == 0) {
        RONDO_UNROLL
        for (uint32_t u = 0; u < kN; ++u) x[u] = Ops::load(step, s, first(u), elems_at<kN>(first(u), per));
      } else {
        WordPair v[kN];
        const std::byte* p = b.sources[s] + line * kLlLineBytes;
        const uint32_t apart = stride * kLlLineBytes;
        Ll<Mem>::load(p, apart, v);
        if (!wait_until<false>(env, at, sender_of(s), false, [&] { return Ll<Mem>::arrived(p, apart, flag, v); }))
          return false;
        RONDO_UNROLL
        for (uint32_t u = 0; u < kN; ++u) x[u] = Ops::from_wire(step, device_kernels::to_words(Ll<Mem>::data_of(v[u])));
      }
      join(s, acc, x);
    }
    RONDO_UNROLL
    for (uint32_t u = 0; u < kN; ++u) {
      Ops::finish(step, acc[u]);
      if (shape.has_dst) Ops::store(step, 0, first(u), elems_at<kN>(first(u), per), acc[u]);
    }
    if (step.num_dst == first_send) return true;
    uint64_t data[kN];
    RONDO_UNROLL
    for (uint32_t u = 0; u < kN; ++u) data[u] = device_kernels::to_u64(Ops::to_wire(step, acc[u]));
    RONDO_NO_UNROLL
    for (uint32_t d = first_send; d < step.num_dst; ++d) {
      const uint32_t flag = static_cast<uint32_t>(b.sink_flags[d]);
      if (flag == 0) {  // a ring has space for the whole of the last unit
        std::byte* p = b.sinks[d] + line * kLlDataBytes;
        RONDO_UNROLL
        for (uint32_t u = 0; u < kN; ++u) device_kernels::store_data(p + u * stride * kLlDataBytes, data[u]);
        continue;
      }
      std::byte* p = b.sinks[d] + line * kLlLineBytes;
      RONDO_UNROLL
      for (uint32_t u = 0; u < kN; ++u) Ll<Mem>::store(p + u * stride * kLlLineBytes, data[u], flag);
    }
    return true;
  }

  // The group's lines `line`, line + groups, ..., kN in flight. A thread has a piece of each, two units.
  template <uint32_t kN>
  RONDO_HOST_DEVICE_INLINE bool some_ll128(uint32_t line) {
    RONDO_NO_UNROLL
    for (uint32_t piece = env.thread() % kGroup; piece < kLl128Pieces; piece += kGroup)
      if (!pieces<kN>(line, piece)) return false;
    return true;
  }
  template <uint32_t kN>
  RONDO_HOST_DEVICE_INLINE bool pieces(uint32_t line, uint32_t piece) {
    constexpr uint32_t kUnits = kLl128DataBytes / 8;
    const uint32_t per = Ops::unit_elems(step), stride = env.threads() / kGroup, apart = stride * kLl128LineBytes;
    const uint32_t first_send = shape.has_dst ? 1 : 0;
    const auto first = [&](uint32_t u) {
      return (uint64_t{line} * kUnits + 2 * piece + uint64_t{u} * stride * kUnits) * per;
    };
    const auto num0 = [&](uint32_t u) { return elems_at<kN>(first(u), per); };
    const auto num1 = [&](uint32_t u) { return piece == kLl128Pieces - 1 ? 0 : elems_at<kN>(first(u) + per, per); };
    Unit acc0[kN] = {}, acc1[kN] = {};
    RONDO_NO_UNROLL
    for (uint32_t s = 0; s < step.num_src; ++s) {
      Unit x0[kN] = {}, x1[kN] = {};
      const uint64_t flag = b.source_flags[s];
      if (flag == 0) {
        RONDO_UNROLL
        for (uint32_t u = 0; u < kN; ++u) {
          if (num0(u) != 0) x0[u] = Ops::load(step, s, first(u), num0(u));
          if (num1(u) != 0) x1[u] = Ops::load(step, s, first(u) + per, num1(u));
        }
      } else {
        typename Ll128<Mem>::template Pieces<kN> v;
        const std::byte* p = b.sources[s] + line * kLl128LineBytes;
        Ll128<Mem>::load(p, apart, piece, flag, v);
        if (!wait_until<true>(env, at, sender_of(s), false,
                              [&] { return Ll128<Mem>::arrived(p, apart, piece, flag, v); }))
          return false;
        RONDO_UNROLL
        for (uint32_t u = 0; u < kN; ++u) {
          x0[u] = Ops::from_wire(step, device_kernels::to_words(v.data[u].lo));
          x1[u] = Ops::from_wire(step, device_kernels::to_words(v.data[u].hi));
        }
      }
      join(s, acc0, x0);
      join(s, acc1, x1);
    }
    RONDO_UNROLL
    for (uint32_t u = 0; u < kN; ++u) {
      Ops::finish(step, acc0[u]);
      Ops::finish(step, acc1[u]);
      if (shape.has_dst && num0(u) != 0) Ops::store(step, 0, first(u), num0(u), acc0[u]);
      if (shape.has_dst && num1(u) != 0) Ops::store(step, 0, first(u) + per, num1(u), acc1[u]);
    }
    if (step.num_dst == first_send) return true;
    WordPair data[kN];
    RONDO_UNROLL
    for (uint32_t u = 0; u < kN; ++u)
      data[u] = {device_kernels::to_u64(Ops::to_wire(step, acc0[u])),
                 device_kernels::to_u64(Ops::to_wire(step, acc1[u]))};
    RONDO_NO_UNROLL
    for (uint32_t d = first_send; d < step.num_dst; ++d) store_pieces(d, line, piece, data);
    return true;
  }

  // Stores the thread's piece of each line to sink d.
  template <uint32_t kN>
  RONDO_HOST_DEVICE_INLINE void store_pieces(uint32_t d, uint32_t line, uint32_t piece,
                                             const WordPair (&data)[kN]) const {
    const uint64_t flag = b.sink_flags[d];
    const uint32_t stride = env.threads() / kGroup;
    if (flag != 0) {
      std::byte* p = b.sinks[d] + line * kLl128LineBytes;
      RONDO_UNROLL
      for (uint32_t u = 0; u < kN; ++u) Ll128<Mem>::store(p + u * stride * kLl128LineBytes, piece, data[u], flag);
      return;
    }
    RONDO_UNROLL
    for (uint32_t u = 0; u < kN; ++u) {
      const uint32_t offset = (line + u * stride) * kLl128DataBytes + 16 * piece;
      std::byte* p = b.sinks[d] + offset;
      if (offset < bytes) device_kernels::store_data(p, data[u].lo);
      if (offset + 8 < bytes && piece != kLl128Pieces - 1) device_kernels::store_data(p + 8, data[u].hi);
    }
  }

  template <uint32_t kN>
  static RONDO_HOST_DEVICE_INLINE void join(uint32_t s, Unit (&acc)[kN], const Unit (&x)[kN]) {
    RONDO_UNROLL
    for (uint32_t u = 0; u < kN; ++u) {
      if (s == 0) acc[u] = x[u];
      else Ops::join(acc[u], x[u]);
    }
  }
};

}  // namespace rondo
