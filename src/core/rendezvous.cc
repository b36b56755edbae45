#include "core/rendezvous.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstdlib>

namespace rondo {
namespace {

constexpr double kAddressS = 5;  // per address: one of several may lead nowhere
constexpr double kHandshakeS = 10;
constexpr double kVerdictGraceS = 2;  // the root, which knows who is missing, should speak before this side gives up
constexpr int kRetryMs = 20;
constexpr size_t kMaxTableBytes = 256 << 20;

struct Reached {
  Fd fd;
  std::unique_ptr<TlsSession> session;
};

// One attempt over all addresses. *retry says whether another may succeed.
Expected<Reached> reach_root(const IdContents& id, Rank rank, const Patience& patience, bool* retry) {
  Status last;
  size_t num_refused = 0;
  RONDO_TRY_ASSIGN(const Encryption encrypted, encryption());
  for (const IpAddress& address : id.addresses) {
    bool refused = false;
    auto fd = connect_tcp(address, id.port, patience.at_most(kAddressS), &refused);
    if (fd.ok()) {
      auto session = authenticate_client(fd->get(), ClientHandshake(id.secret, Purpose::kRendezvous, rank, encrypted),
                                         patience.at_most(kHandshakeS));
      if (session.ok()) return Reached{std::move(*fd), std::move(*session)};
      last = session.status();
      *retry = last.code() == StatusCode::kPeerLost || last.code() == StatusCode::kTimeout;
      last = Status(last.code(), fmt::format("rank {} at the rendezvous {}: {}", rank, address.to_string(id.port),
                                             last.message()));
      if (!*retry) return last;
    } else {
      last = fd.status();
      num_refused += refused;
    }
    if (patience.aborted() || patience.expired()) break;
  }
  *retry = id.derived || num_refused < id.addresses.size();
  if (*retry) return last;
  return Status(StatusCode::kPeerLost,
                fmt::format("rank {} found no rendezvous at {}: it has served its communicator, its deadline has passed, "
                            "or the process that made the id has ended", rank, id.addresses[0].to_string(id.port)));
}

Expected<Reached> connect_to_root(const IdContents& id, Rank rank, const Patience& patience) {
  for (;;) {
    bool retry = true;
    auto reached = reach_root(id, rank, patience, &retry);
    if (reached.ok() || !retry) return reached;
    if (const Status s = patience.pause(kRetryMs, "connecting to the rendezvous"); !s.ok())
      return Status(s.code(), fmt::format("rank {} {}; last: {}", rank, s.message(), reached.status().message()));
  }
}

Expected<std::vector<PeerInfo>> decode_table(const Frame& frame, int nranks) {
  wire::Reader r(frame.payload);
  std::vector<PeerInfo> peers;
  for (int i = 0; i < nranks && r.ok(); ++i) peers.push_back(decode_peer(&r));
  if (!r.finished()) return Status(StatusCode::kInternal, "the rendezvous sent a table that cannot be decoded");
  return peers;
}

}  // namespace

std::string list_ranks(const std::vector<Rank>& ranks) {
  constexpr size_t kMaxNamed = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMaxNamed); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  if (ranks.size() > kMaxNamed) text += fmt::format(" and {} more", ranks.size() - kMaxNamed);
  return text;
}

Status refusal(const Frame& frame) {
  wire::Reader r(frame.payload);
  const auto code = r.get<uint8_t>();
  const std::string message(r.str());
  return r.finished() ? status_from_peer(code, message)
                      : Status(StatusCode::kInternal, "the rendezvous sent a broken refusal");
}

std::shared_ptr<const std::string> refusal_payload(const Status& why) {
  wire::Writer w;
  w.put(static_cast<uint8_t>(why.code())).str(why.message());
  return std::make_shared<const std::string>(w.take());
}

Expected<Met> join_rendezvous(const IdContents& id, int nranks, Rank rank, const PeerInfo& self,
                              const Patience& patience) {
  RONDO_TRY_ASSIGN(Reached reached, connect_to_root(id, rank, patience));
  auto root = std::make_unique<Link>(std::move(reached.fd), false, kMaxTableBytes, std::move(reached.session));
  wire::Writer join;
  join.put(static_cast<uint32_t>(nranks))
      .put(static_cast<uint64_t>(patience.left_s() * 1e3))
      .put(static_cast<uint64_t>(patience.seconds() * 1e3));
  encode(self, &join);
  root->queue(FrameKind::kJoin, 0, std::make_shared<const std::string>(join.take()));

  const Patience grace = patience.extended(kVerdictGraceS);
  for (;;) {
    const bool flushed = root->flush();
    root->drain();
    if (auto frame = root->pop()) {
      if (frame->kind == FrameKind::kRefused) return refusal(*frame);
      RONDO_TRY_ASSIGN(std::vector<PeerInfo> peers, decode_table(*frame, nranks));
      return Met{std::move(peers), std::move(root)};
    }
    std::string why;
    if (root->end(&why) != Link::End::kNone)
      return Status(StatusCode::kPeerLost,
                    fmt::format("rank {} lost the rendezvous before all {} ranks had joined ({}): the process that made "
                                "the id has ended", rank, nranks, why));
    pollfd p{root->fd(), static_cast<short>(flushed ? POLLIN : POLLIN | POLLOUT), 0};
    ::poll(&p, 1, grace.slice_ms());
    RONDO_TRY(grace.check(fmt::format("rank {} waits at the rendezvous for the other {} ranks", rank, nranks - 1)));
  }
}

}  // namespace rondo
