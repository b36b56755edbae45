// A TcpRail reads frames and headers through a small buffer, and data to their destination.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/tcp/tcp_rail.h"

namespace rondo::net {
namespace {

constexpr size_t kLongBytes = 32 * 1024;    // for longer messages only the next header is read ahead
constexpr size_t kBlockBytes = 128 * 1024;  // one read of data to be added: two of the kernel's segments
constexpr uint32_t kMostLooks = 64;         // before a long message without posted receive goes into the ring
constexpr size_t kMostBytes = 64 << 20;     // of a message's data

}  // namespace

// Reads available data: the current message to its destination, the rest into the buffer. Returns as recv().
ptrdiff_t TcpRail::fill(Connection& c) {
  if (c.begin == c.end) c.begin = c.end = 0;
  constexpr size_t kHead = 2 * sizeof(Frame) + sizeof(Header) + sizeof(DataHeader);  // of a credit, then of data
  if (c.begin != 0 && c.begin + kHead > c.buffer.size()) {
    std::memmove(c.buffer.data(), c.buffer.data() + c.begin, c.end - c.begin);
    c.end -= c.begin;
    c.begin = 0;
  }
  const size_t held = c.end - c.begin;
  size_t ahead = c.buffer.size() - c.end;
  Incoming& m = c.message;
  if (c.in_message ? m.bytes >= kLongBytes : c.reads_long) ahead = std::min(ahead, kHead - std::min(kHead, held));
  iovec parts[2];
  size_t n = 0;
  size_t wanted = c.in_message ? m.bytes - m.got : 0;
  if (wanted != 0 && m.in_pieces()) {
    const size_t waiting = m.got - m.added;
    if (wanted > kBlockBytes - waiting) {
      wanted = kBlockBytes - waiting;
      ahead = 0;  // this message continues first
    }
    parts[n++] = {c.block.get() + waiting, wanted};
  } else if (wanted != 0) {
    parts[n++] = {m.place.at + m.got, wanted};
  }
  if (ahead != 0) parts[n++] = {c.buffer.data() + c.end, ahead};
  msghdr h{};
  h.msg_iov = parts;
  h.msg_iovlen = n;
  const ssize_t came = recvmsg(c.fd.get(), &h, 0);
  if (came <= 0) return came;
  const size_t to_message = std::min(static_cast<size_t>(came), wanted);
  take(c, to_message);
  c.end += static_cast<size_t>(came) - to_message;
  return came;
}

// Counts `bytes` more of the message as received. Adds the block's whole pieces.
void TcpRail::take(Connection& c, size_t bytes) {
  Incoming& m = c.message;
  m.got += bytes;
  if (!m.in_pieces()) return;
  const size_t waiting = m.got - m.added;
  const size_t ripe = m.got == m.bytes ? waiting : waiting / PostedReceive::kPieceBytes * PostedReceive::kPieceBytes;
  if (ripe == 0) return;
  m.place.posted_receive->add(c.block.get(), m.added, ripe);
  m.added += ripe;
  std::memmove(c.block.get(), c.block.get() + ripe, waiting - ripe);
}

// Parses a message's header in the buffer. False if it is incomplete or invalid.
bool TcpRail::read_header(Connection& c) {
  const size_t held = c.end - c.begin;
  Frame f;
  if (held < sizeof f) return false;
  std::memcpy(&f, c.buffer.data() + c.begin, sizeof f);
  if ((f.header_bytes != sizeof(Header) && f.header_bytes != sizeof(DataHeader)) || f.bytes > kMostBytes) {
    nonsense(c);
    return false;
  }
  if (held < sizeof f + f.header_bytes) return false;
  // Check the lengths before waiting for so many bytes. This runs once for each message, because sealed messages never
  // wait for their readers.
  if (is_sealed() && !is_proven(c.peer, {reinterpret_cast<const char*>(&f), kLengthsBytes}, f.proof)) {
    nonsense(c);
    return false;
  }
  Incoming& m = c.message;
  m.header = {};
  std::memcpy(static_cast<void*>(&m.header), c.buffer.data() + c.begin + sizeof f, f.header_bytes);
  m.header_bytes = f.header_bytes;
  m.bytes = f.bytes;
  m.got = m.added = 0;
  m.place = {};
  m.wanted = true;
  if (!plausible(m.header, m.header_bytes, c.peer)) {
    nonsense(c);
    return false;
  }
  c.begin += sizeof f + f.header_bytes;
  return true;
}

// Parses the buffer. True if a message can be read, or is complete.
bool TcpRail::begin_message(Connection& c) {
  if (!read_header(c)) return false;
  Incoming& m = c.message;
  c.in_message = true;
  if (c.end - c.begin >= m.bytes) {  // the message is complete in the buffer
    m.place.at = c.buffer.data() + c.begin;
    m.got = m.bytes;
    c.begin += m.bytes;
    return true;
  }
  if (!is_sealed() && m.header_bytes == sizeof(DataHeader)) {
    // This rank may be behind its peer, and post its receive in a moment. The data then need not pass through the ring.
    const bool may_wait = m.bytes >= kLongBytes && c.looks < kMostLooks;
    m.place = sink_.place(m.header.header, m.header.line, m.bytes,
                          may_wait ? PostedReceiveUse::kSoon : PostedReceiveUse::kWhereAsked);
    c.waits = m.place.later;
    c.looks = c.waits ? c.looks + 1 : 0;
    if (c.waits) {
      c.begin -= sizeof(Frame) + m.header_bytes;
      c.in_message = false;
      return false;
    }
    m.wanted = m.place.at != nullptr || m.place.posted_receive != nullptr;
  }
  if (m.place.posted_receive != nullptr && m.in_pieces()) {
    if (c.block == nullptr) c.block = std::make_unique_for_overwrite<std::byte[]>(kBlockBytes);
  } else if (m.place.at == nullptr) {
    m.elsewhere.resize(m.bytes);
    m.place.at = reinterpret_cast<std::byte*>(m.elsewhere.data());
  }
  // The available part fits the block, because it is in the buffer.
  const size_t here = std::min(m.bytes, c.end - c.begin);
  std::memcpy(m.in_pieces() ? c.block.get() : m.place.at, c.buffer.data() + c.begin, here);
  take(c, here);
  c.begin += here;
  return true;
}

void TcpRail::end_message(Connection& c) {
  Incoming& m = c.message;
  c.in_message = false;
  c.reads_long = m.bytes >= kLongBytes;
  if (!m.wanted || closing_) return;
  const bool lined = m.header_bytes == sizeof(DataHeader);
  const std::byte* data = m.place.at;
  size_t bytes = m.bytes;
  if (is_sealed()) {
    if (!unseal(c.peer, {reinterpret_cast<const char*>(&m.header), m.header_bytes}, data, bytes)) return ignore(c);
    data = reinterpret_cast<const std::byte*>(unsealed().data());
    bytes = unsealed().size();
  }
  ++moves_;
  if (m.place.posted_receive != nullptr) m.place.posted_receive->finish();
  else if (lined && bytes != 0 && !sink_.put(m.header.header, m.header.line, data, bytes)) return;
  sink_.arrived(m.header.header, lined ? &m.header.line : nullptr, data, bytes);
}

// True if data arrived.
bool TcpRail::more(Connection& c) {
  const ptrdiff_t came = fill(c);
  if (came > 0) {
    c.last_pass = passes_;
    return true;
  }
  if (came == 0) ended(c, 0);
  else if (errno != EAGAIN && errno != EINTR) ended(c, errno);
  return false;
}

// Reads at most one message: its reader may then post the next receive.
void TcpRail::read(Connection& c) {
  for (const uint64_t before = moves_; c.fd && !c.ignored && moves_ == before;) {
    if (!c.known) {
      if (!take_answer(c) && (!c.fd || c.ignored || !more(c))) return;
    } else if (c.in_message || begin_message(c)) {
      if (c.message.got < c.message.bytes && !more(c)) return;
      if (c.message.got == c.message.bytes) end_message(c);
    } else if (std::exchange(c.waits, false) || !c.fd || c.ignored || !more(c)) {
      return;
    }
  }
}

}  // namespace rondo::net
