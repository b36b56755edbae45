#include "transport/net/tcp_listener.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <utility>

#include "transport/net/tcp_socket.h"

namespace rondo::net {
namespace {

constexpr int kMostAccepted = 16;  // connections that one look accepts

std::string source_of(const sockaddr_storage& from) {
  if (from.ss_family == AF_INET) {
    const auto& a = reinterpret_cast<const sockaddr_in&>(from).sin_addr;
    return std::string(reinterpret_cast<const char*>(&a), sizeof a);
  }
  const auto& a = reinterpret_cast<const sockaddr_in6&>(from).sin6_addr;
  return std::string(reinterpret_cast<const char*>(&a), sizeof a);
}

// Also ends copies that a fork left in another process.
void end(int fd) {
  ::shutdown(fd, SHUT_RDWR);
  ::close(fd);
}

}  // namespace

bool TcpListener::watch(int fd, Unknown* what) {
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.ptr = what;
  return epoll_ctl(event_fd_, EPOLL_CTL_ADD, fd, &e) == 0;
}

Status TcpListener::open(const std::vector<std::string>& addresses, size_t most_unknown) {
  constexpr int kAttempts = 16;  // a port that is free at the first address may be in use at the second
  most_unknown_ = most_unknown;
  event_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (event_fd_ < 0) return Status(StatusCode::kSystem, "epoll_create1: " + error_text(errno));
  Status why(StatusCode::kSystem, "no address to listen on");
  for (int attempt = 0; attempt < kAttempts && sockets_.empty(); ++attempt) {
    port_ = 0;
    for (const std::string& address : addresses) {
      const int fd = listen_at(address, &port_);
      if (fd >= 0) {
        sockets_.push_back(fd);
        continue;
      }
      const int error = errno;
      why = Status(StatusCode::kSystem, fmt::format("listen on {} port {}: {}", address, port_, error_text(error)));
      if (error == EADDRNOTAVAIL) continue;
      if (error != EADDRINUSE) return why;
      for (const int s : std::exchange(sockets_, {})) ::close(s);
      break;
    }
  }
  if (sockets_.empty()) return why;
  for (const int s : sockets_)
    if (!watch(s, nullptr)) return Status(StatusCode::kSystem, "epoll_ctl: " + error_text(errno));
  return {};
}

void TcpListener::close() {
  for (const int s : std::exchange(sockets_, {})) end(s);
  for (const Unknown& u : unknown_) end(u.fd);
  unknown_.clear();
  if (event_fd_ >= 0) ::close(std::exchange(event_fd_, -1));
}

// Reads available bytes. True if the connection is no longer unauthenticated: it was admitted, or closed.
bool TcpListener::settle(Place at, size_t greeting_bytes, const Admit& admit) {
  const size_t before = at->came.size();
  at->came.resize(greeting_bytes);
  const ssize_t n = recv(at->fd, at->came.data() + before, greeting_bytes - before, 0);
  at->came.resize(before + static_cast<size_t>(std::max<ssize_t>(n, 0)));
  const bool ended = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
  if (!ended && at->came.size() < greeting_bytes) return false;
  epoll_ctl(event_fd_, EPOLL_CTL_DEL, at->fd, nullptr);
  if (ended || !admit(at->fd, at->came)) end(at->fd);
  unknown_.erase(at);
  return true;
}

TcpListener::Place TcpListener::oldest_of_most() {
  std::map<std::string_view, size_t> held;
  for (const Unknown& u : unknown_) ++held[u.source];
  const auto most = std::max_element(held.begin(), held.end(), [](auto& a, auto& b) { return a.second < b.second; });
  return std::find_if(unknown_.begin(), unknown_.end(), [&](const Unknown& u) { return u.source == most->first; });
}

// A complete greeting still counts.
void TcpListener::make_room(size_t most, size_t greeting_bytes, const Admit& admit) {
  while (unknown_.size() > most) {
    const Place oldest = oldest_of_most();
    if (settle(oldest, greeting_bytes, admit)) continue;
    if (!std::exchange(told_, true))
      std::fprintf(stderr,
                   "rondo: port %d: more than %zu connections have not identified themselves; the oldest are closed\n",
                   port_, most);
    epoll_ctl(event_fd_, EPOLL_CTL_DEL, oldest->fd, nullptr);
    end(oldest->fd);
    unknown_.erase(oldest);
  }
}

void TcpListener::accept_some(int listener, size_t greeting_bytes, const Admit& admit) {
  for (int i = 0; i < kMostAccepted; ++i) {
    sockaddr_storage from{};
    socklen_t bytes = sizeof from;
    const int fd = accept4(listener, reinterpret_cast<sockaddr*>(&from), &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      // The process is out of descriptors: unauthenticated connections give way.
      if ((errno == EMFILE || errno == ENFILE) && !unknown_.empty()) {
        make_room(unknown_.size() - 1, greeting_bytes, admit);
        continue;
      }
      return;
    }
    const Place at = unknown_.insert(unknown_.end(), {fd, source_of(from), {}});
    if (!watch(fd, &*at)) {
      end(fd);
      unknown_.erase(at);
      return;
    }
    if (!settle(at, greeting_bytes, admit)) make_room(most_unknown_, greeting_bytes, admit);
  }
}

void TcpListener::look(size_t greeting_bytes, const Admit& admit) {
  epoll_event news[kMostAccepted];
  const int n = epoll_wait(event_fd_, news, kMostAccepted, 0);
  bool somebody_came = false;
  for (int i = 0; i < n; ++i) {
    auto* what = static_cast<Unknown*>(news[i].data.ptr);
    if (what == nullptr) somebody_came = true;
    else
      settle(std::find_if(unknown_.begin(), unknown_.end(), [&](const Unknown& u) { return &u == what; }),
             greeting_bytes, admit);
  }
  for (size_t i = 0; somebody_came && i < sockets_.size(); ++i) accept_some(sockets_[i], greeting_bytes, admit);
}

}  // namespace rondo::net
