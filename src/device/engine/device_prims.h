// DevicePrims: the P that turns an algorithm's definition into a kernel. A block runs the definition once per loop. It
// executes the verbs of its own lane at once and skips those of other lanes.
//
//     ring_all_reduce(Recorder)    --> Schedule --> Program --> DeviceProgram --> Interpreter
//     ring_all_reduce(DevicePrims) --> its own kernel, which takes the same DeviceProgram except for the steps
//
// It shares calls, ends, protocols, fingerprints, channel shares, loops, meetings, failures and traces with the
// interpreter (block_calls.h, messages.h). Both send the same messages, so one rank may interpret while another runs an
// inlined kernel. The gain is compile-time knowledge: the verb, the number of sources and sinks, and the position of
// the own source. An end also keeps its thread, which saves one of three barriers. In return a block computes at run
// time what the recorder and lower() compute once: chunks (Cut), their shares, and the ends of ports.
//
// It supports one chunk per message, the buffers in and out, and the definition's unicast ports. It does not support
// waits, scratch, credits, direct instructions and mixed types.
//
// Thread safety, Env: as block_calls.h. Learned from: NCCL's device primitives (a kernel that reads the ring's verbs).
#pragma once

#include "algorithms/ring.h"
#include "device/engine/messages.h"
#include "rondo/recorder.h"

namespace rondo {

/// The ends of a verb's ports, by their places in the lane's lists.
template <int kRecv, int kSend>
struct VerbEnds {
  uint32_t num_readers;  // of the lane
  uint32_t readers[kRecv != 0 ? kRecv : 1], writers[kSend != 0 ? kSend : 1];
};

/// The shape of a verb with these ports. An end has the same thread in all messages: by its place, writers after
/// readers.
template <Verb kVerb, int kRecv, int kSend>
struct VerbShape : VerbEnds<kRecv, kSend> {
  static constexpr bool kOwn = (verb_bits(kVerb) & kVerbSrc) != 0, kKeeps = (verb_bits(kVerb) & kVerbDst) != 0;
  static constexpr int kSrc = kRecv + (kOwn ? 1 : 0), kDst = kSend + (kKeeps ? 1 : 0);
  static constexpr bool kMayCopy = kSrc == 1, kMayReduce = kSrc > 1 || kOwn;
  static constexpr bool kTravels = kRecv + kSend != 0, kEndsStay = true;
  using Ends = VerbEnds<kRecv, kSend>;
  using Ends::num_readers, Ends::readers, Ends::writers;

  static constexpr uint32_t num_recv() { return kRecv; }
  static constexpr uint32_t num_send() { return kSend; }
  static constexpr bool has_src() { return kOwn; }
  static constexpr bool has_dst() { return kKeeps; }
  RONDO_HOST_DEVICE_INLINE uint32_t reader(uint32_t i) const { return readers[i]; }
  RONDO_HOST_DEVICE_INLINE uint32_t writer(uint32_t i) const { return writers[i]; }

  template <class Env, class OfRead, class OfWrite>
  RONDO_HOST_DEVICE_INLINE bool handle_mine(Env& env, OfRead of_read, OfWrite of_write) const {
    const uint32_t mask = env.threads() - 1;
    bool ok = true;
    RONDO_UNROLL
    for (int i = 0; i < kRecv; ++i)
      if (ok && (readers[i] & mask) == env.thread()) ok = of_read(static_cast<uint32_t>(i), readers[i]);
    RONDO_UNROLL
    for (int i = 0; i < kSend; ++i)
      if (ok && ((num_readers + writers[i]) & mask) == env.thread())
        ok = of_write(static_cast<uint32_t>(i), writers[i]);
    return ok;
  }
};

/// Text::read(p, rank, nranks) runs the definition.
template <class Env, class Ops, class Text>
class DevicePrims : public Messages<Env, Ops, DevicePrims<Env, Ops, Text>> {
  using Base = Messages<Env, Ops, DevicePrims<Env, Ops, Text>>;
  using Mem = typename Env::Mem;
  using Base::b_, Base::channel_, Base::env_, Base::lane_, Base::num_reads_, Base::num_writes_, Base::standing_;
  static_assert(!Ops::kMixed);

 public:
  using State = PrimsState<Mem>;
  RONDO_HOST_DEVICE_INLINE DevicePrims(Env& env, State& state, const LaunchArgs& args)
      : Base(env, state, args), s_(state) {}

  RONDO_HOST_DEVICE_INLINE bool run_loops() {
    const DeviceProgram& p = b_.program;
    for (standing_.loop = 0; standing_.loop < p.num_loops && !failed_; ++standing_.loop) {
      standing_.pc = 0;
      Text::read(*this, static_cast<Rank>(p.rank), static_cast<int>(p.num_ranks));
    }
    return !failed_;
  }

  // ---- the verbs of a definition, as in Recorder --------------------------------------------------------------------
  template <int kPorts>
  using Ports = const Port (&)[kPorts];

  RONDO_HOST_DEVICE_INLINE void chunks(int in_chunks, int out_chunks) {
    if (standing_.loop != 0) return;  // already cut
    for (uint32_t i = env_.thread(); i < 2; i += env_.threads()) {
      const DeviceProgram& p = b_.program;
      typename State::BufferCut& b = i == 0 ? s_.in : s_.out;
      b.cut = i == 0 ? Cut(p.in_elems, static_cast<uint64_t>(in_chunks))
                     : Cut(p.out_elems, static_cast<uint64_t>(out_chunks));
      for (uint32_t more = 0; more < 2; ++more)
        b.share[more] = channel_extent(b.cut.base + more, p.num_channels, channel_, p.wire_bytes);
    }
    env_.sync();
  }
  RONDO_HOST_DEVICE_INLINE void lane(int index) { mine_ = static_cast<uint32_t>(index) == lane_; }

  template <int kSend>
  RONDO_HOST_DEVICE_INLINE void send(Chunk src, Ports<kSend> to) {
    act<Verb::kSend, 0, kSend>(src, src, nullptr, to);
  }
  RONDO_HOST_DEVICE_INLINE void copy(Chunk src, Chunk dst, Sum sum = Sum::kPartial) {
    act<Verb::kCopy, 0, 0>(src, dst, nullptr, nullptr, {}, sum);
  }
  template <int kSend>
  RONDO_HOST_DEVICE_INLINE void copy_send(Chunk src, Chunk dst, Ports<kSend> to) {
    act<Verb::kCopySend, 0, kSend>(src, dst, nullptr, to);
  }
  template <int kRecv>
  RONDO_HOST_DEVICE_INLINE void recv(Ports<kRecv> from, Chunk dst) {
    act<Verb::kRecv, kRecv, 0>(dst, dst, from, nullptr);
  }
  template <int kRecv, int kSend>
  RONDO_HOST_DEVICE_INLINE void recv_copy_send(Ports<kRecv> from, Chunk dst, Ports<kSend> to) {
    act<Verb::kRecvCopySend, kRecv, kSend>(dst, dst, from, to);
  }
  template <int kRecv, int kSend>
  RONDO_HOST_DEVICE_INLINE void recv_reduce_send(Ports<kRecv> from, Chunk src, Ports<kSend> to, Order order,
                                                 Sum sum = Sum::kPartial) {
    act<Verb::kRecvReduceSend, kRecv, kSend>(src, src, from, to, order, sum);
  }
  template <int kRecv>
  RONDO_HOST_DEVICE_INLINE void recv_reduce_copy(Ports<kRecv> from, Chunk src, Chunk dst, Order order, Sum sum) {
    act<Verb::kRecvReduceCopy, kRecv, 0>(src, dst, from, nullptr, order, sum);
  }
  template <int kRecv, int kSend>
  RONDO_HOST_DEVICE_INLINE void recv_reduce_copy_send(Ports<kRecv> from, Chunk src, Chunk dst, Ports<kSend> to,
                                                      Order order, Sum sum) {
    act<Verb::kRecvReduceCopySend, kRecv, kSend>(src, dst, from, to, order, sum);
  }

 private:
  // src: the chunk that defines the message's length, even if the verb reads no own chunk.
  template <Verb kVerb, int kRecv, int kSend>
  RONDO_HOST_DEVICE_INLINE void act(Chunk src, Chunk dst, const Port* from, const Port* to, Order order = {},
                                    Sum sum = Sum::kPartial) {
    if (!mine_ || failed_) return;
    using Shape = VerbShape<kVerb, kRecv, kSend>;
    Base::begin_record();
    VerbEnds<kRecv, kSend> ends;
    ends.num_readers = num_reads_;
    RONDO_UNROLL
    for (int i = 0; i < kRecv; ++i) ends.readers[i] = place_of(from[i], b_.read_ports, num_reads_);
    RONDO_UNROLL
    for (int i = 0; i < kSend; ++i) ends.writers[i] = place_of(to[i], b_.write_ports, num_writes_);
    const Operands o = operands<Shape>(src, dst, order, sum);
    failed_ = !move<kVerb>(ends, o);
    if (failed_) return;
    Base::end_record();
    ++standing_.pc;
  }
  template <Verb kVerb, int kRecv, int kSend>
  RONDO_HOST_DEVICE_INLINE bool move(const VerbEnds<kRecv, kSend>& ends, const Operands& o) {
    if constexpr (kVerb == Verb::kCopySend) {
      if (o.src == o.dst && o.copies)  // in place
        return Base::message(VerbShape<Verb::kSend, kRecv, kSend>{ends}, o);
    }
    return Base::message(VerbShape<kVerb, kRecv, kSend>{ends}, o);
  }

  // Every port of the definition is in the list, because the list was made from the same definition.
  static RONDO_HOST_DEVICE_INLINE uint32_t place_of(const Port& port, const Port* list, uint32_t num_ends) {
    uint32_t place = 0;
    while (place + 1 < num_ends && !(list[place] == port)) ++place;
    return place;
  }

  // This channel's share of the chunks in this loop. Matches compile()'s result for a step, for the definitions that
  // this class supports.
  template <class Shape>
  RONDO_HOST_DEVICE_INLINE Operands operands(Chunk src, Chunk dst, Order order, Sum sum) const {
    const DeviceProgram& p = b_.program;
    const typename State::BufferCut& b = cut_of(src);
    const Extent whole = b.cut.chunk(static_cast<uint64_t>(src.first));
    const Extent share = b.share[whole.num_elems - b.cut.base];
    const uint64_t skip = standing_.loop * p.loop_elems, first = share.first_elem + skip;
    Operands o{};
    if (skip >= share.num_elems) return o;
    o.num_elems = share.num_elems - skip < p.loop_elems ? share.num_elems - skip : p.loop_elems;
    if (Shape::kOwn) o.src = Base::at(static_cast<uint8_t>(src.buffer), whole.first_elem + first);
    if (Shape::kKeeps)
      o.dst = Base::at(static_cast<uint8_t>(dst.buffer),
                       cut_of(dst).cut.chunk(static_cast<uint64_t>(dst.first)).first_elem + first);
    o.position = static_cast<uint32_t>(order.position);
    o.prescale = Shape::kOwn && p.premul && src.buffer == Buffer::kIn;
    o.is_final = sum == Sum::kFinal;
    o.copies = Shape::kSrc == 1 && !o.prescale && !(o.is_final && p.divide_by != 0);
    o.fingerprint = Base::fingerprint(p.fingerprint);
    return o;
  }
  RONDO_HOST_DEVICE_INLINE const typename State::BufferCut& cut_of(const Chunk& c) const {
    return c.buffer == Buffer::kIn ? s_.in : s_.out;
  }

  State& s_;  // b_ again, with the cuts
  bool mine_ = false, failed_ = false;
};

/// The inlined definitions. lower.h selects their calls.
struct RingAllReduce {
  template <class P>
  static RONDO_HOST_DEVICE_INLINE void read(P& p, Rank rank, int nranks) {
    algorithms::ring_all_reduce(p, rank, nranks);
  }
};
struct RingReduceScatter {
  template <class P>
  static RONDO_HOST_DEVICE_INLINE void read(P& p, Rank rank, int nranks) {
    algorithms::ring_reduce_scatter(p, rank, nranks);
  }
};
struct RingAllGather {
  template <class P>
  static RONDO_HOST_DEVICE_INLINE void read(P& p, Rank rank, int nranks) {
    algorithms::ring_all_gather(p, rank, nranks);
  }
};

}  // namespace rondo
