#include "transport/net/tcp_rail.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "transport/net/tcp_socket.h"

namespace rondo::net {
namespace {

constexpr uint64_t kMagic = 0x6c6961726f646e72;  // "rndorail"
constexpr size_t kBufferBytes = 16 * 1024;       // what is read ahead of short messages; less than a block
constexpr size_t kShareBytes = 48 * 1024;        // from here on messages share a connection with what comes
constexpr size_t kMostAtOnce = 16;               // messages that one call writes
constexpr size_t kFewConnections = 4;            // are asked one by one, without the kernel's list
constexpr uint32_t kLivelyPasses = 1024;         // for so many passes after something came on them
constexpr uint32_t kListPasses = 8;              // after so many passes the list is asked all the same
constexpr size_t kMostStrangers = 64;            // connections beyond one a rank that have not said who they are
constexpr uint64_t kHelloNs = 10'000'000'000;    // until they must have

/// The first bytes of a connection.
struct Greeting {
  uint64_t magic = kMagic;
  uint64_t session = 0;
  int32_t from = 0, to = 0;
};

}  // namespace

Expected<std::unique_ptr<TcpRail>> TcpRail::create(Rank rank, int nranks, Sink& sink, const std::string& device) {
  std::unique_ptr<TcpRail> rail(new TcpRail(rank, nranks, sink, device));
  RONDO_TRY(rail->open());
  return rail;
}

Status TcpRail::open() {
  auto failed = [](const char* what) {
    return Status(StatusCode::kSystem, fmt::format("{}: {}", what, error_text(errno)));
  };
  if (!device_.empty()) {
    RONDO_TRY_ASSIGN(local_, address_of_interface(device_));
  }
  // Without an interface one socket serves both versions of IP; where there is no IPv6, IPv4 alone.
  listener_ = listen_at(local_.empty() ? "::" : local_);
  if (listener_ < 0 && local_.empty()) listener_ = listen_at("0.0.0.0");
  if (listener_ < 0) return failed("a socket to listen on");
  sockaddr_storage at{};
  socklen_t bytes = sizeof at;
  if (getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &bytes) != 0) return failed("getsockname");
  const uint16_t port = ntohs(at.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&at)->sin_port
                                                      : reinterpret_cast<sockaddr_in6*>(&at)->sin6_port);
  address_ = fmt::format("{} {}", port, local_);
  event_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (event_fd_ < 0) return failed("epoll_create1");
  epoll_event e{};
  e.events = EPOLLIN;
  if (epoll_ctl(event_fd_, EPOLL_CTL_ADD, listener_, &e) != 0) return failed("epoll_ctl");
  return {};
}

TcpRail::~TcpRail() {
  for (const auto& c : connections_)
    if (c->fd >= 0) ::close(c->fd);
  if (listener_ >= 0) ::close(listener_);
  if (event_fd_ >= 0) ::close(event_fd_);
}

void TcpRail::add(std::unique_ptr<Connection> c) {
  tune_socket(c->fd);
  c->since_ns = monotonic_ns();
  c->last_pass = passes_;
  c->buffer.resize(kBufferBytes);
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.ptr = c.get();
  epoll_ctl(event_fd_, EPOLL_CTL_ADD, c->fd, &e);
  connections_.push_back(std::move(c));
}

// Never waits: what is sent before the other side has answered stays in the queue.
TcpRail::Connection* TcpRail::connect(Rank to) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  const PeerRoute& route = routes_[static_cast<size_t>(to)];
  const size_t space = std::min(route.address.find(' '), route.address.size());
  const auto port = static_cast<uint16_t>(std::strtoul(route.address.substr(0, space).c_str(), nullptr, 10));
  std::string host = space < route.address.size() ? route.address.substr(space + 1) : std::string();
  if (host.empty()) host = route.host;
  auto c = std::make_unique<Connection>();
  c->peer = to;
  Connection* const made = c.get();
  sockaddr_storage at{};
  socklen_t bytes = 0;
  std::string why;
  if (!to_sockaddr(host, port, &at, &bytes)) why = "it has no address";
  else if (c->fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); c->fd < 0)
    why = error_text(errno);
  if (why.empty() && !local_.empty()) {
    sockaddr_storage from{};
    socklen_t from_bytes = 0;
    if (!to_sockaddr(local_, 0, &from, &from_bytes) || bind(c->fd, reinterpret_cast<sockaddr*>(&from), from_bytes) != 0)
      why = fmt::format("binding to {}: {}", local_, error_text(errno));
  }
  if (why.empty() && ::connect(c->fd, reinterpret_cast<sockaddr*>(&at), bytes) != 0 && errno != EINPROGRESS)
    why = error_text(errno);
  if (!why.empty()) {
    if (c->fd >= 0) ::close(c->fd);
    peer.failed = true;
    peer.failed_ns = monotonic_ns();
    peer.how = fmt::format("connecting to {} port {}: {}", host, port, why);
    return nullptr;
  }
  add(std::move(c));
  peer.ours = made;
  greet(*made, to);
  return made;
}

void TcpRail::greet(Connection& c, Rank to) {
  Greeting h;
  h.session = session();
  h.from = rank_;
  h.to = to;
  Outgoing o;
  o.copy = std::make_unique<Copy>();
  o.copy->data.assign(reinterpret_cast<const char*>(&h), sizeof h);
  o.data = reinterpret_cast<const std::byte*>(o.copy->data.data());
  o.frame.bytes = sizeof h;
  c.queue.push_back(std::move(o));
  ++pending_;
}

void TcpRail::accept_all() {
  for (;;) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    const uint64_t now = monotonic_ns();
    size_t strangers = 0;
    for (const auto& c : connections_) {
      if (c->peer >= 0 || c->broken) continue;
      if (now - c->since_ns > kHelloNs) drop(*c);
      else ++strangers;
    }
    if (strangers >= kMostStrangers + peers_.size()) {
      ::close(fd);
      continue;
    }
    auto c = std::make_unique<Connection>();
    c->fd = fd;
    add(std::move(c));
  }
}

// True when the connection's peer is known.
bool TcpRail::take_hello(Connection& c) {
  if (c.end - c.begin < sizeof(Greeting)) return false;
  Greeting h;
  std::memcpy(&h, c.buffer.data() + c.begin, sizeof h);
  if (h.magic != kMagic || h.session != session() || h.to != rank_ || h.from < 0 || h.from == rank_ ||
      static_cast<size_t>(h.from) >= peers_.size() || peers_[static_cast<size_t>(h.from)].theirs != nullptr) {
    if (!std::exchange(told_of_stranger_, true))
      std::fprintf(stderr, "rondo: rank %d turns a connection away that does not know its communicator\n", rank_);
    drop(c);
    return false;
  }
  c.begin += sizeof h;
  c.peer = h.from;
  peers_[static_cast<size_t>(c.peer)].theirs = &c;
  return true;
}

void TcpRail::post(Rank to, const void* header, size_t header_bytes, const void* data, size_t bytes,
                   std::unique_ptr<Copy> copy, Lent* lent) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  const bool shares = bytes >= kShareBytes && to < rank_ && peer.theirs != nullptr && !is_sealed();
  Connection* c = peer.failed ? nullptr : shares ? peer.theirs : peer.ours != nullptr ? peer.ours : connect(to);
  if (c == nullptr || c->broken) {
    if (lent != nullptr) lent->loan->give_back();
    return;
  }
  Outgoing& o = c->queue.emplace_back();
  o.frame = {static_cast<uint32_t>(header_bytes), static_cast<uint32_t>(bytes), {}};
  o.header = header;
  o.data = static_cast<const std::byte*>(data);
  o.copy = std::move(copy);
  o.lent = lent;
  ++pending_;
}

uint32_t TcpRail::pending(Rank to) const {
  const Peer& peer = peers_[static_cast<size_t>(to)];
  size_t n = 0;
  for (const Connection* c : {peer.ours, peer.theirs})
    if (c != nullptr) n += c->queue.size();
  return static_cast<uint32_t>(n);
}

void TcpRail::finish_front(Connection& c) {
  const Outgoing& o = c.queue.front();
  if (o.lent != nullptr) {
    o.lent->loan->give_back();
    ++moves_;
  }
  c.queue.pop_front();
  --pending_;
}

// As much as the kernel takes. What was posted since the last time goes in one call: a credit costs next to nothing
// where there are data to be sent.
void TcpRail::write(Connection& c) {
  if (c.is_full) {  // not for a little room: what goes in small parts costs both sides more
    pollfd room{c.fd, POLLOUT, 0};
    if (::poll(&room, 1, 0) == 0) return;
    c.is_full = false;
  }
  while (!c.queue.empty()) {
    std::array<iovec, 3 * kMostAtOnce> parts;
    size_t n = 0, total = 0;
    for (size_t i = 0; i < std::min(c.queue.size(), kMostAtOnce); ++i) {
      Outgoing& o = c.queue[i];
      size_t skip = o.written;
      auto part = [&](const void* at, size_t bytes) {
        const size_t skipped = std::min(skip, bytes);
        skip -= skipped;
        if (bytes == skipped) return;
        parts[n++] = {static_cast<char*>(const_cast<void*>(at)) + skipped, bytes - skipped};
        total += bytes - skipped;
      };
      if (o.header != nullptr) {
        part(&o.frame, sizeof o.frame);
        part(o.header, o.frame.header_bytes);
      }
      part(o.data, o.frame.bytes);
    }
    msghdr m{};
    m.msg_iov = parts.data();
    m.msg_iovlen = n;
    const ssize_t written = sendmsg(c.fd, &m, MSG_NOSIGNAL);
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != ENOBUFS && errno != ENOMEM) fail(c, error_text(errno));
      c.is_full = true;
      return;
    }
    const bool all = static_cast<size_t>(written) == total;
    for (auto left = static_cast<size_t>(written); !c.queue.empty();) {
      Outgoing& o = c.queue.front();
      const size_t step = std::min(left, o.total() - o.written);
      o.written += step;
      left -= step;
      if (o.written < o.total()) break;
      finish_front(c);
    }
    if (!all) {
      c.is_full = true;
      return;
    }
  }
}

bool TcpRail::has_unread() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& c) { return !c->broken && c->begin != c->end; });
}

void TcpRail::push() {
  for (size_t i = 0; i < connections_.size(); ++i)
    if (Connection& c = *connections_[i]; !c.queue.empty()) write(c);
}

bool TcpRail::progress() {
  if (std::exchange(any_broken_, false)) sweep();
  const uint64_t before = moves_;
  ++passes_;
  auto is_lively = [this](const auto& c) { return passes_ - c->last_pass < kLivelyPasses; };
  const auto lively = static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(), is_lively));
  const bool by_list = lively == 0 || lively > kFewConnections || passes_ % kListPasses == 0;
  for (size_t i = 0; i < connections_.size(); ++i) {  // it may grow meanwhile
    Connection& c = *connections_[i];
    if (!c.queue.empty()) write(c);
    if (!c.broken && ((!by_list && is_lively(connections_[i])) || c.begin != c.end)) read(c);
  }
  if (!by_list) return moves_ != before;
  epoll_event news[16];
  const int n = epoll_wait(event_fd_, news, 16, 0);
  for (int i = 0; i < n; ++i) {
    auto* c = static_cast<Connection*>(news[i].data.ptr);
    if (c == nullptr) accept_all();
    else if (!c->broken && (news[i].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) read(*c);
  }
  return moves_ != before;
}

void TcpRail::drop(Connection& c) {
  if (c.broken) return;
  c.broken = any_broken_ = true;
  // Also for a copy that a fork has left in another process.
  epoll_ctl(event_fd_, EPOLL_CTL_DEL, c.fd, nullptr);
  ::shutdown(c.fd, SHUT_RDWR);
  ::close(std::exchange(c.fd, -1));
  while (!c.queue.empty()) finish_front(c);
  keep_out_of_buffers(c);
}

void TcpRail::fail(Connection& c, std::string_view how) {
  if (c.broken) return;
  drop(c);
  if (c.peer < 0) return;
  Peer& peer = peers_[static_cast<size_t>(c.peer)];
  if (peer.ours == &c) peer.ours = nullptr;
  if (peer.theirs == &c) peer.theirs = nullptr;
  if (peer.failed) return;
  peer.failed = true;
  peer.failed_ns = monotonic_ns();
  peer.how = how;
}

void TcpRail::sweep() {
  std::erase_if(connections_, [](const auto& c) { return c->broken; });
}

// What is still to come of the message at hand goes nowhere.
void TcpRail::keep_out_of_buffers(Connection& c) {
  Incoming& m = c.message;
  if (!c.in_message || m.place.landing == nullptr) return;
  m.place.landing->drop();
  m.elsewhere.resize(m.bytes);
  m.place = {reinterpret_cast<std::byte*>(m.elsewhere.data())};
  m.wanted = false;
}

// What has not been written yet is copied: nothing has to be waited for.
bool TcpRail::recall(uint64_t, uint64_t) {
  for (const auto& c : connections_) {
    keep_out_of_buffers(*c);
    for (Outgoing& o : c->queue) {
      if (o.lent == nullptr) continue;
      o.copy = std::make_unique<Copy>();
      o.copy->data.assign(reinterpret_cast<const char*>(o.data), o.frame.bytes);
      o.data = reinterpret_cast<const std::byte*>(o.copy->data.data());
      std::exchange(o.lent, nullptr)->loan->give_back();
    }
  }
  return true;
}

std::vector<PeerLoss> TcpRail::losses(uint64_t before_ns) const {
  std::vector<PeerLoss> found;
  for (size_t r = 0; r < peers_.size(); ++r)
    if (peers_[r].failed && peers_[r].failed_ns < before_ns) found.push_back(loss(static_cast<Rank>(r), peers_[r].how));
  return found;
}

// The other side's kernel has all that was written: then no end of this process takes it back.
bool TcpRail::flush() {
  return std::all_of(connections_.begin(), connections_.end(), [](const auto& c) {
    int unacknowledged = 0;
    return c->broken || (c->queue.empty() && (ioctl(c->fd, SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0));
  });
}

bool TcpRail::close(uint64_t) {
  closing_ = true;
  for (const auto& c : connections_) drop(*c);
  return true;
}

bool TcpRail::arm() {
  for (const auto& c : connections_) {
    if (c->broken || c->queue.empty() != c->watches_room) continue;
    c->watches_room = !c->watches_room;
    epoll_event e{};
    e.events = EPOLLIN | (c->watches_room ? static_cast<uint32_t>(EPOLLOUT) : 0U);
    e.data.ptr = c.get();
    epoll_ctl(event_fd_, EPOLL_CTL_MOD, c->fd, &e);
  }
  epoll_event news;
  return epoll_wait(event_fd_, &news, 1, 0) == 0;
}

}  // namespace rondo::net
