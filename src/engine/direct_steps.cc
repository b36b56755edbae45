// Executes direct steps: they copy or reduce from buffer to buffer. Credits contain the addresses of the buffers.
#include <cstring>

#include "engine/executor.h"

namespace rondo {

// Sends or receives credits. In a direct program they contain the addresses of the sender's buffers. If the buffers of
// any rank cannot be reached, every rank reads this in the same credits before the direct step. All ranks then run the
// fallback. The credit of a matched message is its envelope.
bool Executor::credit(Operation& op, const ProgramStep& s) {
  struct Credit {
    RemoteAddress in, out;
    bool is_reachable() const { return in.region != RemoteAddress::kNowhere && out.region != RemoteAddress::kNowhere; }
  };
  static_assert(sizeof(Credit) <= kLinePayloadBytes);
  if (!ready(op, s, 1)) return false;
  const bool direct = op.program->direct;
  const Credit mine =
      direct ? Credit{op.peer_in[static_cast<size_t>(rank_)], op.peer_out[static_cast<size_t>(rank_)]} : Credit();
  for (WritePort* w : s.send) {
    if (direct) std::memcpy(w->fifo.line(0), &mine, sizeof mine);
    if (const OperationShape& shape = op.program->operation; is_matched(shape)) {
      const Envelope envelope{op.tag, shape.count_elems, shape.dtype};
      std::memcpy(w->fifo.line(0), &envelope, sizeof envelope);
    }
    w->post(1, op.fingerprint(s));
  }
  bool reachable = !direct || s.recv.empty() || mine.is_reachable();
  for (ReadPort* r : s.recv) {
    if (direct) {
      Credit theirs;
      std::memcpy(&theirs, r->fifo.line(0), sizeof theirs);
      op.peer_in[static_cast<size_t>(r->key.writer)] = theirs.in;
      op.peer_out[static_cast<size_t>(r->key.writer)] = theirs.out;
      reachable &= theirs.is_reachable();
    }
    r->release(1);
  }
  if (!reachable) {
    RONDO_CHECK(op.fallback != nullptr);
    op.load(op.fallback);
  }
  return true;
}

bool Executor::direct(Operation& op, const ProgramStep& s) {
  if (!op.reach_error.ok()) return false;  // permanent: the diagnosis ends the operation
  if (s.src.num_elems == 0) return true;   // a rank without elements may have no buffer
  const uint64_t elem_bytes = op.program->elem_bytes[static_cast<int>(s.src_buffer)];
  const auto& addresses = s.src_buffer == Buffer::kOut ? op.peer_out : op.peer_in;
  received_.clear();
  for (Rank r : s.recv_peers) {
    RemoteAddress from = addresses[static_cast<size_t>(r)];
    const bool mapped = from.region != RemoteAddress::kByCopy;
    from.offset_bytes += s.src.first_elem * elem_bytes;
    received_.push_back({mapped ? ports_.transport().resolve(r, from) : nullptr, r, from});
  }
  into_.clear();
  for (Rank r : s.send_peers) {  // pushes have one type
    RemoteAddress to = op.peer_out[static_cast<size_t>(r)];
    to.offset_bytes += s.dst.first_elem * elem_bytes;
    into_.push_back(ports_.transport().resolve(r, to));
  }
  return combine(op, s, s.src.num_elems, own_source(op, s, 0), own_sink(op, s, 0));
}

}  // namespace rondo
