#include "bootstrap/rendezvous.h"
#include "base/error.h"
#include "base/outcome.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>

namespace rondo {
namespace {

constexpr double kAddressS = 5;  // per address: one of several may not be reachable
constexpr double kHandshakeS = 10;
constexpr double kVerdictGraceS = 2;  // extends the deadline, because the root can report which ranks are missing
constexpr int kRetryMs = 20;
constexpr size_t kMaxTableBytes = 256 << 20;

struct Reached {
  Fd fd;
  std::unique_ptr<TlsSession> session;
};

// Tries all addresses once, on the root's host its Unix socket first. Sets *retry to true if another attempt may
// succeed.
Expected<Reached> reach_root(const IdContents& id, Rank rank, bool on_its_host, const Deadline& deadline, bool* retry) {
  Status last;
  size_t num_refused = 0;
  RONDO_TRY_ASSIGN(const Encryption encrypted, encryption());
  for (size_t i = on_its_host ? 0 : 1; i <= id.addresses.size(); ++i) {
    bool refused = false;
    auto fd = i == 0 ? connect_abstract(root_name(id.secret), deadline.at_most(kAddressS), &refused)
                     : connect_tcp(id.addresses[i - 1], id.port, deadline.at_most(kAddressS), &refused);
    const std::string name = i == 0 ? "on this host" : id.addresses[i - 1].to_string(id.port);
    if (fd.ok()) {
      auto session = authenticate_client(fd->get(), ClientHandshake(id.secret, Purpose::kRendezvous, rank, encrypted),
                                         deadline.at_most(kHandshakeS));
      if (session.ok()) return Reached{std::move(*fd), std::move(*session)};
      last = session.status();
      *retry = last.code() == StatusCode::kPeerLost || last.code() == StatusCode::kTimeout;
      last = make_error(last.code(), "rank {} at the rendezvous {}: {}", rank, name, last.message());
      if (!*retry) return last;
    } else {
      last = fd.status();
      num_refused += refused && i != 0;
    }
    if (deadline.aborted() || deadline.expired()) break;
  }
  *retry = id.derived || num_refused < id.addresses.size();
  if (*retry) return last;
  return make_error(StatusCode::kPeerLost,
                    "rank {} found no rendezvous at {}: it has served its communicator, its deadline has passed, "
                    "or the process that made the id has ended",
                    rank, id.addresses[0].to_string(id.port));
}

Expected<Reached> connect_to_root(const IdContents& id, Rank rank, bool on_its_host, const Deadline& deadline,
                                  const std::function<Status()>& interrupt) {
  for (;;) {
    if (interrupt) RONDO_TRY(interrupt());
    bool retry = true;
    auto reached = reach_root(id, rank, on_its_host, deadline, &retry);
    if (reached.ok() || !retry) return reached;
    if (const Status s = deadline.pause(kRetryMs, "connecting to the rendezvous"); !s.ok())
      return make_error(s.code(), "rank {} {}; last: {}", rank, s.message(), reached.status().message());
  }
}

//   table = ranks u32 | most_full u32 | { host number u32 } by rank | entries u32 | { rank u32 | PeerInfo } ...
Expected<Met> decode_table(const Frame& frame, int nranks, Rank rank) {
  Decoder r(frame.payload);
  Met met;
  const auto num_ranks = r.get<uint32_t>();
  const auto most_full = static_cast<int>(r.get<uint32_t>());
  std::vector<int> hosts;
  for (int i = 0; i < nranks && r.ok(); ++i) hosts.push_back(r.get<int>());
  met.peers.resize(static_cast<size_t>(nranks));
  std::vector<bool> known(met.peers.size(), false);
  bool good = num_ranks == static_cast<uint32_t>(nranks) && most_full > 0;
  for (auto left = r.get<uint32_t>(); left > 0 && good && r.ok(); --left) {
    const auto whose = r.get<uint32_t>();
    good = whose < num_ranks;
    if (!good) break;
    r(met.peers[whose]);
    known[whose] = true;
  }
  if (good && r.finished()) {
    met.plan = MeshPlan(HostLayout::of(hosts), most_full);
    for (const Rank peer : met.plan.neighbours(rank)) good = good && known[peer];
    if (good && known[rank]) return met;
  }
  return Status(StatusCode::kInternal, "the rendezvous sent a table that cannot be decoded");
}

}  // namespace

std::string root_name(const Secret& secret) {
  const Mac mac = hmac_sha256(secret, "rendezvous");
  return fmt::format("rondo-{:02x}", fmt::join(mac.begin(), mac.begin() + 16, ""));
}

std::string list_ranks(const std::vector<Rank>& ranks) {
  constexpr size_t kMaxNamed = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMaxNamed); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  if (ranks.size() > kMaxNamed) text += fmt::format(" and {} more", ranks.size() - kMaxNamed);
  return text;
}

Status refusal(const Frame& frame) {
  const auto said = decode<Status>(frame.payload);
  return said && !said->ok() ? *said : Status(StatusCode::kInternal, "the rendezvous sent a broken refusal");
}

std::shared_ptr<const std::string> refusal_payload(const Status& why) {
  return std::make_shared<const std::string>(encode_outcome(why));
}

HostLayout hosts_of(const std::vector<PeerInfo>& peers) {
  std::vector<std::string> keys;
  for (const PeerInfo& p : peers) keys.push_back(p.host);
  return HostLayout::of(keys);
}

std::vector<std::shared_ptr<const std::string>> encode_tables(const std::vector<PeerInfo>& peers, int most_full) {
  const MeshPlan plan(hosts_of(peers), most_full);
  std::vector<std::string> entries;
  for (const PeerInfo& p : peers) {
    Encoder w;
    entries.push_back(w(static_cast<uint32_t>(entries.size()), p).take());
  }
  const auto table_with = [&](const std::vector<Rank>& ranks) {
    Encoder w;
    w(plan.nranks(), most_full);
    for (Rank r = 0; r < plan.nranks(); ++r) w(plan.hosts().host(r));
    w(static_cast<uint32_t>(ranks.size()));
    for (const Rank r : ranks) w.raw(entries[r]);
    return std::make_shared<const std::string>(w.take());
  };
  std::vector<std::shared_ptr<const std::string>> tables;
  if (plan.is_full()) tables.assign(peers.size(), table_with(plan.order()));
  for (Rank r = 0; r < plan.nranks() && !plan.is_full(); ++r) {
    std::vector<Rank> ranks = plan.neighbours(r);
    ranks.push_back(r);
    tables.push_back(table_with(ranks));
  }
  return tables;
}

Expected<Met> join_rendezvous(const IdContents& id, int nranks, Rank rank, const PeerInfo& self,
                              const Deadline& deadline, const std::function<Status()>& interrupt) {
  RONDO_TRY_ASSIGN(Reached reached, connect_to_root(id, rank, id.host_hash == fnv1a(self.host), deadline, interrupt));
  auto root = std::make_unique<Link>(std::move(reached.fd), false, kMaxTableBytes, std::move(reached.session));
  Encoder join;
  join(nranks, static_cast<uint64_t>(deadline.left_s() * 1e3), static_cast<uint64_t>(deadline.seconds() * 1e3), self);
  root->queue(FrameKind::kJoin, 0, std::make_shared<const std::string>(join.take()));

  const Deadline grace = deadline.extended(kVerdictGraceS);
  for (;;) {
    const bool flushed = root->flush();
    root->drain();
    if (auto frame = root->pop()) {
      if (frame->kind == FrameKind::kRefused) return refusal(*frame);
      RONDO_TRY_ASSIGN(Met met, decode_table(*frame, nranks, rank));
      met.root = std::move(root);
      return met;
    }
    std::string why;
    if (root->end(&why) != Link::End::kNone)
      return make_error(StatusCode::kPeerLost,
                        "rank {} lost the rendezvous before all {} ranks had joined ({}): the process that made "
                        "the id has ended",
                        rank, nranks, why);
    pollfd p{root->fd(), static_cast<short>(flushed ? POLLIN : POLLIN | POLLOUT), 0};
    ::poll(&p, 1, grace.slice_ms());
    if (const Status s = interrupt ? interrupt() : Status(); !s.ok()) {  // the others are told why this rank leaves
      root->queue(FrameKind::kGaveUp, 0, refusal_payload(s));
      root->flush();
      return s;
    }
    RONDO_TRY(grace.check(fmt::format("rank {} waits at the rendezvous for the other {} ranks", rank, nranks - 1)));
  }
}

}  // namespace rondo
