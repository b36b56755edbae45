#include "bootstrap/link.h"

#include <fmt/format.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/codec.h"

namespace rondo {
namespace {

constexpr uint32_t kFrameMagic = 0x52466d31;
constexpr size_t kHeaderBytes = 16;
constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int) * 253);

std::string header_of(FrameKind kind, uint32_t sequence, size_t num_descriptors, const std::string* payload) {
  Encoder header;
  header(kFrameMagic, static_cast<uint8_t>(kind), static_cast<uint8_t>(num_descriptors), uint16_t{0}, sequence,
         static_cast<uint32_t>(payload != nullptr ? payload->size() : 0));
  return header.take();
}

}  // namespace

std::string_view frame_name(FrameKind kind) {
  switch (kind) {
    case FrameKind::kJoin: return "join";
    case FrameKind::kTable: return "table";
    case FrameKind::kRefused: return "refusal";
    case FrameKind::kMeshed: return "meshed";
    case FrameKind::kGather: return "all_gather";
    case FrameKind::kHostGather: return "all_gather on one host";
    case FrameKind::kBarrier: return "barrier";
    case FrameKind::kGoodbye: return "goodbye";
    case FrameKind::kOffer: return "shrink";
    case FrameKind::kView: return "shrink";
    case FrameKind::kGaveUp: return "giving up";
    case FrameKind::kEvents: return "membership events";
  }
  return "unknown frame";
}

Link::Link(Fd fd, bool passes_descriptors, size_t max_payload_bytes, std::unique_ptr<TlsSession> session)
    : fd_(std::move(fd)),
      passes_descriptors_(passes_descriptors),
      max_payload_bytes_(max_payload_bytes),
      session_(std::move(session)) {
  RONDO_CHECK(session_ == nullptr || !passes_descriptors_);
  if (session_ != nullptr && unseal_locked({})) parse_locked();
}

void Link::queue(FrameKind kind, uint32_t sequence, std::shared_ptr<const std::string> payload,
                 std::span<const int> descriptors) {
  RONDO_CHECK(descriptors.size() <= kMaxDescriptorsPerFrame && (descriptors.empty() || passes_descriptors_));
  std::string header = header_of(kind, sequence, descriptors.size(), payload.get());
  const std::lock_guard lock(mutex_);
  if (end_ != End::kNone) return;
  outbox_.push_back({std::move(header), std::move(payload), {descriptors.begin(), descriptors.end()}});
  outbox_.back().is_events = kind == FrameKind::kEvents;
}

void Link::drop_unsent() {
  const std::lock_guard lock(mutex_);
  drop_unsent_locked();
}

void Link::drop_unsent_locked() {
  outbox_.remove_if([](const QueuedFrame& out) { return out.done_bytes == 0 && !out.is_events; });
}

// Ends the link after a failed write.
void Link::end_after_write(int error) {
  drain_locked();  // a goodbye may have arrived before the break
  if (end_ == End::kNone) end_locked(fmt::format("write: {}", errno_text(error)));
}

bool Link::flush() {
  const std::lock_guard lock(mutex_);
  return flush_locked();
}

bool Link::flush_sealed() {
  constexpr size_t kEnough = 1 << 18;  // sealed ahead of the socket
  while (end_ == End::kNone) {
    while (!outbox_.empty() && sealed_.size() < kEnough) {
      const QueuedFrame& out = outbox_.front();
      Status s = session_->seal(out.header);
      if (s.ok() && out.payload != nullptr) s = session_->seal(*out.payload);
      if (!s.ok()) {
        end_locked(std::string(s.message()));
        return true;
      }
      sealed_ += session_->to_send();
      outbox_.pop_front();
    }
    if (sealed_.empty()) return true;
    const ssize_t n = ::send(fd_.get(), sealed_.data(), sealed_.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return false;
    if (n < 0) {
      end_after_write(errno);
      return true;
    }
    sealed_.erase(0, static_cast<size_t>(n));
  }
  return true;
}

// Returns false if the link has ended.
bool Link::unseal_locked(std::string_view arrived) {
  Status s = session_->take(arrived);
  if (s.ok()) s = session_->open(&inbox_);
  sealed_ += session_->to_send();
  if (!s.ok()) end_locked(std::string(s.message()));
  return s.ok();
}

bool Link::flush_locked() {
  if (session_ != nullptr) return flush_sealed();
  while (!outbox_.empty() && end_ == End::kNone) {
    QueuedFrame& out = outbox_.front();
    const std::string_view payload = out.payload ? std::string_view(*out.payload) : std::string_view();
    iovec parts[2];
    int num_parts = 0;
    size_t skip = out.done_bytes;
    for (const std::string_view part : {std::string_view(out.header), payload}) {
      if (skip < part.size()) parts[num_parts++] = {const_cast<char*>(part.data()) + skip, part.size() - skip};
      skip -= std::min(skip, part.size());
    }
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(num_parts);
    alignas(cmsghdr) char control[kControlBytes] = {};
    if (!out.descriptors.empty()) {  // the kernel sends them with the next byte
      const size_t bytes = out.descriptors.size() * sizeof(int);
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(bytes);
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(bytes);
      std::memcpy(CMSG_DATA(c), out.descriptors.data(), bytes);
    }
    const ssize_t n = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return false;
    // The kernel limits the descriptors in flight of a user's processes. Retry when peers have received some.
    if (n < 0 && errno == ETOOMANYREFS) return false;
    if (n < 0) {
      end_after_write(errno);
      break;
    }
    out.descriptors.clear();
    out.done_bytes += static_cast<size_t>(n);
    if (out.done_bytes == out.header.size() + payload.size()) outbox_.pop_front();
  }
  return true;
}

void Link::drain(Until until) {
  const std::lock_guard lock(mutex_);
  drain_locked(until);
}

void Link::drain_locked(Until until) {
  while (end_ == End::kNone) {
    char buffer[65536];
    iovec part = {buffer, sizeof(buffer)};
    alignas(cmsghdr) char control[kControlBytes];
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (passes_descriptors_) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
    }
    const ssize_t n = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    const bool dropped = n > 0 && (message.msg_flags & MSG_CTRUNC) != 0;
    const size_t num_before = arrived_descriptors_.size();
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); n >= 0 && c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
        arrived_descriptors_.emplace_back(fd);
      }
    }
    if (n <= 0) return end_locked(n == 0 ? "the connection was closed" : errno_text(errno));
    // This process has no descriptors left. The frame arrives without its descriptors; an empty Fd marks this.
    if (dropped) {
      arrived_descriptors_.resize(num_before);
      arrived_descriptors_.emplace_back();
    }
    const std::string_view arrived(buffer, static_cast<size_t>(n));
    if (session_ == nullptr) inbox_.append(arrived);
    else if (!unseal_locked(arrived)) return;
    if (!parse_locked() || (until == Until::kShortRead && static_cast<size_t>(n) < sizeof(buffer))) return;
  }
}

bool Link::parse_locked() {
  size_t at = 0;
  while (inbox_.size() - at >= kHeaderBytes) {
    Decoder r(std::string_view(inbox_).substr(at, kHeaderBytes));
    const auto magic = r.get<uint32_t>();
    Frame frame;
    frame.kind = static_cast<FrameKind>(r.get<uint8_t>());
    const size_t num_descriptors = r.get<uint8_t>();
    r.get<uint16_t>();
    frame.sequence = r.get<uint32_t>();
    const size_t payload_bytes = r.get<uint32_t>();
    if (magic != kFrameMagic || payload_bytes > max_payload_bytes_ ||
        (num_descriptors != 0 && !passes_descriptors_)) {
      end_locked("it sent bytes that are not a rondo frame");
      return false;
    }
    if (inbox_.size() - at - kHeaderBytes < payload_bytes) {
      inbox_.reserve(at + kHeaderBytes + payload_bytes);
      break;
    }
    const bool dropped = num_descriptors != 0 && !arrived_descriptors_.empty() && !arrived_descriptors_.front();
    if (dropped) arrived_descriptors_.pop_front();
    if (!dropped && num_descriptors > arrived_descriptors_.size()) {
      end_locked("descriptors that it announced did not arrive");
      return false;
    }
    if (at == 0 && inbox_.size() == kHeaderBytes + payload_bytes) {  // usual, and without a copy: a table is large
      frame.payload = std::move(inbox_.erase(0, kHeaderBytes));
      inbox_.clear();
    } else {
      frame.payload = inbox_.substr(at + kHeaderBytes, payload_bytes);
      at += kHeaderBytes + payload_bytes;
    }
    for (size_t i = 0; i < num_descriptors && !dropped; ++i) {
      frame.descriptors.push_back(std::move(arrived_descriptors_.front()));
      arrived_descriptors_.pop_front();
    }
    if (frame.kind == FrameKind::kGoodbye) {
      peer_said_goodbye_ = true;
      note_ = std::move(frame.payload);
    } else if (frame.kind == FrameKind::kEvents) {
      events_.push_back(std::move(frame));
    } else {
      frames_.push_back(std::move(frame));
    }
  }
  if (at == inbox_.size()) std::string().swap(inbox_);  // free the memory: a table is large
  else inbox_.erase(0, at);
  return true;
}

std::optional<Frame> Link::pop_from(std::list<Frame>& frames) {
  const std::lock_guard lock(mutex_);
  if (frames.empty()) return std::nullopt;
  Frame frame = std::move(frames.front());
  frames.pop_front();
  return frame;
}

Link::End Link::end(std::string* why) const {
  const std::lock_guard lock(mutex_);
  if (why != nullptr) *why = why_;
  return end_;
}

void Link::end_locked(std::string why) {
  end_ = peer_said_goodbye_ ? End::kLeft : End::kLost;
  why_ = std::move(why);
  outbox_.clear();
}

std::string Link::note() const {
  const std::lock_guard lock(mutex_);
  return note_;
}

void Link::say_goodbye(const std::string& note) {
  const std::lock_guard lock(mutex_);
  if (!fd_ || said_goodbye_) return;
  said_goodbye_ = true;
  drop_unsent_locked();  // no peer will wait for these
  const auto payload = std::make_shared<const std::string>(note);
  outbox_.push_back({header_of(FrameKind::kGoodbye, 0, 0, payload.get()), payload, {}});
  flush_locked();
  ::shutdown(fd_.get(), SHUT_WR);
}

void Link::close() {
  const std::lock_guard lock(mutex_);
  if (!fd_) return;
  drain_locked();  // with unread bytes, close would send a reset, which could overtake the goodbye
  fd_.shut();
  if (end_ == End::kNone) end_locked("closed by this side");
}

void send_to_all(const std::vector<std::unique_ptr<Link>>& links, FrameKind kind, uint32_t sequence,
                 const std::shared_ptr<const std::string>& payload) {
  for (const auto& link : links) {
    if (!link) continue;
    link->queue(kind, sequence, payload);
    link->flush();
  }
}

}  // namespace rondo
