#include "core/mesh.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <tuple>
#include <utility>
#include <variant>

#include "core/setting_table.h"

namespace rondo {
namespace {

constexpr double kConnectS = 5;   // per address of a peer
constexpr double kNewsS = 0.3;    // within which the root has heard of a death

// Every listener has its own secret, so that a peer proves to be the one that the table speaks of, not just a member.
Secret listener_secret(const Secret& secret, const PeerInfo& listener) {
  const Mac mac = hmac_sha256(secret, "mesh " + listener.unix_name);
  Secret own;
  std::memcpy(own.data(), mac.data(), own.size());
  return own;
}

// A connection of ours to a lower rank whose handshake is under way.
struct Caller {
  Fd fd;
  Rank peer;
  std::variant<ClientHandshake, PairClient> handshake;  // across hosts, on one
};

struct Stranger {
  Fd fd;
  std::string address;
  bool local;
  std::variant<ServerHandshake, PairServer> handshake;
  Patience::Clock::time_point since;
  bool has_greeted() const {
    return std::visit([](const auto& h) { return h.has_greeted(); }, handshake);
  }
};

// What stays on a host needs no encryption: the kernel passes it on, and descriptors with it.
template <class Encrypts, class Either>
std::unique_ptr<TlsSession> session_of(Either& handshake) {
  auto* across_hosts = std::get_if<Encrypts>(&handshake);
  return across_hosts != nullptr ? across_hosts->take_session() : nullptr;
}

class MeshBuilder {
 public:
  MeshBuilder(const MeshRequest& request, MeshPort port, Encryption encryption, const Patience& patience)
      : rank_(request.rank),
        secret_(*request.secret),
        encryption_(std::move(encryption)),
        peers_(request.met->peers),
        root_(*request.met->root),
        port_(std::move(port)),
        patience_(patience),
        links_(peers_.size()) {}

  Status build();
  Status give_up(const Status& why);
  std::vector<std::unique_ptr<Link>> take() { return std::move(links_); }

 private:
  Status connect_to(Rank peer);
  Status meet_all();
  bool same_host(Rank peer) const { return peers_[peer].host == peers_[rank_].host; }
  // The client's name is empty where that rank may not come to this one.
  RankPair pair_of(Rank client, Rank server) const {
    const bool may = client > server && client < static_cast<Rank>(peers_.size()) && same_host(client);
    return {client, server, may ? std::string_view(peers_[client].unix_name) : std::string_view(),
            peers_[server].unix_name};
  }
  Status could_not_connect(Rank peer, StatusCode code, const Status& why);
  Status news_from_root();
  // So many half-open connections, and all so young, that listening must wait.
  bool crowded() const { return full() && Patience::Clock::now() - strangers_.front().since < kCrowdedPatience; }
  // All peers may come at once, to a machine that is short of cores: none of them may have to go for another.
  bool full() const { return strangers_.size() >= kMaxStrangers + peers_.size(); }
  Status accept_from(int listener, bool local);
  Status advance(Caller& caller);
  void serve(Stranger& stranger);
  std::vector<Rank> missing() const;
  bool complete() const { return num_linked_ + 1 == peers_.size(); }
  void link(Rank peer, Fd fd, bool local, std::unique_ptr<TlsSession> session) {
    links_[peer] = std::make_unique<Link>(std::move(fd), local, kMaxPayloadBytes, std::move(session));
    ++num_linked_;
  }

  const Rank rank_;
  const Secret secret_;
  const Encryption encryption_;
  const std::vector<PeerInfo>& peers_;
  Link& root_;
  MeshPort port_;
  const Patience& patience_;
  std::vector<std::unique_ptr<Link>> links_;
  size_t num_linked_ = 0;
  int num_refusals_ = 0;
  std::list<Caller> callers_;
  std::list<Stranger> strangers_;
};

Status MeshBuilder::build() {
  for (Rank peer = 0; peer < rank_; ++peer) RONDO_TRY(connect_to(peer));
  return meet_all();
}

// Whoever has all of his links finds this one closed, in his first collective call: he is told why.
Status MeshBuilder::give_up(const Status& why) {
  const auto payload = refusal_payload(why);
  for (const auto& link : links_) {
    if (!link) continue;
    link->queue(FrameKind::kGaveUp, 1, payload);
    link->flush();
  }
  return why;
}

Status MeshBuilder::connect_to(Rank peer) {
  const PeerInfo& to = peers_[peer];
  Status last;
  bool refused = false;
  Fd fd;
  if (same_host(peer)) {
    auto connected = connect_abstract(to.unix_name, patience_, &refused);
    if (connected.ok()) fd = std::move(*connected);
    else last = connected.status();
  } else {
    for (const IpAddress& address : to.addresses) {
      auto connected = connect_tcp(address, to.tcp_port, patience_.at_most(kConnectS), &refused);
      if (connected.ok()) {
        fd = std::move(*connected);
        break;
      }
      last = connected.status();
      RONDO_TRY(patience_.check("connecting to " + peer_text(peer, to)));
    }
  }
  if (!fd) return could_not_connect(peer, refused ? StatusCode::kPeerLost : last.code(), last);
  Caller& caller = callers_.emplace_back(
      Caller{std::move(fd), peer, ClientHandshake(listener_secret(secret_, to), Purpose::kMesh, rank_, encryption_)});
  if (same_host(peer)) caller.handshake.emplace<PairClient>(secret_, pair_of(rank_, peer));
  return std::visit(
      [&](auto& handshake) {
        if (handshake.start(caller.fd.get()) != ClientHandshake::State::kFailed) return Status();
        return could_not_connect(peer, handshake.status().code(), handshake.status());
      },
      caller.handshake);
}

// A peer that does not answer may have given up because another one has died: the root hears of that and says so, if a
// little later.
Status MeshBuilder::could_not_connect(Rank peer, StatusCode code, const Status& why) {
  const Patience news = patience_.at_most(kNewsS);
  do {
    RONDO_TRY(news_from_root());
  } while (root_.end(nullptr) == Link::End::kNone && news.wait_ready(root_.fd(), POLLIN, "waiting for news").ok());
  return Status(
      code, fmt::format("rank {} could not connect to {}: {}", rank_, peer_text(peer, peers_[peer]), why.message()));
}

// Moves a call of ours on. When it has been answered the caller is spent: its fd is empty.
Status MeshBuilder::advance(Caller& caller) {
  const auto [state, why] = std::visit(
      [&](auto& h) {
        const auto now = h.advance(caller.fd.get());
        return std::pair(now, h.status());
      },
      caller.handshake);
  if (state == ClientHandshake::State::kFailed) return could_not_connect(caller.peer, why.code(), why);
  if (state == ClientHandshake::State::kAccepted)
    link(caller.peer, std::move(caller.fd), same_host(caller.peer), session_of<ClientHandshake>(caller.handshake));
  return {};
}

Status MeshBuilder::news_from_root() {
  root_.drain();
  if (auto frame = root_.pop(); frame && frame->kind == FrameKind::kRefused) return refusal(*frame);
  return {};
}

Status MeshBuilder::accept_from(int listener, bool local) {
  for (;;) {
    if (crowded()) return {};
    if (full()) strangers_.pop_front();
    std::string address;
    Fd fd = accept_one(listener, local ? nullptr : &address);
    if (!fd && (errno == EMFILE || errno == ENFILE))  // it would not get better until the deadline
      return Status(StatusCode::kSystem, fmt::format("rank {} cannot accept the connections of {}: {}; raise this "
                                                     "process's limit (ulimit -n)", rank_, list_ranks(missing()),
                                                     errno_text(errno)));
    if (!fd) return {};
    Stranger& s = strangers_.emplace_back(
        Stranger{std::move(fd), std::move(address), local,
                 ServerHandshake(listener_secret(secret_, peers_[rank_]), Purpose::kMesh, encryption_),
                 Patience::Clock::now()});
    if (!local) continue;
    s.handshake.emplace<PairServer>(secret_, [this](Rank peer) { return pair_of(peer, rank_); });
    serve(s);  // a peer has spoken before it is accepted
    if (!s.fd) strangers_.pop_back();
  }
}

// Moves a handshake of somebody who came to us on. When it has ended the stranger's fd is empty.
void MeshBuilder::serve(Stranger& s) {
  const auto state = std::visit([&](auto& h) { return h.advance(s.fd.get()); }, s.handshake);
  if (state == ServerHandshake::State::kUnderWay) return;
  const auto [peer, wrong_secret, why] =
      std::visit([](const auto& h) { return std::tuple(h.rank(), h.was_wrong_secret(), h.why()); }, s.handshake);
  if (wrong_secret && num_refusals_++ < kMaxRefusalsLogged)
    std::fprintf(stderr, "rondo: rank %d refused %s: it %s\n", rank_,
                 (s.local ? local_peer_name(s.fd.get()) : s.address).c_str(), why.c_str());
  if (state == ServerHandshake::State::kAccepted && peer > rank_ && peer < static_cast<Rank>(peers_.size()) &&
      !links_[peer])
    link(peer, std::move(s.fd), s.local, session_of<ServerHandshake>(s.handshake));
  s.fd.reset();
}

std::vector<Rank> MeshBuilder::missing() const {
  std::vector<Rank> ranks;
  for (Rank r = 0; r < static_cast<Rank>(peers_.size()); ++r)
    if (r != rank_ && !links_[r]) ranks.push_back(r);
  return ranks;
}

// All handshakes at once, ours with the ranks below and those of the ranks above: two wake-ups of a rank can serve
// dozens of peers.
Status MeshBuilder::meet_all() {
  std::vector<pollfd> fds;
  while (!complete()) {
    const short listening = crowded() ? 0 : POLLIN;
    fds.assign(1, {port_.local.get(), listening, 0});
    for (const Fd& l : port_.tcp.sockets) fds.push_back({l.get(), listening, 0});
    if (root_.end(nullptr) == Link::End::kNone) fds.push_back({root_.fd(), POLLIN, 0});
    const size_t first_caller = fds.size();
    for (const Caller& c : callers_) fds.push_back({c.fd.get(), POLLIN, 0});
    for (const Stranger& s : strangers_) fds.push_back({s.fd.get(), POLLIN, 0});
    ::poll(fds.data(), fds.size(), patience_.slice_ms());

    size_t i = first_caller;
    for (Caller& c : callers_)
      if (fds[i++].revents != 0) RONDO_TRY(advance(c));
    for (Stranger& s : strangers_)
      if (fds[i++].revents != 0) serve(s);
    callers_.remove_if([](const Caller& c) { return !c.fd; });
    const auto now = Patience::Clock::now();
    strangers_.remove_if([&](const Stranger& s) {  // who has greeted may be a peer that waits for a core
      return !s.fd || (!s.has_greeted() && now - s.since > kStrangerPatience);
    });
    if (fds[0].revents != 0) RONDO_TRY(accept_from(port_.local.get(), true));
    for (size_t l = 0; l < port_.tcp.sockets.size(); ++l)
      if (fds[1 + l].revents != 0) RONDO_TRY(accept_from(port_.tcp.sockets[l].get(), false));
    RONDO_TRY(news_from_root());
    if (const Status s = patience_.check("connecting"); !s.ok() && !complete())
      return Status(s.code(), fmt::format("rank {} {}: {} of {} ranks joined but did not connect", rank_, s.message(),
                                          list_ranks(missing()), peers_.size()));
  }
  return {};
}

}  // namespace

Expected<MeshPort> open_mesh_port(PeerInfo* self) {
  uint64_t random[2];
  RONDO_TRY(random_bytes(random, sizeof(random)));
  self->unix_name = fmt::format("rondo-{}-{:016x}{:016x}", ::getpid(), random[0], random[1]);
  MeshPort port;
  RONDO_TRY_ASSIGN(port.local, listen_abstract(self->unix_name));
  RONDO_TRY_ASSIGN(const std::string interfaces, read_setting("socket_ifname"));
  RONDO_TRY_ASSIGN(const std::vector<IpAddress> addresses, usable_addresses(interfaces));
  RONDO_TRY_ASSIGN(port.tcp, listen_tcp(addresses, 0));
  self->tcp_port = port.tcp.port;
  self->addresses = port.tcp.addresses;
  return port;
}

Expected<std::vector<std::unique_ptr<Link>>> connect_mesh(const MeshRequest& request, MeshPort port,
                                                          const Patience& patience) {
  RONDO_TRY_ASSIGN(Encryption encrypted, encryption());
  MeshBuilder builder(request, std::move(port), std::move(encrypted), patience);
  const Status built = builder.build();
  if (!built.ok()) return builder.give_up(built);
  return builder.take();
}

}  // namespace rondo
