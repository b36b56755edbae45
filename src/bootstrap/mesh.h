// Mesh: the links among the ranks. Each rank listens; rank r connects to the ranks below it and accepts those above, so
// every pair gets exactly one stream. All handshakes of a rank are under way at the same time, and a connect succeeds
// without its listener's help, so no two ranks wait for each other in a cycle.
//
// connect_mesh() makes the links of the plan after the rendezvous. A LinkMaker makes any others later, for who keeps
// his port.
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

/// Where this rank can be reached by its peers.
struct MeshPort {
  Fd local;
  Listeners tcp;
  Acceptor<ServerHandshake> acceptor = {};
  /// Takes the queues' connections and keeps the newest, so that no queue is full when the peers come. Before a
  /// LinkMaker has the port.
  void take_in(int nranks) {
    if (open(static_cast<size_t>(nranks)).ok()) (void)acceptor.look();
  }
  Status open(size_t num_ranks) {
    acceptor.set_most(kMaxPending + num_ranks);
    return acceptor.is_open() ? Status() : acceptor.open(local, tcp.sockets);
  }
  /// Ends it also for copies that a fork left in other processes.
  void shut() {
    local.shut();
    for (Fd& l : tcp.sockets) l.shut();
    *this = {};
  }
};
/// Opens the listeners and writes their addresses into *self. across_hosts: also those that other hosts reach.
Expected<MeshPort> open_mesh_port(PeerInfo* self, bool across_hosts = true);

/// Makes links without ever waiting: the caller polls what add_to() names, and hands the answer to step().
class LinkMaker {
 public:
  struct Failure {
    Rank peer;
    Status why;
  };
  /// The peers and the port must outlive it. Of `known` peers nothing is taken: they have links.
  LinkMaker(Rank rank, const Secret& secret, const std::vector<PeerInfo>& peers, MeshPort& port, Encryption encryption,
            std::vector<bool> known);
  ~LinkMaker() { port_.acceptor.close(); }
  LinkMaker(const LinkMaker&) = delete;
  LinkMaker& operator=(const LinkMaker&) = delete;

  /// Connects to a peer below this rank. Those above come by themselves.
  void call(Rank peer);
  /// Whether anybody listens at a peer's port: when that ends it is a failure. Until there is a link one connection
  /// stays there, so that asking does not fill the peer's queue.
  void ask(Rank peer);
  void add_to(std::vector<pollfd>* fds) const;
  /// For poll(): less than most_ms where a call has to be tried again, or given up, before.
  int slice_ms(int most_ms) const;
  /// `polled` is what add_to() has appended. Unauthenticated connections are closed, those without the secret logged.
  /// Errors: kSystem, when this process may open no more descriptors.
  Status step(const pollfd* polled);
  /// What has come of it since the last call.
  std::vector<std::pair<Rank, std::unique_ptr<Link>>> take_links() { return std::exchange(links_, {}); }
  /// Peers that could not be called, since the last call: kPeerLost (nobody listens at any of their addresses, or not
  /// for long: they are gone), else kTimeout (no answer), kUnauthorized, kMismatch, kSystem; these may be called again.
  std::vector<Failure> take_failures() { return std::exchange(failures_, {}); }

 private:
  // A connection of ours to a lower rank whose handshake is under way.
  struct Caller {
    Rank peer;
    bool only_asks = false;
    size_t next_address = 0;  // of the peer's
    Fd fd = Fd();             // empty: to be tried again
    bool connecting = false;
    bool all_refused = true;
    Patience::Clock::time_point since{};
    Status last = {};
    ClientHandshake handshake;
  };
  bool same_host(Rank peer) const { return peers_[index(peer)].host == peers_[index(rank_)].host; }
  static size_t index(Rank r) { return static_cast<size_t>(r); }
  RankPair pair_of(Rank client, Rank server) const;
  void dial(Caller* caller);
  void dial_next(Caller* caller, Status why, bool refused);
  void greet(Caller* caller);
  void advance(Caller* caller, short events);
  ClientHandshake handshake_with(Rank peer) const;
  void dial_again(Caller* caller);
  void judge(Caller* caller, Status why);
  void fail(Caller* caller, Status why);
  void come(Acceptor<ServerHandshake>::Connection& connection, bool accepted);
  void link(Rank peer, Fd fd, bool local, std::unique_ptr<TlsSession> session);

  const Rank rank_;
  const Secret secret_;
  const Encryption encryption_;
  const std::vector<PeerInfo>& peers_;
  MeshPort& port_;
  std::vector<bool> known_;  // by rank: with a link, or called
  int num_refusals_ = 0;
  std::list<Caller> callers_;
  std::vector<std::pair<Rank, std::unique_ptr<Link>>> links_;
  std::vector<Failure> failures_;
  Status own_;  // what keeps this rank from calling
};

struct MeshRequest {
  Rank rank = 0;
  const Secret* secret = nullptr;
  const Met* met = nullptr;  // the plan, its peers, and maybe a root that tells of ranks that die meanwhile
  std::function<Status()> interrupt = {};  // asked at least every 50 ms, where there is one
};
/// Collective. links[r] is the stream to rank r, empty for this rank and where the plan makes none. Unauthenticated
/// connections to the listeners are closed.
Expected<std::vector<std::unique_ptr<Link>>> connect_mesh(const MeshRequest& request, MeshPort& port,
                                                          const Patience& patience);

}  // namespace rondo
