// Mesh: the links among the ranks. Each rank listens. Rank r connects to lower ranks and accepts higher ones. Therefore
// every pair has one stream. A rank runs all its handshakes at the same time, and a connect succeeds before its
// listener accepts it. Therefore ranks cannot wait for each other in a cycle.
//
// connect_mesh() makes the links of the plan after the rendezvous. A LinkMaker makes more links later.
//
// Thread safety: one MeshPort belongs to one join; a LinkMaker to one thread at a time.
#pragma once

#include <poll.h>

#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "bootstrap/acceptor.h"
#include "bootstrap/auth.h"
#include "bootstrap/rendezvous.h"

namespace rondo {

constexpr size_t kMaxPayloadBytes = size_t{1} << 30;  // of a frame between two ranks

/// Where peers reach this rank. Before a LinkMaker has it, look() accepts the queued connections and keeps the newest.
using MeshPort = Acceptor<ServerHandshake>;
/// Opens the listeners and writes their addresses into *self. across_hosts: also opens those for other hosts.
Expected<MeshPort> open_mesh_port(PeerInfo* self, bool across_hosts = true);

/// Makes links without blocking. The caller polls the descriptors of add_to() and passes the result to step().
class LinkMaker {
 public:
  struct Failure {
    Rank peer;
    Status why;
  };
  /// `peers` and `port` must outlive it. Connections of `known` peers are refused: they have links.
  LinkMaker(Rank rank, const Secret& secret, const std::vector<PeerInfo>& peers, MeshPort& port, Encryption encryption,
            std::vector<bool> known);
  ~LinkMaker() { port_.pause(); }
  LinkMaker(const LinkMaker&) = delete;
  LinkMaker& operator=(const LinkMaker&) = delete;

  /// Starts to connect to a lower rank. Higher ranks connect to this one.
  void call(Rank peer);
  /// Checks with a connection whether a peer's port has a listener. If it has none, or loses it, take_failures()
  /// returns the peer. There is at most one such connection for a peer, so that they do not fill its queue.
  void ask(Rank peer);
  void add_to(std::vector<pollfd>* fds) const;
  /// Returns the timeout for poll(): less than most_ms if a connect must be tried again before.
  int slice_ms(int most_ms) const;
  /// Continues all handshakes. `polled` has the entries that add_to() has appended. Closes unauthenticated connections,
  /// and logs those with a wrong secret. Errors: kSystem if this process has no descriptors left.
  Status step(const pollfd* polled);
  /// Returns the links made since the last take_links().
  std::vector<std::pair<Rank, std::unique_ptr<Link>>> take_links() { return std::exchange(links_, {}); }
  /// Returns the peers to which connecting failed since the last take_failures(). kPeerLost means that a peer has no
  /// listener: it is gone. After kTimeout (no answer), kUnauthorized, kMismatch and kSystem it may be called again.
  std::vector<Failure> take_failures() { return std::exchange(failures_, {}); }

 private:
  // A connection of this rank whose handshake is not complete.
  struct Caller {
    Rank peer;
    bool only_asks = false;
    size_t next_address = 0;  // index of the peer's addresses
    Fd fd = Fd();             // empty: connect again after kRetry
    bool connecting = false;
    bool all_refused = true;
    Deadline::Clock::time_point since{};
    Status last = {};
    ClientHandshake handshake;
  };
  bool same_host(Rank peer) const { return peers_[peer].host == peers_[rank_].host; }
  RankPair pair_of(Rank client, Rank server) const;
  void dial(Caller* caller);
  void dial_next(Caller* caller, Status why, bool refused);
  void greet(Caller* caller);
  void advance(Caller* caller, short events);
  ClientHandshake handshake_with(Rank peer) const;
  void dial_again(Caller* caller);
  void drop_ended() {
    std::erase_if(callers_, [](const Caller& c) { return c.peer < 0; });
  }
  void judge(Caller* caller, Status why);
  void fail(Caller* caller, Status why);
  void come(MeshPort::Connection& connection, bool accepted);
  void link(Rank peer, Fd fd, bool local, std::unique_ptr<TlsSession> session);

  const Rank rank_;
  const Secret secret_;
  const Encryption encryption_;
  const std::vector<PeerInfo>& peers_;
  MeshPort& port_;
  std::vector<bool> known_;  // by rank: has a link or was called
  int num_refusals_ = 0;
  std::list<Caller> callers_;
  std::vector<std::pair<Rank, std::unique_ptr<Link>>> links_;
  std::vector<Failure> failures_;
  Status own_;  // an error of this rank itself, which step() returns
};

struct MeshRequest {
  Rank rank = 0;
  const Secret* secret = nullptr;
  const Met* met = nullptr;                // the plan, its peers, and a root that reports deaths, or no root
  std::function<Status()> interrupt = {};  // if set, called at least every 50 ms
};
/// Collective. Returns the links by rank, nullptr where the plan has none. Closes unauthenticated connections.
Expected<std::vector<std::unique_ptr<Link>>> connect_mesh(const MeshRequest& request, MeshPort& port,
                                                          const Deadline& deadline);

}  // namespace rondo
