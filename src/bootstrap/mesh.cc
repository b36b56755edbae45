#include "bootstrap/mesh.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "config/setting_table.h"

namespace rondo {
namespace {

constexpr auto kConnect = std::chrono::seconds(5);     // per address of a peer
constexpr auto kRetry = std::chrono::milliseconds(2);  // if a peer's queue is full
constexpr double kEventsS = 0.3;                       // within this time the root has detected a death
constexpr double kHearMs = 10;

// Every listener has its own secret. Therefore a peer proves that it is the listener in the table, not only a member.
Secret listener_secret(const Secret& secret, const PeerInfo& listener) {
  const Mac mac = hmac_sha256(secret, "mesh " + listener.unix_name);
  Secret own;
  std::memcpy(own.data(), mac.data(), own.size());
  return own;
}

}  // namespace

LinkMaker::LinkMaker(Rank rank, const Secret& secret, const std::vector<PeerInfo>& peers, MeshPort& port,
                     Encryption encryption, std::vector<bool> known)
    : rank_(rank),
      secret_(secret),
      encryption_(std::move(encryption)),
      peers_(peers),
      port_(port),
      known_(std::move(known)) {
  own_ = port_.open(peers_.size());
  port_.acceptor.serve(
      [this](const Acceptor<ServerHandshake>::Connection& c) {
        return c.local ? ServerHandshake(secret_, [this](Rank peer) { return pair_of(peer, rank_); })
                       : ServerHandshake(listener_secret(secret_, peers_[rank_]), Purpose::kMesh, encryption_);
      },
      [this](Acceptor<ServerHandshake>::Connection& c, bool accepted) { come(c, accepted); }, true);
}

// client_name is empty if that rank may not connect to `server`.
RankPair LinkMaker::pair_of(Rank client, Rank server) const {
  const bool may = client > server && client < static_cast<Rank>(peers_.size()) && same_host(client);
  return {client, server, may ? std::string_view(peers_[client].unix_name) : std::string_view(),
          peers_[server].unix_name};
}

void LinkMaker::link(Rank peer, Fd fd, bool local, std::unique_ptr<TlsSession> session) {
  known_[peer] = true;
  for (Caller& c : callers_) {  // the peer has connected: its check is no longer needed
    if (c.peer != peer || !c.only_asks) continue;
    c.peer = -1;
    c.fd = Fd();
  }
  links_.emplace_back(peer, std::make_unique<Link>(std::move(fd), local, kMaxPayloadBytes, std::move(session)));
}

void LinkMaker::call(Rank peer) {
  if (known_[peer]) return;
  known_[peer] = true;
  dial(&callers_.emplace_back(Caller{.peer = peer, .handshake = handshake_with(peer)}));
  drop_ended();
}

// Ranks of one host use the short form without encryption: the kernel passes the bytes and the descriptors.
ClientHandshake LinkMaker::handshake_with(Rank peer) const {
  if (same_host(peer)) return ClientHandshake(secret_, pair_of(rank_, peer));
  return ClientHandshake(listener_secret(secret_, peers_[peer]), Purpose::kMesh, rank_, encryption_);
}

void LinkMaker::ask(Rank peer) {
  if (std::any_of(callers_.begin(), callers_.end(), [peer](const Caller& c) { return c.peer == peer; })) return;
  Caller& caller = callers_.emplace_back(
      Caller{.peer = peer, .only_asks = true, .handshake = ClientHandshake(secret_, Purpose::kMesh, rank_)});
  dial(&caller);
  drop_ended();
}

void LinkMaker::fail(Caller* caller, Status why) {
  const bool gone = why.code() == StatusCode::kPeerLost;
  if (!caller->only_asks && !gone) known_[caller->peer] = false;
  if (!caller->only_asks || gone) failures_.push_back({caller->peer, std::move(why)});
  caller->peer = -1;
  caller->fd = Fd();
}

// Handles a failed handshake. A connection that was closed without an answer is tried again: the peer had too many, or
// its listener has ended, which the next connect shows.
void LinkMaker::judge(Caller* caller, Status why) {
  if (why.code() != StatusCode::kPeerLost) return fail(caller, std::move(why));
  caller->handshake = handshake_with(caller->peer);
  dial_again(caller);
}

void LinkMaker::dial_again(Caller* caller) {
  caller->fd = Fd();
  caller->all_refused = true;
  caller->next_address = 0;
  caller->since = Deadline::Clock::now();
}

void LinkMaker::dial(Caller* caller) {
  const PeerInfo& to = peers_[caller->peer];
  caller->since = Deadline::Clock::now();
  const bool local = same_host(caller->peer);
  if (!local && caller->next_address >= to.addresses.size()) {
    const StatusCode code = caller->last.ok() || caller->all_refused ? StatusCode::kPeerLost : caller->last.code();
    return fail(caller, Status(code, caller->last.ok() ? "it has no address" : std::string(caller->last.message())));
  }
  bool connected = false;
  int error = 0;
  caller->fd = local ? begin_connect_abstract(to.unix_name, &connected, &error)
                     : begin_connect_tcp(to.addresses[caller->next_address], to.tcp_port, &connected, &error);
  const std::string name = local ? to.unix_name : to.addresses[caller->next_address].to_string(to.tcp_port);
  if (!caller->fd && local && error == EAGAIN) {  // the queue is full: there is a listener
    if (caller->only_asks) caller->peer = -1;
    return;
  }
  if (!caller->fd && (error == EMFILE || error == ENFILE)) {
    own_ = Status(StatusCode::kSystem, fmt::format("rank {} cannot connect to rank {}: {}; raise this process's limit "
                                                   "(ulimit -n)",
                                                   rank_, caller->peer, errno_text(error)));
    return;
  }
  if (!caller->fd)
    return dial_next(caller, Status(StatusCode::kSystem, fmt::format("connect to {}: {}", name, errno_text(error))),
                     error == ECONNREFUSED);
  caller->connecting = !connected;
  if (connected) greet(caller);
}

void LinkMaker::dial_next(Caller* caller, Status why, bool refused) {
  caller->fd = Fd();
  caller->connecting = false;
  caller->all_refused = caller->all_refused && refused;
  if (same_host(caller->peer))
    return fail(caller, Status(refused ? StatusCode::kPeerLost : why.code(), std::string(why.message())));
  caller->last = std::move(why);
  ++caller->next_address;
  dial(caller);
}

void LinkMaker::greet(Caller* caller) {
  if (caller->only_asks) return;
  ClientHandshake& handshake = caller->handshake;
  if (handshake.start(caller->fd.get()) == ClientHandshake::State::kFailed) judge(caller, handshake.status());
}

// Continues one connection. If it has succeeded or failed, sets its peer to -1.
void LinkMaker::advance(Caller* caller, short events) {
  if (caller->peer < 0) return;
  const PeerInfo& to = peers_[caller->peer];
  if (!caller->fd) {
    if (Deadline::Clock::now() - caller->since >= kRetry) dial(caller);
    return;
  }
  if (caller->connecting) {
    const std::string name = to.addresses[caller->next_address].to_string(to.tcp_port);
    if (events != 0) {
      const int error = end_connect(caller->fd.get());
      if (error != 0)
        return dial_next(caller, Status(StatusCode::kSystem, fmt::format("connect to {}: {}", name, errno_text(error))),
                         error == ECONNREFUSED);
      caller->connecting = false;
      return greet(caller);
    }
    if (Deadline::Clock::now() - caller->since < kConnect) return;
    return dial_next(caller,
                     Status(StatusCode::kTimeout, fmt::format("connect to {}: no answer within {} s", name,
                                                              std::chrono::seconds(kConnect).count())),
                     false);
  }
  if (events == 0) return;
  if (caller->only_asks) {  // closed by the peer or by the kernel: connect again to see whether there is a listener
    return dial_again(caller);
  }
  const ClientHandshake::State state = caller->handshake.advance(caller->fd.get());
  if (state == ClientHandshake::State::kFailed) return judge(caller, caller->handshake.status());
  if (state != ClientHandshake::State::kAccepted) return;
  link(caller->peer, std::move(caller->fd), same_host(caller->peer), caller->handshake.take_session());
  caller->peer = -1;
}

// Handles the end of an incoming connection's handshake.
void LinkMaker::come(Acceptor<ServerHandshake>::Connection& c, bool accepted) {
  const Rank peer = c.handshake->rank();
  if (c.handshake->was_wrong_secret() && num_refusals_++ < kMaxRefusalsLogged)
    std::fprintf(stderr, "rondo: rank %d refused %s: it %s\n", rank_,
                 (c.local ? local_peer_name(c.fd.get()) : c.address).c_str(), c.handshake->why().c_str());
  if (accepted && peer > rank_ && peer < static_cast<Rank>(peers_.size()) && !known_[peer])
    link(peer, std::move(c.fd), c.local, c.handshake->take_session());
}

void LinkMaker::add_to(std::vector<pollfd>* fds) const {
  fds->push_back({port_.acceptor.event_fd(), POLLIN, 0});
  for (const Caller& c : callers_) fds->push_back({c.fd.get(), c.connecting ? short{POLLOUT} : short{POLLIN}, 0});
}

int LinkMaker::slice_ms(int most_ms) const {
  const bool again = std::any_of(callers_.begin(), callers_.end(), [](const Caller& c) { return !c.fd; });
  return again ? std::min<int>(most_ms, kRetry.count()) : most_ms;
}

Status LinkMaker::step(const pollfd* polled) {
  RONDO_TRY(std::exchange(own_, {}));
  size_t i = 1;
  for (Caller& c : callers_) advance(&c, polled[i++].revents);
  drop_ended();
  const Status s = port_.acceptor.look();
  return s.ok() ? s : Status(s.code(), fmt::format("rank {} {}", rank_, s.message()));
}

namespace {

// Makes the links of a plan, while it listens to the root.
class MeshBuilder {
 public:
  MeshBuilder(const MeshRequest& request, MeshPort& port, Encryption encryption, const Deadline& deadline)
      : rank_(request.rank),
        peers_(request.met->peers),
        root_(request.met->root.get()),
        deadline_(deadline),
        interrupt_(request.interrupt),
        wanted_(request.met->plan.neighbours(request.rank)),
        maker_(request.rank, *request.secret, request.met->peers, port, std::move(encryption),
               all_but(wanted_, request.met->peers.size())),
        links_(request.met->peers.size()) {}

  Status build();
  Status give_up(const Status& why);
  std::vector<std::unique_ptr<Link>> take() { return std::move(links_); }

 private:
  static std::vector<bool> all_but(const std::vector<Rank>& ranks, size_t num_ranks) {
    std::vector<bool> set(num_ranks, true);
    for (const Rank r : ranks) set[r] = false;
    return set;
  }
  Status could_not_connect(const LinkMaker::Failure& failure);
  Status hear();
  Status harvest();
  std::vector<Rank> missing() const;

  const Rank rank_;
  const std::vector<PeerInfo>& peers_;
  Link* const root_;  // may be nullptr
  const Deadline& deadline_;
  const std::function<Status()>& interrupt_;
  const std::vector<Rank> wanted_;
  LinkMaker maker_;
  std::vector<std::unique_ptr<Link>> links_;
  size_t num_linked_ = 0;
};

// Sends the reason to the peers. A peer that has all its links gets it in its first collective call.
Status MeshBuilder::give_up(const Status& why) {
  send_to_all(links_, FrameKind::kGaveUp, 1, refusal_payload(why));
  return why;
}

// A peer that does not answer may have given up because of another rank's death. The root or interrupt_ reports that a
// little later. Wait for it, because it is the better error.
Status MeshBuilder::could_not_connect(const LinkMaker::Failure& failure) {
  const Deadline events = deadline_.at_most(kEventsS);
  do {
    RONDO_TRY(hear());
  } while ((root_ == nullptr || root_->end(nullptr) == Link::End::kNone) &&
           events.pause(kHearMs, "waiting for the report of a death").ok());
  const Rank peer = failure.peer;
  return Status(failure.why.code(), fmt::format("rank {} could not connect to {}: {}", rank_,
                                                peer_text(peer, peers_[peer]), failure.why.message()));
}

Status MeshBuilder::hear() {
  if (root_ != nullptr) {
    root_->drain();
    if (auto frame = root_->pop(); frame && frame->kind == FrameKind::kRefused) return refusal(*frame);
  }
  return interrupt_ ? interrupt_() : Status();
}

std::vector<Rank> MeshBuilder::missing() const {
  std::vector<Rank> ranks;
  for (const Rank r : wanted_)
    if (!links_[r]) ranks.push_back(r);
  return ranks;
}

Status MeshBuilder::harvest() {
  for (auto& [peer, link] : maker_.take_links()) {
    links_[peer] = std::move(link);
    ++num_linked_;
  }
  for (const LinkMaker::Failure& f : maker_.take_failures()) RONDO_TRY(could_not_connect(f));
  return {};
}

// Runs all handshakes at once, so that one wake-up of a rank can serve many peers.
Status MeshBuilder::build() {
  for (const Rank peer : wanted_)
    if (peer < rank_) maker_.call(peer);
  std::vector<pollfd> fds;
  for (;;) {
    RONDO_TRY(harvest());
    if (num_linked_ == wanted_.size()) return {};
    const bool root_speaks = root_ != nullptr && root_->end(nullptr) == Link::End::kNone;
    fds.assign(1, {root_speaks ? root_->fd() : -1, POLLIN, 0});
    maker_.add_to(&fds);
    ::poll(fds.data(), fds.size(), maker_.slice_ms(deadline_.slice_ms()));
    if (Status s = maker_.step(&fds[1]); !s.ok())
      return Status(s.code(), fmt::format("{}, while {} had not connected", s.message(), list_ranks(missing())));
    RONDO_TRY(harvest());
    RONDO_TRY(hear());
    if (const Status s = deadline_.check("connecting"); !s.ok() && num_linked_ != wanted_.size())
      return Status(s.code(), fmt::format("rank {} {}: {} of {} ranks joined but did not connect", rank_, s.message(),
                                          list_ranks(missing()), peers_.size()));
  }
}

}  // namespace

Expected<MeshPort> open_mesh_port(PeerInfo* self, bool across_hosts) {
  uint64_t random[2];
  RONDO_TRY(random_bytes(random, sizeof(random)));
  self->unix_name = fmt::format("rondo-{}-{:016x}{:016x}", ::getpid(), random[0], random[1]);
  MeshPort port;
  RONDO_TRY_ASSIGN(port.local, listen_abstract(self->unix_name));
  if (!across_hosts) return port;
  RONDO_TRY_ASSIGN(const SettingFields settings, read_process_settings());
  RONDO_TRY_ASSIGN(const std::vector<IpAddress> addresses, usable_addresses(settings.socket_ifname));
  RONDO_TRY_ASSIGN(port.tcp, listen_tcp(addresses, 0));
  self->tcp_port = port.tcp.port;
  self->addresses = port.tcp.addresses;
  return port;
}

Expected<std::vector<std::unique_ptr<Link>>> connect_mesh(const MeshRequest& request, MeshPort& port,
                                                          const Deadline& deadline) {
  RONDO_TRY_ASSIGN(Encryption encrypted, encryption());
  MeshBuilder builder(request, port, std::move(encrypted), deadline);
  const Status built = builder.build();
  if (!built.ok()) return builder.give_up(built);
  return builder.take();
}

}  // namespace rondo
