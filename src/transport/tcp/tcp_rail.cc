#include "transport/tcp/tcp_rail.h"

#include <fmt/format.h>
#include <linux/sockios.h>
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

namespace rondo::net {
namespace {

constexpr uint64_t kMagic = 0x6c6961726f646e72;  // "rndorail"
constexpr size_t kBufferBytes = 16 * 1024;       // read-ahead of short messages; less than a block
constexpr size_t kShareBytes = 48 * 1024;        // longer messages may share a connection with received data
constexpr size_t kMostAtOnce = 16;               // messages in one write call
constexpr size_t kFewConnections = 4;            // are polled one by one, without epoll
constexpr uint32_t kLivelyPasses = 1024;         // a connection is lively for this many passes after receiving
constexpr uint32_t kListPasses = 8;              // passes between two uses of epoll at most
constexpr size_t kMostUnknown = 64;              // unauthenticated connections beyond one per rank
constexpr uint64_t kConnectNs = 10'000'000'000;  // time limit for reconnecting after unanswered connections
constexpr uint64_t kFirstPauseNs = 1'000'000;    // pause before the first reconnection, doubled each time
constexpr uint32_t kMostDoublings = 7;

/// The first bytes of a connection.
struct Greeting {
  uint64_t magic = kMagic;
  uint64_t session = 0;
  int32_t from = 0, to = 0;
};

}  // namespace

const Network tcp_network = {
    .name = "tcp",
    .summary = "sockets",
    .lacks = "",
    .long_messages = true,  // every kernel call costs time, and smaller calls make more packets
    .is_built = true,
    .is_preferred = [] { return true; },
    .describe = [] { return std::string("always available"); },
    .make_rail = TcpRail::create,
};

Expected<std::unique_ptr<Rail>> TcpRail::create(Sink& sink, const RailOptions& options) {
  std::unique_ptr<TcpRail> rail(new TcpRail(sink, options));
  RONDO_TRY(rail->open(options.addresses));
  return std::unique_ptr<Rail>(std::move(rail));
}

Status TcpRail::open(const std::vector<std::string>& addresses) {
  std::vector<IpAddress> at;
  if (!device_.empty()) {
    RONDO_TRY_ASSIGN(at, usable_addresses("=" + device_, fmt::format("RONDO_RAILS names {}, which", device_)));
    at.resize(1);
    local_ = at[0];
  }
  for (const std::string& text : local_ ? std::vector<std::string>() : addresses)
    if (const auto address = IpAddress::parse(text)) at.push_back(*address);
  RONDO_TRY_ASSIGN(Listeners listeners, listen_tcp(at, 0));
  address_ = fmt::format("{} {}", listeners.port, local_ ? local_->text() : "");
  RONDO_TRY(acceptor_.open(Fd(), std::move(listeners.sockets)));
  acceptor_.set_most(kMostUnknown + pairs_.size());
  using Arrival = Acceptor<FixedGreeting>::Connection;
  acceptor_.serve([this](const Arrival&) { return FixedGreeting(greeting_bytes()); },
                  [this](Arrival& a, bool complete) {
                    if (complete) admit(&a.fd, a.handshake->bytes());
                  },
                  false);
  events_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  epoll_event e = {EPOLLIN, {.ptr = nullptr}};
  if (!events_ || epoll_ctl(events_.get(), EPOLL_CTL_ADD, acceptor_.event_fd(), &e) != 0)
    return Status(StatusCode::kSystem, "epoll: " + errno_text(errno));
  return {};
}

TcpRail::Connection& TcpRail::add(Rank peer) {
  Connection& c = *connections_.emplace_back(std::make_unique<Connection>());
  c.peer = peer;
  c.greeting = greeting_to(peer);
  c.since_ns = monotonic_ns();
  c.buffer.resize(kBufferBytes);
  return c;
}

// For a new descriptor.
void TcpRail::watch(Connection& c) {
  tune_tcp(c.fd.get());
  c.last_pass = passes_;
  c.watches_room = c.is_full = false;
  epoll_event e = {EPOLLIN, {.ptr = &c}};
  epoll_ctl(events_.get(), EPOLL_CTL_ADD, c.fd.get(), &e);
}

TcpRail::Connection* TcpRail::connect(Rank to) {
  Connection& made = add(to);
  pairs_[static_cast<size_t>(to)].ours = &made;
  dial(made);
  return made.broken ? nullptr : &made;
}

// Never waits: messages stay in the queue until the connection is made and the peer has answered.
void TcpRail::dial(Connection& c) {
  const PeerRoute& route = routes_[static_cast<size_t>(c.peer)];
  const size_t space = std::min(route.address.find(' '), route.address.size());
  const auto port = static_cast<uint16_t>(std::strtoul(route.address.substr(0, space).c_str(), nullptr, 10));
  std::string host = space < route.address.size() ? route.address.substr(space + 1) : std::string();
  if (host.empty()) host = route.host;
  const std::optional<IpAddress> to = IpAddress::parse(host);
  bool connected = false;
  int error = 0;
  if (to) c.fd = begin_connect_tcp(*to, port, &connected, &error, local_ ? &*local_ : nullptr);
  const std::string why = !to ? "it has no address" : !c.fd ? errno_text(error) : std::string();
  if (!why.empty()) return fail(c, fmt::format("connecting to {} port {}: {}", host, port, why));
  watch(c);
}

size_t TcpRail::greeting_bytes() const { return sizeof(Greeting) + (is_sealed() ? Sealer::kExtraBytes : 0); }

std::string TcpRail::greeting_to(Rank to) {
  const Greeting h{.session = session(), .from = rank_, .to = to};
  const std::string text(reinterpret_cast<const char*>(&h), sizeof h);
  return is_sealed() ? text + proof_of(to, text) : text;
}

// The rank of this communicator that sent the greeting; -1: none.
Rank TcpRail::who_greets(std::string_view greeting) {
  Greeting h;
  std::memcpy(&h, greeting.data(), sizeof h);
  if (h.magic != kMagic || h.session != session() || h.to != rank_ || h.from < 0 || h.from == rank_ ||
      static_cast<size_t>(h.from) >= pairs_.size())
    return -1;
  return !is_sealed() || is_proven(h.from, greeting.substr(0, sizeof h), greeting.data() + sizeof h) ? h.from : -1;
}

// Takes the descriptor if the greeting is a peer's.
void TcpRail::admit(Fd* fd, std::string_view greeting) {
  const Rank from = who_greets(greeting);
  if (from < 0 || pairs_[static_cast<size_t>(from)].theirs != nullptr || lost(from)) {
    if (!std::exchange(told_of_unauthenticated_, true))
      std::fprintf(stderr, "rondo: rank %d refuses a connection that does not belong to its communicator\n", rank_);
    return;
  }
  Connection& c = add(from);
  c.fd = std::move(*fd);
  c.known = true;
  watch(c);
  pairs_[static_cast<size_t>(from)].theirs = &c;
  ++num_admitted_;
  write(c);  // the answer that the peer waits for
}

// True if the peer has answered.
bool TcpRail::take_answer(Connection& c) {
  if (c.end - c.begin < greeting_bytes()) return false;
  const Rank from = who_greets({reinterpret_cast<const char*>(c.buffer.data() + c.begin), greeting_bytes()});
  c.begin += greeting_bytes();
  if (from == c.peer) answered(c);
  else nonsense(c);
  return c.known;
}

// Earlier messages need not be sent again.
void TcpRail::answered(Connection& c) {
  c.known = true;
  for (; c.sent != 0; --c.sent) finish_front(c);
}

void TcpRail::post(Rank to, Outgoing what) {
  const Pair& pair = pairs_[static_cast<size_t>(to)];
  const bool shares = what.bytes >= kShareBytes && to < rank_ && pair.theirs != nullptr && !is_sealed();
  Connection* c = lost(to) ? nullptr : shares ? pair.theirs : pair.ours != nullptr ? pair.ours : connect(to);
  if (c == nullptr || c->broken) return give_back(what.zero_copy);
  QueuedMessage& o = c->queue.emplace_back();
  o.frame.header_bytes = static_cast<uint32_t>(what.header_bytes);
  o.frame.bytes = static_cast<uint32_t>(what.bytes);
  if (is_sealed()) {
    const std::string proof = proof_of(to, {reinterpret_cast<const char*>(&o.frame), kLengthsBytes});
    std::memcpy(o.frame.proof, proof.data(), sizeof o.frame.proof);
  }
  o.what = std::move(what);
  begin_pending(to);
}

void TcpRail::finish_front(Connection& c) {
  give_back(c.queue.front().what.zero_copy);
  c.queue.pop_front();
  end_pending(c.peer);
}

// True if nothing more can be written now.
bool TcpRail::is_stalled(Connection& c, int error) {
  if (error == EINTR) return false;
  if (error != EAGAIN && error != ENOBUFS && error != ENOMEM) ended(c, error);
  c.is_full = true;
  return true;
}

// True if it is written completely.
bool TcpRail::write_greeting(Connection& c) {
  while (c.greeted < c.greeting.size()) {
    const ssize_t n = ::send(c.fd.get(), c.greeting.data() + c.greeted, c.greeting.size() - c.greeted, MSG_NOSIGNAL);
    if (n >= 0) c.greeted += static_cast<size_t>(n);
    else if (is_stalled(c, errno)) return false;
  }
  return true;
}

// Writes as much as the kernel takes. Up to kMostAtOnce messages go in one call. A credit therefore costs almost
// nothing together with data.
void TcpRail::write(Connection& c) {
  if (!c.fd) return;
  if (c.is_full) {  // waits for more free space, because small parts cost both sides more
    pollfd room{c.fd.get(), POLLOUT, 0};
    if (::poll(&room, 1, 0) == 0) return;
    c.is_full = false;
  }
  if (!write_greeting(c)) return;
  while (c.sent < c.queue.size()) {
    std::array<iovec, 3 * kMostAtOnce> parts;
    size_t n = 0, total = 0;
    for (size_t i = c.sent; i < std::min(c.queue.size(), c.sent + kMostAtOnce); ++i) {
      QueuedMessage& o = c.queue[i];
      size_t skip = o.written;
      auto part = [&](const void* at, size_t bytes) {
        const size_t skipped = std::min(skip, bytes);
        skip -= skipped;
        if (bytes == skipped) return;
        parts[n++] = {static_cast<char*>(const_cast<void*>(at)) + skipped, bytes - skipped};
        total += bytes - skipped;
      };
      part(&o.frame, sizeof o.frame);
      part(o.what.header, o.what.header_bytes);
      part(o.what.data, o.what.bytes);
    }
    msghdr m{};
    m.msg_iov = parts.data();
    m.msg_iovlen = n;
    const ssize_t written = sendmsg(c.fd.get(), &m, MSG_NOSIGNAL);
    if (written < 0) {
      if (is_stalled(c, errno)) return;
      continue;
    }
    const bool all = static_cast<size_t>(written) == total;
    for (auto left = static_cast<size_t>(written); c.sent < c.queue.size();) {
      QueuedMessage& o = c.queue[c.sent];
      const size_t step = std::min(left, o.total() - o.written);
      o.written += step;
      left -= step;
      if (o.written < o.total()) break;
      if (c.known) finish_front(c);
      else ++c.sent;
    }
    if (!all) {
      c.is_full = true;
      return;
    }
  }
}

bool TcpRail::has_unread() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& c) { return c->fd && c->begin != c->end; });
}

void TcpRail::push() {
  for (size_t i = 0; i < connections_.size(); ++i)
    if (Connection& c = *connections_[i]; has_to_write(c)) write(c);
}

bool TcpRail::progress() {
  if (std::exchange(any_broken_, false)) std::erase_if(connections_, [](const auto& c) { return c->broken; });
  const uint64_t before = moves_;
  ++passes_;
  auto is_lively = [this](const auto& c) { return passes_ - c->last_pass < kLivelyPasses; };
  const auto lively = static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(), is_lively));
  const bool by_list = lively == 0 || lively > kFewConnections || passes_ % kListPasses == 0;
  for (size_t i = 0; i < connections_.size(); ++i) {  // the vector may grow meanwhile
    Connection& c = *connections_[i];
    if (!c.fd && !c.broken && monotonic_ns() >= c.connect_ns) dial(c);
    if (has_to_write(c)) write(c);
    if (c.fd && ((!by_list && is_lively(connections_[i])) || c.begin != c.end)) read(c);
  }
  if (!by_list) return moves_ != before;
  epoll_event events[16];
  const int n = epoll_wait(events_.get(), events, 16, 0);
  for (int i = 0; i < n; ++i) {
    auto* c = static_cast<Connection*>(events[i].data.ptr);
    if (c == nullptr) (void)acceptor_.look();  // a refused rank connects again
    else if (c->fd && (events[i].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) read(*c);
  }
  if (num_admitted_ + 1 == pairs_.size() && acceptor_.is_open()) {
    epoll_ctl(events_.get(), EPOLL_CTL_DEL, acceptor_.event_fd(), nullptr);
    acceptor_.close();
  }
  return moves_ != before;
}

void TcpRail::hang_up(Connection& c) {
  if (!c.fd) return;
  epoll_ctl(events_.get(), EPOLL_CTL_DEL, c.fd.get(), nullptr);
  c.fd.shut();
}

void TcpRail::drop(Connection& c) {
  if (c.broken) return;
  c.broken = any_broken_ = true;
  hang_up(c);
  c.sent = 0;
  while (!c.queue.empty()) finish_front(c);
  keep_out_of_buffers(c);
}

// The connection has ended; 0: the peer closed it. Before the peer's answer this may be neither rank's fault:
// reconnect.
void TcpRail::ended(Connection& c, int error) {
  const bool closed = error == 0 || error == ECONNRESET || error == EPIPE;
  const uint64_t now = monotonic_ns();
  if (c.known || !closed || now - c.since_ns > kConnectNs)
    return fail(c, !closed   ? errno_text(error)
                   : c.known ? "it closed the connection"
                             : fmt::format("it closed {} connections without an answer", c.times_closed + 1));
  hang_up(c);
  for (QueuedMessage& o : c.queue) o.written = 0;
  c.sent = c.greeted = c.begin = c.end = 0;
  c.connect_ns = now + (kFirstPauseNs << std::min(c.times_closed++, kMostDoublings));
}

void TcpRail::nonsense(Connection& c) {
  if (is_sealed()) ignore(c);
  else fail(c, "it sent a malformed message");
}

// The received data were altered. Keeps the connection for sending, because its end would look like the loss of a rank.
void TcpRail::ignore(Connection& c) {
  if (std::exchange(c.ignored, true)) return;
  epoll_ctl(events_.get(), EPOLL_CTL_DEL, c.fd.get(), nullptr);
  c.begin = c.end = 0;
  answered(c);
  tampered(c.peer);
}

void TcpRail::fail(Connection& c, std::string_view how) {
  if (c.broken) return;
  drop(c);
  Pair& pair = pairs_[static_cast<size_t>(c.peer)];
  if (pair.ours == &c) pair.ours = nullptr;
  if (pair.theirs == &c) pair.theirs = nullptr;
  lose(c.peer, how);
}

// The rest of the current message is discarded.
void TcpRail::keep_out_of_buffers(Connection& c) {
  Incoming& m = c.message;
  if (!c.in_message || m.place.posted_receive == nullptr) return;
  m.place.posted_receive->drop();
  m.elsewhere.resize(m.bytes);
  m.place = {reinterpret_cast<std::byte*>(m.elsewhere.data())};
  m.wanted = false;
}

// Copies messages that are not yet written, therefore nothing has to be waited for.
bool TcpRail::recall(uint64_t, uint64_t) {
  for (const auto& c : connections_) {
    keep_out_of_buffers(*c);
    for (QueuedMessage& o : c->queue) {
      if (o.what.zero_copy == nullptr) continue;
      o.what.copy = std::make_unique<Copy>();
      o.what.copy->data.assign(reinterpret_cast<const char*>(o.what.data), o.what.bytes);
      o.what.data = reinterpret_cast<const std::byte*>(o.what.copy->data.data());
      give_back(std::exchange(o.what.zero_copy, nullptr));
    }
  }
  return true;
}

// Returns true if the peers' kernels have everything that was sent. The end of this process then loses nothing.
bool TcpRail::flush() {
  return std::all_of(connections_.begin(), connections_.end(), [](const auto& c) {
    int unacknowledged = 0;
    return c->broken || (c->queue.empty() && !has_to_write(*c) &&
                         (ioctl(c->fd.get(), SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0));
  });
}

bool TcpRail::close(uint64_t) {
  closing_ = true;
  for (const auto& c : connections_) drop(*c);
  return true;
}

bool TcpRail::arm() {
  for (const auto& c : connections_) {
    if (!c->fd || c->ignored || has_to_write(*c) == c->watches_room) continue;
    c->watches_room = !c->watches_room;
    epoll_event e = {EPOLLIN | (c->watches_room ? static_cast<uint32_t>(EPOLLOUT) : 0U), {.ptr = c.get()}};
    epoll_ctl(events_.get(), EPOLL_CTL_MOD, c->fd.get(), &e);
  }
  epoll_event events;
  return epoll_wait(events_.get(), &events, 1, 0) == 0;
}

}  // namespace rondo::net
