// Executes direct steps: they copy or reduce from buffer to buffer. Credits contain the addresses of the buffers.
#include <algorithm>
#include <cstring>

#include "engine/executor.h"

namespace rondo {

// Sends or receives a credit. It contains the addresses of the sender's buffers. If the buffers of any rank cannot be
// reached, every rank reads this in the same credits before the direct step. All ranks then run the fallback.
bool Executor::credit(Operation& op, const ProgramStep& s) {
  struct Credit {
    RemoteAddress in, out;
  };
  static_assert(sizeof(Credit) <= kLinePayloadBytes);
  if (!ready(op, s, 1)) return false;
  const Program& p = *op.program;
  if (!p.direct) {  // without addresses: it only shows that this rank has reached this step
    move(op, s, 0, 0, 1);
    return true;
  }
  if (!s.send.empty()) {
    Credit c{op.peer_in[static_cast<size_t>(rank_)], op.peer_out[static_cast<size_t>(rank_)]};
    for (WritePort* w : s.send) {
      std::memcpy(w->fifo.line(0), &c, sizeof c);
      w->post(1, op.fingerprint(s));
    }
    return true;
  }
  bool reachable = op.peer_in[static_cast<size_t>(rank_)].region != RemoteAddress::kNowhere &&
                   op.peer_out[static_cast<size_t>(rank_)].region != RemoteAddress::kNowhere;
  for (ReadPort* r : s.recv) {
    Credit c;
    std::memcpy(&c, r->fifo.line(0), sizeof c);
    r->release(1);
    op.peer_in[static_cast<size_t>(r->key.writer)] = c.in;
    op.peer_out[static_cast<size_t>(r->key.writer)] = c.out;
    reachable &= c.in.region != RemoteAddress::kNowhere && c.out.region != RemoteAddress::kNowhere;
  }
  if (!reachable) {
    RONDO_CHECK(op.fallback != nullptr);
    op.load(op.fallback);
  }
  return true;
}

const std::byte* Executor::mapped_source(const Operation& op, const ProgramStep& s, Rank r) const {
  const auto& addresses = s.src_buffer == Buffer::kOut ? op.peer_out : op.peer_in;
  return ports_.transport().resolve(r, addresses[static_cast<size_t>(r)]) +
         s.src.first_elem * op.program->elem_bytes[static_cast<int>(s.src_buffer)];
}

// Returns true if the data of a direct step must be converted first: it is a peer's input in a call of mixed types.
bool Executor::converts(const Program& p, const ProgramStep& s) { return p.mixed && s.src_buffer == Buffer::kIn; }

// Processes one block of a direct step. Mapped sources and sinks are used in place. Other sources are first pulled into
// a buffer of this rank.
Status Executor::direct_block(Operation& op, const ProgramStep& s, uint64_t skip, uint64_t num_elems) {
  const uint64_t elem_bytes = op.program->elem_bytes[static_cast<int>(s.src_buffer)];
  const uint64_t skip_bytes = skip * elem_bytes, bytes = num_elems * elem_bytes;
  const bool through_block = s.has(kVerbSrc) || converts(*op.program, s);
  const auto& addresses = s.src_buffer == Buffer::kOut ? op.peer_out : op.peer_in;
  uint32_t num_src = 0, num_dst = 0;
  std::byte* own = s.has(kVerbSrc) ? at(op, s.src_buffer, s.src.first_elem + skip) : nullptr;
  std::byte* dst = s.has(kVerbDst) ? at(op, s.dst_buffer, s.dst.first_elem + skip) : nullptr;
  std::byte* block = pulled_.data();
  for (Rank r : s.recv_peers) {
    if (own != nullptr && num_src == s.src_position) sources_[num_src++] = own;
    const RemoteAddress& address = addresses[static_cast<size_t>(r)];
    if (address.region != RemoteAddress::kByCopy) {
      sources_[num_src++] = mapped_source(op, s, r) + skip_bytes;
      continue;
    }
    std::byte* to = through_block ? block : dst;  // a single source goes straight to its destination
    RONDO_TRY(ports_.transport().pull(r, address, s.src.first_elem * elem_bytes + skip_bytes, to, bytes));
    sources_[num_src++] = to;
    block += bytes;
  }
  if (own != nullptr && num_src <= s.src_position) sources_[num_src++] = own;
  if (dst != nullptr && !(num_src == 1 && sources_[0] == dst && !s.prescale)) sinks_[num_dst++] = dst;
  for (Rank r : s.send_peers)
    sinks_[num_dst++] = ports_.transport().resolve(r, op.peer_out[static_cast<size_t>(r)]) +
                        s.dst.first_elem * elem_bytes + skip_bytes;  // pushes have one type
  run_kernel(op, s, num_src, num_dst, num_elems, dst != nullptr);
  return {};
}

bool Executor::direct(Operation& op, const ProgramStep& s) {
  if (!op.reach_error.ok()) return false;  // permanent: the diagnosis ends the operation
  const auto& addresses = s.src_buffer == Buffer::kOut ? op.peer_out : op.peer_in;
  const auto copies = std::count_if(s.recv_peers.begin(), s.recv_peers.end(), [&](Rank r) {
    return addresses[static_cast<size_t>(r)].region == RemoteAddress::kByCopy;
  });
  uint64_t block_elems = s.src.num_elems;
  if (copies != 0 && (s.has(kVerbSrc) || converts(*op.program, s))) {  // small blocks stay in the cache
    const uint64_t block_bytes = std::max<uint64_t>(kPullBytes / static_cast<uint64_t>(copies), 16 * 1024);
    block_elems = block_bytes / op.program->elem_bytes[static_cast<int>(s.src_buffer)];
    pulled_.reserve(block_bytes * static_cast<uint64_t>(copies));
  }
  for (uint64_t skip = 0; skip < s.src.num_elems; skip += block_elems) {
    op.reach_error = direct_block(op, s, skip, std::min(block_elems, s.src.num_elems - skip));
    if (!op.reach_error.ok()) return false;
  }
  return true;
}

}  // namespace rondo
