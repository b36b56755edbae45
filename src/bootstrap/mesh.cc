#include "bootstrap/mesh.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/error.h"
#include "config/setting_table.h"

namespace rondo {
namespace {

constexpr auto kConnect = std::chrono::seconds(5);     // per address of a peer
constexpr auto kRetry = std::chrono::milliseconds(2);  // if a peer's queue is full
constexpr double kEventsS = 0.3;                       // within this time the root has detected a death
constexpr double kHearMs = 10;

// Every listener has its own secret. Therefore a peer proves that it is the listener in the table, not only a member.
Secret listener_secret(const Secret& secret, const PeerInfo& listener) {
  return derive_secret(secret, "mesh " + listener.unix_name);
}

// Returns an error of the root or of the interrupt.
Status hear(const MeshRequest& request) {
  if (Link* const root = request.met->root.get(); root != nullptr) {
    root->drain();
    if (auto frame = root->pop(); frame && frame->kind == FrameKind::kRefused) return refusal(*frame);
  }
  return request.interrupt ? request.interrupt() : Status();
}

bool root_speaks(const MeshRequest& request) {
  return request.met->root != nullptr && request.met->root->end(nullptr) == Link::End::kNone;
}

// A peer that does not answer may have given up because of another rank's death. The root or the interrupt reports that
// a little later. Wait for it, because it is the better error.
Status could_not_connect(const MeshRequest& request, const LinkMaker::Failure& failure, const Deadline& deadline) {
  const Deadline events = deadline.at_most(kEventsS);
  do {
    RONDO_TRY(hear(request));
  } while ((request.met->root == nullptr || root_speaks(request)) &&
           events.pause(kHearMs, "waiting for the report of a death").ok());
  return make_error(failure.why.code(), "rank {} could not connect to {}: {}", request.rank,
                    peer_text(failure.peer, request.met->peers[failure.peer]), failure.why.message());
}

// Makes the links to the ranks `wanted`. Runs all handshakes at once, so that one wake-up of a rank can serve many
// peers.
Status make_all(const MeshRequest& request, const std::vector<Rank>& wanted, LinkMaker& maker, const Deadline& deadline,
                std::vector<std::unique_ptr<Link>>* links) {
  std::vector<Rank> missing = wanted;
  for (const Rank peer : wanted)
    if (peer < request.rank) maker.call(peer);
  std::vector<pollfd> fds;
  for (;;) {
    for (auto& [peer, link] : maker.take_links()) (*links)[peer] = std::move(link);
    std::erase_if(missing, [&](Rank r) { return (*links)[r] != nullptr; });
    for (const LinkMaker::Failure& f : maker.take_failures()) RONDO_TRY(could_not_connect(request, f, deadline));
    RONDO_TRY(hear(request));
    if (missing.empty()) return {};
    if (const Status s = deadline.check("connecting"); !s.ok())
      return make_error(s.code(), "rank {} {}: {} of {} ranks joined but did not connect", request.rank, s.message(),
                        list_ranks(missing), links->size());
    fds.assign(1, {root_speaks(request) ? request.met->root->fd() : -1, POLLIN, 0});
    maker.add_to(&fds);
    ::poll(fds.data(), fds.size(), maker.slice_ms(deadline.slice_ms()));
    if (const Status s = maker.step(&fds[1]); !s.ok())
      return make_error(s.code(), "{}, while {} had not connected", s.message(), list_ranks(missing));
  }
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
  port_.set_most(kMaxPending + peers_.size());
  port_.serve(
      [this](const MeshPort::Connection& c) {
        return c.local ? ServerHandshake(secret_, [this](Rank peer) { return pair_of(peer, rank_); })
                       : ServerHandshake(listener_secret(secret_, peers_[rank_]), Purpose::kMesh, encryption_);
      },
      [this](MeshPort::Connection& c, bool accepted) { come(c, accepted); }, true);
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
    own_ = make_error(StatusCode::kSystem, "rank {} cannot connect to rank {}: {}", rank_, caller->peer,
                      errno_text(error));
    return;
  }
  if (!caller->fd)
    return dial_next(caller, make_error(StatusCode::kSystem, "connect to {}: {}", name, errno_text(error)),
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
        return dial_next(caller, make_error(StatusCode::kSystem, "connect to {}: {}", name, errno_text(error)),
                         error == ECONNREFUSED);
      caller->connecting = false;
      return greet(caller);
    }
    if (Deadline::Clock::now() - caller->since < kConnect) return;
    return dial_next(caller,
                     make_error(StatusCode::kTimeout, "connect to {}: no answer within {} s", name,
                                std::chrono::seconds(kConnect).count()),
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
void LinkMaker::come(MeshPort::Connection& c, bool accepted) {
  const Rank peer = c.handshake->rank();
  if (c.handshake->was_wrong_secret() && num_refusals_++ < kMaxRefusalsLogged)
    std::fprintf(stderr, "rondo: rank %d refused %s: it %s\n", rank_,
                 (c.local ? local_peer_name(c.fd.get()) : c.address).c_str(),
                 std::string(c.handshake->status().message()).c_str());
  if (accepted && peer > rank_ && peer < static_cast<Rank>(peers_.size()) && !known_[peer])
    link(peer, std::move(c.fd), c.local, c.handshake->take_session());
}

void LinkMaker::add_to(std::vector<pollfd>* fds) const {
  fds->push_back({port_.event_fd(), POLLIN, 0});
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
  const Status s = port_.look();
  return s.ok() ? s : make_error(s.code(), "rank {} {}", rank_, s.message());
}

Expected<MeshPort> open_mesh_port(PeerInfo* self, bool across_hosts) {
  uint64_t random[2];
  RONDO_TRY(random_bytes(random, sizeof(random)));
  self->unix_name = fmt::format("rondo-{}-{:016x}{:016x}", ::getpid(), random[0], random[1]);
  RONDO_TRY_ASSIGN(Fd local, listen_abstract(self->unix_name));
  Listeners tcp;
  if (across_hosts) {
    RONDO_TRY_ASSIGN(const SettingFields settings, read_process_settings());
    RONDO_TRY_ASSIGN(const std::vector<IpAddress> addresses, usable_addresses(settings.socket_ifname));
    RONDO_TRY_ASSIGN(tcp, listen_tcp(addresses, 0));
    self->tcp_port = tcp.port;
    self->addresses = tcp.addresses;
  }
  MeshPort port;
  RONDO_TRY(port.open(std::move(local), std::move(tcp.sockets)));
  return port;
}

Expected<std::vector<std::unique_ptr<Link>>> connect_mesh(const MeshRequest& request, MeshPort& port,
                                                          const Deadline& deadline) {
  RONDO_TRY_ASSIGN(Encryption encrypted, encryption());
  const std::vector<Rank> wanted = request.met->plan.neighbours(request.rank);
  std::vector<bool> known(request.met->peers.size(), true);
  for (const Rank r : wanted) known[r] = false;
  LinkMaker maker(request.rank, *request.secret, request.met->peers, port, std::move(encrypted), std::move(known));
  std::vector<std::unique_ptr<Link>> links(request.met->peers.size());
  const Status made = make_all(request, wanted, maker, deadline, &links);
  if (made.ok()) return links;
  // A peer that has all its links gets the reason in its first control call.
  send_to_all(links, FrameKind::kGaveUp, 1, refusal_payload(made));
  return made;
}

}  // namespace rondo
