// TcpListener: where the peers of a TcpRail connect, and the connections that have not said yet whose they are.
//
// Anybody can connect to a port. Until a connection has sent a greeting that its owner accepts, it is one of a bounded
// set. A new one that finds the set full takes the place of the oldest one of the address that holds most of the set.
// Therefore silent connections, however many, keep no rank away: a rank sends its greeting as it connects, the greeting
// is looked at before its connection could be closed, and a rank whose connection was closed all the same (its greeting
// was late) connects again.
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
  /// Takes the descriptor of a connection with its greeting, or says false: then the connection is closed.
  using Admit = std::function<bool(int fd, std::string_view greeting)>;

  TcpListener() = default;
  ~TcpListener() { close(); }
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  /// Listens on these numeric addresses, all on one port of the kernel's choice; an address that this host does not
  /// have is left out unless none remains. `most_unknown`: connections that have not been admitted. Errors: kSystem.
  Status open(const std::vector<std::string>& addresses, size_t most_unknown);
  uint16_t port() const { return port_; }
  /// Readable when look() has something to do.
  int event_fd() const { return event_fd_; }
  /// Works for a bounded while, never waits. Greetings are `greeting_bytes` long.
  void look(size_t greeting_bytes, const Admit& admit);
  /// Closes the sockets and all connections that have not been admitted.
  void close();

 private:
  struct Unknown {
    int fd = -1;
    std::string source;  // the address it comes from
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
  int event_fd_ = -1;  // epoll, of the sockets and the unknown connections
  bool told_ = false;
};

}  // namespace rondo::net
