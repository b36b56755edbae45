#include "bootstrap/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/limits.h"

namespace rondo {
namespace {

constexpr int kSocketFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t bytes = sizeof storage;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  /// Of an IP address; in both families at the same offset.
  uint16_t port() const { return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port); }
};

SocketAddress socket_address(const IpAddress& address, uint16_t port) {
  SocketAddress a;
  if (address.v6) {
    auto* sin6 = reinterpret_cast<sockaddr_in6*>(&a.storage);
    sin6->sin6_family = AF_INET6;
    sin6->sin6_port = htons(port);
    std::memcpy(&sin6->sin6_addr, address.bytes, 16);
    a.bytes = sizeof(*sin6);
  } else {
    auto* sin = reinterpret_cast<sockaddr_in*>(&a.storage);
    sin->sin_family = AF_INET;
    sin->sin_port = htons(port);
    std::memcpy(&sin->sin_addr, address.bytes, 4);
    a.bytes = sizeof(*sin);
  }
  return a;
}

Expected<SocketAddress> abstract_address(std::string_view name) {
  SocketAddress a;
  auto* un = reinterpret_cast<sockaddr_un*>(&a.storage);
  un->sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(un->sun_path))
    return invalid_argument("socket name '{}' is longer than {} bytes", name, sizeof(un->sun_path) - 1);
  std::memcpy(un->sun_path + 1, name.data(), name.size());
  a.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return a;
}

Fd begin_connect(int family, const SocketAddress& to, bool* connected, int* error,
                 const SocketAddress* from = nullptr) {
  *error = 0;
  Fd fd(::socket(family, SOCK_STREAM | kSocketFlags, 0));
  const bool good = fd && (from == nullptr || ::bind(fd.get(), from->get(), from->bytes) == 0);
  *connected = good && ::connect(fd.get(), to.get(), to.bytes) == 0;
  if (*connected) return fd;
  *error = errno;
  if (good && (*error == EINPROGRESS || *error == EINTR)) return fd;
  return Fd();
}

// Listens on *port. If it is 0, the kernel chooses a port, and *port is set to it.
Expected<Fd> listen_at(const IpAddress& address, uint16_t* port, int* error) {
  Fd fd(::socket(address.v6 ? AF_INET6 : AF_INET, SOCK_STREAM | kSocketFlags, 0));
  const int on = 1;
  if (fd) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (fd && address.v6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  SocketAddress at = socket_address(address, *port);
  if (!fd || ::bind(fd.get(), at.get(), at.bytes) != 0 || ::listen(fd.get(), 4096) != 0) {
    *error = errno;
    return make_error(StatusCode::kSystem, "listen on {}: {}", address.to_string(*port), errno_text(*error));
  }
  ::getsockname(fd.get(), at.get(), &at.bytes);
  *port = at.port();
  return fd;
}

}  // namespace

Deadline::Deadline(double seconds, const std::atomic<bool>* abort) : seconds_(seconds), abort_(abort) {
  const double bounded = std::clamp(seconds, 0.0, 1e8);
  deadline_ = Clock::now() + std::chrono::microseconds(static_cast<int64_t>(bounded * 1e6));
}

Deadline Deadline::at_most(double seconds) const {
  Deadline shorter(seconds, abort_);
  shorter.deadline_ = std::min(shorter.deadline_, deadline_);
  shorter.is_part_ = true;
  return shorter;
}

Deadline Deadline::extended(double seconds) const {
  Deadline longer = *this;
  longer.deadline_ += std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
  return longer;
}

int Deadline::slice_ms() const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, kSliceMs));
}

Status Deadline::check(std::string_view doing) const {
  if (aborted()) return make_error(StatusCode::kAborted, "aborted while {}", doing);
  if (expired())
    return make_error(StatusCode::kTimeout, "gave up after {:g} s{} while {}", seconds_,
                      is_part_ ? "" : fmt::format(" ({})", kInitDeadline), doing);
  return {};
}

Status Deadline::wait_ready(int fd, short events, std::string_view doing) const {
  for (;;) {
    pollfd p{fd, events, 0};
    if (::poll(&p, 1, slice_ms()) > 0) return {};
    RONDO_TRY(check(doing));
  }
}

Status Deadline::pause(double ms, std::string_view doing) const {
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(std::min<double>(ms, slice_ms())));
  return check(doing);
}

std::string errno_text(int error) {
  return error == EAGAIN ? fmt::format("{} (errno {})", ::strerrordesc_np(error), error) : errno_reason(error);
}

std::optional<IpAddress> ip_of(const sockaddr* address) {
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return std::nullopt;
  IpAddress ip{.v6 = address->sa_family == AF_INET6};
  if (ip.v6) std::memcpy(ip.bytes, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, 16);
  else std::memcpy(ip.bytes, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, 4);
  return ip;
}

std::string IpAddress::text() const {
  char text[INET6_ADDRSTRLEN] = "?";
  ::inet_ntop(v6 ? AF_INET6 : AF_INET, bytes, text, sizeof(text));
  return text;
}

std::string IpAddress::to_string(uint16_t port) const {
  return v6 ? fmt::format("[{}]:{}", text(), port) : fmt::format("{}:{}", text(), port);
}

std::optional<IpAddress> IpAddress::parse(const std::string& text) {
  IpAddress a;
  a.v6 = text.find(':') != std::string::npos;
  return ::inet_pton(a.v6 ? AF_INET6 : AF_INET, text.c_str(), a.bytes) == 1 ? std::optional(a) : std::nullopt;
}

std::string nearest_host(const std::vector<IpAddress>& theirs, const std::vector<IpAddress>& ours) {
  auto common_bits = [](const IpAddress& a, const IpAddress& b) {
    if (a.v6 != b.v6) return -1;
    int bits = 0;
    for (const int most = a.v6 ? 128 : 32; bits < most; ++bits)
      if (((a.bytes[bits / 8] ^ b.bytes[bits / 8]) >> (7 - bits % 8) & 1) != 0) break;
    return bits;
  };
  int most = -2;
  std::string best;
  for (const IpAddress& address : theirs) {
    int bits = -1;
    for (const IpAddress& own : ours) bits = std::max(bits, common_bits(address, own));
    if (std::find(ours.begin(), ours.end(), address) != ours.end()) bits = -1;  // it is an address of this host
    if (bits <= most) continue;
    most = bits;
    best = address.text();
  }
  return best;
}

Expected<Listeners> listen_tcp(const std::vector<IpAddress>& addresses, uint16_t port) {
  constexpr int kAttempts = 16;  // a port that is free at the first address may be taken at the second
  Status why(StatusCode::kSystem, "no address to listen on");
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Listeners result;
    result.port = port;
    int error = 0;
    for (const IpAddress& address : addresses) {
      auto fd = listen_at(address, &result.port, &error);
      if (fd.ok()) {
        result.sockets.push_back(std::move(*fd));
        result.addresses.push_back(address);
        continue;
      }
      why = fd.status();
      if (error != EADDRNOTAVAIL) break;
      error = 0;
    }
    if (error == 0 && !result.sockets.empty()) return result;
    if (port != 0 || error != EADDRINUSE) break;  // the caller's port has no alternative
  }
  return why;
}

Expected<Fd> listen_abstract(std::string_view name) {
  RONDO_TRY_ASSIGN(const SocketAddress at, abstract_address(name));
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | kSocketFlags, 0));
  if (!fd) return Status(StatusCode::kSystem, "socket: " + errno_text(errno));
  if (::bind(fd.get(), at.get(), at.bytes) != 0 || ::listen(fd.get(), 4096) != 0)
    return make_error(StatusCode::kSystem, "listen on abstract socket '{}': {}", name, errno_text(errno));
  return fd;
}

Fd begin_connect_tcp(const IpAddress& address, uint16_t port, bool* connected, int* error, const IpAddress* from) {
  const SocketAddress to = socket_address(address, port);
  const SocketAddress own = from != nullptr ? socket_address(*from, 0) : SocketAddress();
  Fd fd = begin_connect(address.v6 ? AF_INET6 : AF_INET, to, connected, error, from != nullptr ? &own : nullptr);
  if (fd) tune_tcp(fd.get());
  return fd;
}

Fd begin_connect_abstract(std::string_view name, bool* connected, int* error) {
  const auto to = abstract_address(name);
  *error = EINVAL;
  return to.ok() ? begin_connect(AF_UNIX, *to, connected, error) : Fd();
}

int end_connect(int fd) {
  int error = 0;
  socklen_t len = sizeof(error);
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 ? error : errno;
}

Expected<Fd> connect_tcp(const IpAddress& address, uint16_t port, const Deadline& deadline, bool* refused) {
  const std::string name = address.to_string(port);
  bool connected = false;
  int error = 0;
  Fd fd = begin_connect_tcp(address, port, &connected, &error);
  if (fd && !connected) {
    RONDO_TRY(deadline.wait_ready(fd.get(), POLLOUT, "connecting to " + name));
    error = end_connect(fd.get());
    connected = error == 0;
  }
  *refused = error == ECONNREFUSED;
  if (connected) return fd;
  return make_error(StatusCode::kSystem, "connect to {}: {}", name, errno_text(error));
}

Expected<Fd> connect_abstract(std::string_view name, const Deadline& deadline, bool* refused) {
  for (;;) {
    bool connected = false;
    int error = 0;
    Fd fd = begin_connect_abstract(name, &connected, &error);
    if (connected) return fd;
    *refused = error == ECONNREFUSED;
    if (error != EAGAIN)
      return make_error(StatusCode::kSystem, "connect to abstract socket '{}': {}", name, errno_text(error));
    RONDO_TRY(deadline.pause(2, "connecting to an abstract socket"));  // its queue is full
  }
}

Fd accept_one(int listener, std::string* peer) {
  SocketAddress from;
  Fd fd(::accept4(listener, from.get(), &from.bytes, kSocketFlags));
  if (!fd) return fd;
  if (const auto ip = ip_of(from.get())) {
    *peer = ip->to_string(from.port());
    tune_tcp(fd.get());
  } else if (peer != nullptr) {
    *peer = local_peer_name(fd.get());
  }
  return fd;
}

std::string local_peer_name(int fd) {
  ucred who = {};
  socklen_t len = sizeof(who);
  ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len);
  return fmt::format("pid {} of uid {}", who.pid, who.uid);
}

// Sets no TCP_USER_TIMEOUT, which would also end a connection whose peer reads slowly. Within a machine the kernel
// reports the end of a process, and a thousand processes on few cores would answer probes too late.
void tune_tcp(int fd) {
  const int on = 1, idle_s = 1, interval_s = 1, probes = 3;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  SocketAddress own, peer;
  ::getsockname(fd, own.get(), &own.bytes);
  if (::getpeername(fd, peer.get(), &peer.bytes) == 0 && ip_of(own.get()) == ip_of(peer.get())) return;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

Status read_exactly(int fd, void* data, size_t bytes, const Deadline& deadline, std::string_view doing) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::recv(fd, static_cast<char*>(data) + done, bytes - done, 0);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n == 0) {
      return make_error(StatusCode::kPeerLost, "the other side closed the connection while {}", doing);
    } else if (errno == EAGAIN) {
      RONDO_TRY(deadline.wait_ready(fd, POLLIN, doing));
    } else if (errno != EINTR) {
      return make_error(StatusCode::kPeerLost, "{} while {}", errno_text(errno), doing);
    }
  }
  return {};
}

Status write_all(int fd, std::string_view bytes, const Deadline& deadline, std::string_view doing) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      RONDO_TRY(deadline.wait_ready(fd, POLLOUT, doing));
    } else if (errno != EINTR) {
      return make_error(StatusCode::kPeerLost, "{} while {}", errno_text(errno), doing);
    }
  }
  return {};
}

}  // namespace rondo
