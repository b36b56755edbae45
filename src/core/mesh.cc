#include "core/mesh.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <list>

namespace rondo {
namespace {

constexpr double kConnectS = 5;   // per address of a peer
constexpr size_t kMaxStrangers = 128;
constexpr size_t kMaxPayloadBytes = size_t{1} << 30;
constexpr auto kStrangerPatience = std::chrono::seconds(5);
constexpr auto kCrowdedPatience = std::chrono::milliseconds(500);

// Every listener has its own secret, so that a peer proves to be the one that the table speaks of, not just a member.
Secret listener_secret(const Secret& secret, const PeerInfo& listener) {
  const Mac mac = hmac_sha256(secret, "mesh " + listener.unix_name);
  Secret own;
  std::memcpy(own.data(), mac.data(), own.size());
  return own;
}

struct Stranger {
  Fd fd;
  bool local;
  ServerHandshake handshake;
  Patience::Clock::time_point since;
};

class MeshBuilder {
 public:
  MeshBuilder(const MeshRequest& request, MeshPort port, const Patience& patience)
      : rank_(request.rank), secret_(*request.secret), peers_(request.met->peers), root_(*request.met->root),
        port_(std::move(port)), patience_(patience), links_(peers_.size()) {}

  Status connect_to(Rank peer);
  Status accept_all_above();
  std::vector<std::unique_ptr<Link>> take() { return std::move(links_); }

 private:
  bool same_host(Rank peer) const { return peers_[peer].host == peers_[rank_].host; }
  Status news_from_root();
  // So many half-open connections, and all so young, that listening must wait.
  bool crowded() const {
    return strangers_.size() >= kMaxStrangers &&
           Patience::Clock::now() - strangers_.front().since < kCrowdedPatience;
  }
  void accept_from(int listener, bool local);
  void serve_strangers();
  std::vector<Rank> missing() const;

  const Rank rank_;
  const Secret secret_;
  const std::vector<PeerInfo>& peers_;
  Link& root_;
  MeshPort port_;
  const Patience& patience_;
  std::vector<std::unique_ptr<Link>> links_;
  std::list<Stranger> strangers_;
};

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
  if (fd) last = authenticate_client(fd.get(), listener_secret(secret_, to), Purpose::kMesh, rank_, patience_);
  if (!last.ok()) {
    RONDO_TRY(news_from_root());
    const StatusCode code = refused ? StatusCode::kPeerLost : last.code();
    return Status(code, fmt::format("rank {} could not connect to {}: {}", rank_, peer_text(peer, to), last.message()));
  }
  links_[peer] = std::make_unique<Link>(std::move(fd), same_host(peer), kMaxPayloadBytes);
  return {};
}

Status MeshBuilder::news_from_root() {
  root_.drain();
  if (auto frame = root_.pop(); frame && frame->kind == FrameKind::kRefused) return refusal(*frame);
  return {};
}

void MeshBuilder::accept_from(int listener, bool local) {
  for (;;) {
    if (crowded()) return;
    if (strangers_.size() >= kMaxStrangers) strangers_.pop_front();
    std::string address;
    Fd fd = accept_one(listener, &address);
    if (!fd) return;
    strangers_.push_back({std::move(fd), local, ServerHandshake(listener_secret(secret_, peers_[rank_]), Purpose::kMesh),
                          Patience::Clock::now()});
  }
}

void MeshBuilder::serve_strangers() {
  for (auto s = strangers_.begin(); s != strangers_.end();) {
    const auto state = s->handshake.advance(s->fd.get());
    const Rank peer = s->handshake.rank();
    if (state == ServerHandshake::State::kAccepted && peer > rank_ && peer < static_cast<Rank>(peers_.size()) &&
        !links_[peer])
      links_[peer] = std::make_unique<Link>(std::move(s->fd), s->local, kMaxPayloadBytes);
    const bool stale = Patience::Clock::now() - s->since > kStrangerPatience;
    s = state != ServerHandshake::State::kUnderWay || stale ? strangers_.erase(s) : std::next(s);
  }
}

std::vector<Rank> MeshBuilder::missing() const {
  std::vector<Rank> ranks;
  for (Rank r = rank_ + 1; r < static_cast<Rank>(peers_.size()); ++r)
    if (!links_[r]) ranks.push_back(r);
  return ranks;
}

Status MeshBuilder::accept_all_above() {
  for (;;) {
    const std::vector<Rank> awaited = missing();
    if (awaited.empty()) return {};
    std::vector<pollfd> fds;
    const short listening = crowded() ? 0 : POLLIN;
    fds.push_back({port_.local.get(), listening, 0});
    for (const Fd& l : port_.tcp.sockets) fds.push_back({l.get(), listening, 0});
    for (const Stranger& s : strangers_) fds.push_back({s.fd.get(), POLLIN, 0});
    if (root_.end(nullptr) == Link::End::kNone) fds.push_back({root_.fd(), POLLIN, 0});
    ::poll(fds.data(), fds.size(), patience_.slice_ms());
    serve_strangers();
    accept_from(port_.local.get(), true);
    for (const Fd& l : port_.tcp.sockets) accept_from(l.get(), false);
    RONDO_TRY(news_from_root());
    if (const Status s = patience_.check("connecting"); !s.ok() && !missing().empty())
      return Status(s.code(), fmt::format("rank {} {}: {} of {} ranks joined but did not connect", rank_, s.message(),
                                          list_ranks(missing()), peers_.size()));
  }
}

}  // namespace

Expected<MeshPort> open_mesh_port(PeerInfo* self) {
  uint64_t random[2];
  RONDO_TRY(random_bytes(random, sizeof(random)));
  self->unix_name = fmt::format("rondo-{}-{:016x}{:016x}", ::getpid(), random[0], random[1]);
  MeshPort port;
  RONDO_TRY_ASSIGN(port.local, listen_abstract(self->unix_name));
  const char* spec = std::getenv("RONDO_SOCKET_IFNAME");
  RONDO_TRY_ASSIGN(const std::vector<IpAddress> addresses, usable_addresses(spec != nullptr ? spec : ""));
  RONDO_TRY_ASSIGN(port.tcp, listen_tcp(addresses, 0));
  self->tcp_port = port.tcp.port;
  self->addresses = port.tcp.addresses;
  return port;
}

Expected<std::vector<std::unique_ptr<Link>>> connect_mesh(const MeshRequest& request, MeshPort port,
                                                          const Patience& patience) {
  MeshBuilder builder(request, std::move(port), patience);
  for (Rank peer = 0; peer < request.rank; ++peer) RONDO_TRY(builder.connect_to(peer));
  RONDO_TRY(builder.accept_all_above());
  return builder.take();
}

}  // namespace rondo
