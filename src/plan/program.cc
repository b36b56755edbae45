#include "plan/program.h"

#include <algorithm>
#include <map>

namespace rondo {
namespace {

/// Elements of each buffer of a call on the ranks that hold it.
struct Totals {
  uint64_t in, out;
};

Totals totals_of(const OperationShape& op, int nranks) {
  const CollectiveTraits& t = collective_traits(op.collective);
  return {op.count_elems * parts(t.in_parts, nranks), op.count_elems * parts(t.out_parts, nranks)};
}

class Compiler {
 public:
  Compiler(const RankSchedule& schedule, const ProgramShape& shape, PortTable& ports, Program& out)
      : s_(schedule), shape_(shape), ports_(ports), p_(out), totals_(totals_of(shape.operation, schedule.nranks)) {}

  Status run() {
    fix_loop();
    for (const Lane& lane : s_.lanes) {
      p_.lanes.emplace_back();
      last_step_.emplace_back();
      for (const Instruction& i : lane) {
        for (uint16_t k = 0; k < std::max<uint16_t>(i.num_chunks, 1); ++k) RONDO_TRY(add(i, k));
        last_step_.back().push_back(static_cast<uint16_t>(p_.lanes.back().size() - 1));
      }
    }
    for (ProgramLane& lane : p_.lanes)
      for (ProgramStep& step : lane)
        if (step.verb == Verb::kWait) step.wait_pc = last_step_[step.wait_lane][step.wait_pc];
    uint64_t longest = 1;
    for (const ProgramLane& lane : p_.lanes)
      for (const ProgramStep& step : lane) {
        count_steps(step);
        longest = std::max(longest, std::min(step.src.num_elems, p_.loop_elems));
      }
    if (!p_.direct)
      p_.lap_bytes = shape_.lap_messages == kWholeRing
                         ? UINT32_MAX
                         : lap_bytes(place_bytes(p_.ring_bytes_of_message(longest)), shape_.lap_messages);
    for (ProgramLane& lane : p_.lanes)
      for (size_t pc = lane.size(); pc-- > 1;)
        if (only_receives(lane[pc])) lane[pc - 1].further_receives = lane[pc].further_receives + 1;
    add_once();
    return {};
  }

 private:
  const PartExtents* parts_of(Buffer b) const {
    if (shape_.counts == nullptr) return nullptr;
    return like_out(b) ? &shape_.counts->out : &shape_.counts->in;
  }

  uint64_t loops_over(Buffer b) const {
    if (const PartExtents* v = parts_of(b)) return num_loops(v->longest(), 1, p_.loop_elems);
    return num_loops(b == Buffer::kOut ? totals_.out : totals_.in, s_.chunks(b), p_.loop_elems);
  }

  void fix_loop() {
    p_.direct = shape_.direct;
    p_.pushes = shape_.pushes;
    p_.chunks[0] = equal_chunks(totals_.in, s_.in_chunks);
    p_.chunks[1] = equal_chunks(totals_.out, s_.out_chunks);
    RONDO_CHECK(s_.scratch_chunks == 0 || s_.scratch_chunks == s_.in_chunks || s_.scratch_chunks == s_.out_chunks);
    p_.scratch_like_in = s_.scratch_chunks == s_.in_chunks;
    p_.pairwise = shape_.counts != nullptr && shape_.counts->pairwise;
    p_.loop_elems = p_.direct ? UINT64_MAX : std::max<uint64_t>(1, shape_.message_bytes / p_.wire_bytes);
    p_.num_loops = std::max(loops_over(Buffer::kIn), loops_over(Buffer::kOut));
    const OperationShape& operation = shape_.operation;
    if (operation.collective == Collective::kBarrier) p_.num_loops = 1;  // only credits: no elements to count
    if (operation.collective == Collective::kSend && is_matched(operation) && p_.num_loops == 0)
      p_.num_loops = 1;  // the envelope of an empty message
    if (s_.scratch_chunks != 0) {
      const PartExtents* v = parts_of(Buffer::kScratch);
      p_.scratch_bytes = (v != nullptr ? v->end() : p_.scratch_like_in ? totals_.in : totals_.out) * p_.wire_bytes;
    }
  }

  // Returns true if the chunks of `b` have the lengths of the output's chunks, false if those of the input's chunks.
  bool like_out(Buffer b) const { return b == Buffer::kOut || (b == Buffer::kScratch && !p_.scratch_like_in); }

  Extent chunk(Buffer b, uint16_t first, uint16_t k) const {
    const uint64_t c = (uint64_t{first} + k) % s_.chunks(b);
    if (const PartExtents* v = parts_of(b)) return v->part(c);
    return p_.chunks[like_out(b) ? 1 : 0].chunk(c);
  }

  Status add(const Instruction& i, uint16_t k) {
    ProgramStep step{};
    step.verb = i.verb;
    step.flags = i.flags;
    step.src_buffer = i.src_buffer();
    step.dst_buffer = i.dst_buffer();
    step.src_position = i.src_position;
    step.fingerprint = i.is(kFlagCredit) && is_matched(p_.operation) ? kEnvelopeFingerprint : p_.fingerprint;
    step.src_chunk = step.dst_chunk = -1;
    if (i.verb == Verb::kWait) {
      step.wait_lane = i.src_first;
      step.wait_pc = i.dst_first;
    } else if (!i.is(kFlagCredit)) {
      const bool src = i.has(kVerbSrc) || i.verb == Verb::kRecvSend || (i.is(kFlagDirect) && i.has(kVerbRecv));
      if (src) {
        step.src = chunk(step.src_buffer, i.src_first, k);
        step.src_chunk = (i.src_first + k) % s_.chunks(step.src_buffer);
      }
      if (i.has(kVerbDst)) {
        step.dst = chunk(step.dst_buffer, i.dst_first, k);
        step.dst_chunk = (i.dst_first + k) % s_.chunks(step.dst_buffer);
      }
      // all_gather_v: a peer's input is one part, as long as this step's destination.
      const bool theirs = i.is(kFlagDirect) && i.verb == Verb::kRecv && step.src_buffer == Buffer::kIn;
      if (shape_.counts != nullptr && theirs && shape_.counts->in.counts.size() == 1)
        step.src = {0, step.dst.num_elems};
      RONDO_CHECK(!src || !i.has(kVerbDst) || step.src.num_elems == step.dst.num_elems);
      if (!src) step.src.num_elems = step.dst.num_elems;
      if (!i.has(kVerbDst)) step.dst.num_elems = step.src.num_elems;
      step.prescale = p_.premul && i.has(kVerbSrc) && step.src_buffer == Buffer::kIn;
      step.as_wire = p_.mixed && !(i.is(kFlagFinal) && one_owner());
      if (p_.pairwise) step.fingerprint = pair_fingerprint(p_.fingerprint, step.src.num_elems);
    }
    RONDO_TRY(connect(i, step));
    const bool converts =
        p_.mixed && !(step.is(kFlagDirect) && step.src_buffer != Buffer::kIn);  // a peer's `out` has the output's type
    step.copies = !converts && !step.prescale && !(step.is(kFlagFinal) && p_.divide_by != 0) &&
                  step.recv_peers.size() + (step.has(kVerbSrc) ? 1 : 0) == 1;
    p_.lanes.back().push_back(std::move(step));
    return {};
  }

  Status connect(const Instruction& i, ProgramStep& step) {
    const bool inline_only = p_.protocol == Protocol::kInline || i.is(kFlagCredit);
    for (const Port& p : s_.recv_ports(i)) step.recv_peers.push_back(p.peer);
    for (const Port& p : s_.send_ports(i)) step.send_peers.push_back(p.peer);
    if (i.is(kFlagDirect)) return {};
    for (const Port& p : s_.recv_ports(i)) step.recv.push_back(ports_.reader(p, inline_only));
    const PortSet& to = s_.send_ports(i);
    for (size_t a = 0; a < to.size();) {  // ports of one multicast are adjacent and make one message
      size_t b = a + 1;
      while (to[a].group != kUnicast && b < to.size() && to[b].group == to[a].group && to[b].tag == to[a].tag) ++b;
      RONDO_TRY_ASSIGN(WritePort * port,
                       ports_.writer(std::vector<Port>(to.begin() + static_cast<ptrdiff_t>(a),
                                                       to.begin() + static_cast<ptrdiff_t>(b)), inline_only));
      step.send.push_back(port);
      a = b;
    }
    return {};
  }

  static bool only_receives(const ProgramStep& s) { return !s.recv.empty() && s.send.empty() && s.verb != Verb::kWait; }

  /// A sum that only one rank gets is rounded once, from the accumulator.
  bool one_owner() const {
    const Collective c = shape_.operation.collective;
    return c == Collective::kReduceScatter || c == Collective::kReduce;
  }

  void add_once() {
    bool may = !p_.direct && p_.num_loops == 1 && p_.scratch_bytes == 0 && !is_matched(p_.operation);
    std::map<const WritePort*, uint32_t> sent_first;  // steps of the lanes before the last
    for (uint32_t i = 0; i < p_.lanes.size(); ++i) {
      const bool is_last = i + 1 == p_.lanes.size();
      for (uint32_t pc = 0; pc < p_.lanes[i].size(); ++pc) {
        ProgramStep& s = p_.lanes[i][pc];
        const bool is_credit = s.is(kFlagCredit);
        s.once_elems = static_cast<uint32_t>(s.src.num_elems);
        s.once_steps = is_credit ? 1 : s.src.num_elems == 0 ? 0 : p_.steps_of_message(s.src.num_elems);
        s.once_bytes = is_credit ? 0 : p_.ring_bytes_of_message(s.src.num_elems);
        may &= (s.verb != Verb::kWait || s.wait_lane < i) && (s.recv.empty() || is_last);
        for (const WritePort* w : s.send)
          if (!is_last)
            may &= (sent_first[w] += s.once_steps) <= (s.once_bytes == 0 ? w->fifo.num_lines() : kRingMessages);
        if (s.once_steps != 0) p_.once.push_back({&s, i, pc});
      }
    }
    if (!may) p_.once.clear();
  }

  // Counts the steps of a whole operation on the ends that `step` uses.
  void count_steps(const ProgramStep& step) {
    uint64_t steps = 0;
    if (step.is(kFlagCredit)) {
      steps = p_.num_loops != 0 ? 1 : 0;
    } else if (const uint64_t n = step.src.num_elems; n != 0) {
      const uint64_t full = n / p_.loop_elems, rest = n % p_.loop_elems;
      steps = full * p_.steps_of_message(p_.loop_elems) + (rest != 0 ? p_.steps_of_message(rest) : 0);
    }
    auto add_to = [&](auto& list, auto* port) {
      auto it = std::ranges::find_if(list, [&](const auto& e) { return e.first == port; });
      if (it == list.end()) list.emplace_back(port, steps);
      else it->second += steps;
    };
    for (ReadPort* r : step.recv) add_to(p_.reads, r);
    for (WritePort* w : step.send) add_to(p_.writes, w);
  }

  const RankSchedule& s_;
  const ProgramShape& shape_;
  PortTable& ports_;
  Program& p_;
  const Totals totals_;
  std::vector<std::vector<uint16_t>> last_step_;  // by lane and pc: the last step of that instruction
};

}  // namespace

uint32_t fingerprint_of(const OperationShape& shape, uint64_t more) {
  OperationShape op = shape;
  if (is_point_to_point(op.collective)) {  // both ends must have the same fingerprint
    op.collective = Collective::kSend;
    op.root = 0;
  }
  uint64_t h = (op.packed() ^ more * 0x94D049BB133111EBu) * 0x9E3779B97F4A7C15u ^ (op.count_elems + 0x7F4A7C15u) * 0xC2B2AE3D27D4EB4Fu;
  h ^= h >> 29;
  h *= 0xBF58476D1CE4E5B9u;
  return 1 + static_cast<uint32_t>(h >> 32) % kFingerprints;
}

Expected<std::unique_ptr<Program>> compile(const RankSchedule& schedule, const ProgramShape& shape, PortTable& ports,
                                           const KernelTable& kernels) {
  auto p = std::make_unique<Program>();
  p->operation = shape.operation;
  p->protocol = shape.protocol;
  p->fingerprint = fingerprint_of(shape.operation, shape.counts != nullptr ? shape.counts->agreed_hash : 0);
  p->types = row_at(shape.operation.row, shape.operation.dtype);
  p->mixed = shape.operation.row != 0;
  p->wire_bytes = dtype_bytes(p->types.wire);
  p->elem_bytes[static_cast<int>(Buffer::kIn)] = dtype_bytes(p->types.input);
  p->elem_bytes[static_cast<int>(Buffer::kOut)] = dtype_bytes(p->types.output);
  p->elem_bytes[static_cast<int>(Buffer::kScratch)] = p->wire_bytes;
  p->rank = schedule.rank;
  p->nranks = schedule.nranks;
  const bool reduces = collective_reduces(shape.operation.collective);
  p->premul = reduces && shape.operation.op == Op::kPremulSum;
  p->divide_by = reduces && shape.operation.op == Op::kAvg ? static_cast<uint32_t>(schedule.nranks) : 0;
  p->copy = kernels.copy;
  p->mixed_kernel = kernels.mixed;
  p->reduce = kernels.reduce[static_cast<int>(shape.operation.dtype)][static_cast<int>(shape.operation.op)];
  RONDO_TRY(Compiler(schedule, shape, ports, *p).run());
  return p;
}

}  // namespace rondo
