// TcpListener: accepts connections from the peers of a TcpRail, and holds the unauthenticated ones.
//
// Any process can connect to a port. Until a connection has sent a greeting that its owner accepts, it is in a bounded
// set. If the set is full, a new one replaces the oldest one from the address with the most connections in the set.
// Silent connections therefore cannot keep a rank away: a rank sends its greeting as it connects, the greeting is
// checked before its connection could be closed, and a rank whose greeting was late connects again.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.h"

namespace rondo::net {

class TcpListener {
 public:
  /// Takes the descriptor of a connection with its greeting, or returns false: the connection is then closed.
  using Admit = std::function<bool(int fd, std::string_view greeting)>;

  TcpListener() = default;
  ~TcpListener() { close(); }
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  /// Listens on these numeric addresses, all on one port chosen by the kernel. Addresses that this host does not have
  /// are skipped, unless none remains. `most_unknown`: limit of unauthenticated connections. Errors: kSystem.
  Status open(const std::vector<std::string>& addresses, size_t most_unknown);
  uint16_t port() const { return port_; }
  /// Readable if look() has work.
  int event_fd() const { return event_fd_; }
  /// Works for a bounded time, never waits. Greetings have `greeting_bytes` bytes.
  void look(size_t greeting_bytes, const Admit& admit);
  /// Closes the sockets and all unauthenticated connections.
  void close();

 private:
  struct Unknown {
    int fd = -1;
    std::string source;  // the remote address
    std::string came;
  };
  using Place = std::list<Unknown>::iterator;
  bool watch(int fd, Unknown* what);
  void accept_some(int listener, size_t greeting_bytes, const Admit& admit);
  bool settle(Place at, size_t greeting_bytes, const Admit& admit);
  Place oldest_of_most();
  void make_room(size_t most, size_t greeting_bytes, const Admit& admit);

  std::vector<int> sockets_;
  std::list<Unknown> unknown_;  // oldest first
  size_t most_unknown_ = 0;
  uint16_t port_ = 0;
  int event_fd_ = -1;  // epoll, for the sockets and the unauthenticated connections
  bool told_ = false;
};

}  // namespace rondo::net
