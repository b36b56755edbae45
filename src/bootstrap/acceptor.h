// Acceptor: the listeners of a port, and the accepted connections that have not yet proved that they belong to the job
// (pending connections). It limits their number and chooses the connection to close when there are too many. The
// rendezvous, each rank's mesh port, the hand-out of an id and each TCP rail have one.
//
//   silent    has not sent a complete greeting. A rank sends its greeting when it has connected. Usually the greeting
//             has arrived when the connection is accepted.
//   greeted   has sent its greeting, and must answer the challenge
//
// A connection that has proved the secret is no longer pending, and is never closed for another. A rank whose
// connection was closed before its proof connects again until its deadline. Therefore a pending connection may be
// closed at any time, and accepting never stops because of the limit.
//
// Thread safety: none; plain functions from any thread.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bootstrap/socket.h"

namespace rondo {

// The most pending connections of a listener beyond the ranks still missing. Until the first rank has joined, it is
// unknown how many are missing, and many may connect at once. Descriptors are often limited to 1024.
constexpr size_t kMaxPending = 256;
constexpr int kMaxAcceptsAtOnce = 256;  // before the pending connections are served again
constexpr auto kPendingDeadline = std::chrono::seconds(5);
constexpr int kMaxRefusalsLogged = 8;

/// Returns a hash of a connection's source (its address without the port, or its process) from accept_one()'s text.
inline uint64_t source_of(std::string_view peer) {
  return std::hash<std::string_view>()(peer.substr(0, peer.rfind(':')));
}

/// Returns the connection to close next, or end() if there is none. It prefers silent connections, then the source with
/// the most connections, then the oldest. `pending` is in order of arrival. C has source() and has_greeted().
template <class C>
typename std::list<C>::iterator first_to_close(std::list<C>& pending) {
  bool any_silent = false;
  for (const C& c : pending) any_silent = any_silent || !c.has_greeted();
  std::unordered_map<uint64_t, size_t> num_of_source;
  size_t most = 0;
  for (const C& c : pending)
    if (c.has_greeted() != any_silent) most = std::max(most, ++num_of_source[c.source()]);
  for (auto c = pending.begin(); c != pending.end(); ++c)
    if (c->has_greeted() != any_silent && num_of_source[c->source()] == most) return c;
  return pending.end();
}

/// Reads the first `bytes` bytes that a connection sends.
class FixedGreeting {
 public:
  enum class State { kUnderWay, kAccepted, kFailed };
  explicit FixedGreeting(size_t bytes) : left_bytes_(bytes) {}
  State advance(int fd) {
    if (left_bytes_ == 0) return State::kFailed;
    char buffer[256];
    const ssize_t n = ::recv(fd, buffer, std::min(left_bytes_, sizeof buffer), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return State::kUnderWay;
    if (n <= 0) return State::kFailed;
    bytes_.append(buffer, static_cast<size_t>(n));
    left_bytes_ -= static_cast<size_t>(n);
    return left_bytes_ == 0 ? State::kAccepted : State::kUnderWay;
  }
  bool has_greeted() const { return false; }
  const std::string& bytes() const { return bytes_; }

 private:
  size_t left_bytes_;  // if 0 at construction, the connection is refused
  std::string bytes_;
};

/// A Handshake is a state machine that never blocks: ServerHandshake or FixedGreeting.
template <class Handshake>
class Acceptor {
 public:
  struct Connection {
    Fd fd = {};
    std::string address = {};  // for messages
    bool local = false;
    std::optional<Handshake> handshake = {};
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
    bool watched = false;
    uint64_t source() const { return source_of(address); }
    bool has_greeted() const { return handshake && handshake->has_greeted(); }
  };
  using Make = std::function<Handshake(const Connection&)>;
  /// Called when a handshake has ended. The connection is closed afterwards unless its descriptor was moved away.
  using Done = std::function<void(Connection&, bool accepted)>;

  /// Takes the listeners. `local` is a Unix socket and may be empty.
  Status open(Fd local, std::vector<Fd> tcp) {
    event_fd_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    if (local) listeners_.push_back({std::move(local), true});
    for (Fd& fd : tcp) listeners_.push_back({std::move(fd), false});
    bool good = static_cast<bool>(event_fd_);
    for (Listener& l : listeners_) good = good && watch(l.fd.get(), &l);
    return good ? Status() : Status(StatusCode::kSystem, "epoll: " + errno_text(errno));
  }
  bool is_open() const { return static_cast<bool>(event_fd_); }
  /// Readable when look() has something to do.
  int event_fd() const { return event_fd_.get(); }
  void set_most(size_t most) { most_ = most; }
  /// Starts the handshakes. Before this call, connections are only accepted and kept. spare_greeted: if this process
  /// has no descriptors left, only silent connections are closed for new ones.
  void serve(Make make, Done done, bool spare_greeted) {
    make_ = std::move(make);
    done_ = std::move(done);
    spare_greeted_ = spare_greeted;
    for (Connection& c : pending_) begin(c);
    drop_ended();
  }
  /// Serves the pending connections and accepts new ones, without blocking. Closes connections that are silent for
  /// kPendingDeadline. Errors: kSystem if this process has no descriptors left (the text names no rank).
  Status look() {
    epoll_event events[64];
    const int n = ::epoll_wait(event_fd_.get(), events, 64, 0);
    std::vector<const Listener*> ready;
    for (int i = 0; i < n; ++i) {
      const auto is_this = [&](const Listener& l) { return &l == events[i].data.ptr; };
      const auto l = std::find_if(listeners_.begin(), listeners_.end(), is_this);
      if (l != listeners_.end()) ready.push_back(&*l);
      else advance(*static_cast<Connection*>(events[i].data.ptr));
    }
    const auto now = std::chrono::steady_clock::now();
    for (Connection& c : pending_)  // a connection that has greeted may be a rank that waits for a core
      if (make_ && !c.has_greeted() && now - c.since > kPendingDeadline) end(c);
    drop_ended();
    for (const Listener* l : ready) RONDO_TRY(accept_from(*l));
    return {};
  }
  /// Closes the pending connections. Connections wait in the kernel until the next serve() and look().
  void pause() {
    for (Connection& c : pending_) end(c);
    pending_.clear();
    make_ = nullptr;
    done_ = nullptr;
  }
  /// Closes the listeners and the pending connections, also the copies that a fork made in other processes.
  void close() {
    for (Connection& c : pending_) c.fd.shut();
    for (Listener& l : listeners_) l.fd.shut();
    *this = {};
  }

  struct Listener {
    Fd fd;
    bool local;
  };
  const std::vector<Listener>& listeners() const { return listeners_; }

 private:
  bool watch(int fd, void* what) {
    epoll_event event = {EPOLLIN, {.ptr = what}};
    return ::epoll_ctl(event_fd_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }
  // If a forked child has a copy of the descriptor, the kernel would report events for it even after close().
  void unwatch(Connection& c) {
    if (std::exchange(c.watched, false)) ::epoll_ctl(event_fd_.get(), EPOLL_CTL_DEL, c.fd.get(), nullptr);
  }
  void end(Connection& c) {
    unwatch(c);
    c.fd.shut();
  }
  void drop_ended() {
    pending_.remove_if([](const Connection& c) { return !c.fd; });
  }
  void advance(Connection& c) {
    if (!c.fd || !c.handshake) return;
    const auto state = c.handshake->advance(c.fd.get());
    if (state == Handshake::State::kUnderWay) return;
    unwatch(c);
    done_(c, state == Handshake::State::kAccepted);
    c.fd.shut();
  }
  void begin(Connection& c) {
    if (!make_) return;
    c.handshake.emplace(make_(c));
    advance(c);  // the greeting has usually arrived already
    if (!c.fd) return;
    if (c.local) c.address = local_peer_name(c.fd.get());
    c.watched = watch(c.fd.get(), &c);
    if (!c.watched) end(c);
  }
  // Closes one connection, unless its proof has just arrived. Returns false if there is no candidate.
  bool close_one(bool silent_only) {
    const auto c = first_to_close(pending_);
    if (c == pending_.end() || (silent_only && c->has_greeted())) return false;
    advance(*c);
    if (c->fd && !std::exchange(told_, true))
      std::fprintf(stderr, "rondo: too many connections have not proved the secret: the oldest are closed\n");
    if (c->fd) end(*c);
    pending_.erase(c);
    return true;
  }
  Status accept_from(const Listener& l) {
    for (int i = 0; i < kMaxAcceptsAtOnce; ++i) {
      std::string address;
      Fd fd = accept_one(l.fd.get(), l.local ? nullptr : &address);
      if (fd) {
        while (pending_.size() >= most_ && close_one(false)) {
        }
        pending_.push_back({.fd = std::move(fd), .address = std::move(address), .local = l.local});
        begin(pending_.back());
        if (!pending_.back().fd) pending_.pop_back();
      } else if (errno != EMFILE && errno != ENFILE) {
        return {};
      } else if (!close_one(spare_greeted_)) {  // waiting would not free a descriptor
        return Status(StatusCode::kSystem, "cannot accept a connection: " + errno_text(EMFILE));
      }
    }
    return {};
  }

  Fd event_fd_;
  std::vector<Listener> listeners_;
  std::list<Connection> pending_;  // in order of arrival
  size_t most_ = kMaxPending;
  bool spare_greeted_ = false, told_ = false;
  Make make_;
  Done done_;
};

}  // namespace rondo
