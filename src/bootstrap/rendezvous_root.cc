// The root's side of bootstrap/rendezvous.h: one thread with one loop, which never waits for a single connection. The
// cost of a wake-up does not grow with the number of waiting ranks.
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <utility>

#include "base/thread.h"
#include "bootstrap/acceptor.h"
#include "bootstrap/rendezvous.h"
#include "config/setting_table.h"

namespace rondo {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPollMs = 100;
constexpr int kNoDescriptorPauseMs = 20;
constexpr int kUnsentPollMs = 2;  // while a socket's buffer is full
constexpr size_t kMaxJoinBytes = 256 * 1024;
constexpr auto kFarewell = std::chrono::seconds(1);  // to send a failure to all ranks

Clock::duration seconds(double s) { return std::chrono::microseconds(static_cast<int64_t>(std::clamp(s, 0.0, 1e8) * 1e6)); }

struct Connection {  // of a joiner that has proved the secret
  Rank rank = -1;
  std::unique_ptr<Link> link = {};
  bool joined = false;  // its PeerInfo is in peers_
  bool meshed = false;
  bool told = false;      // the failure was sent to it
  bool finished = false;  // will be dropped
};

class Root {
 public:
  Root(const Secret& secret, Encryption encryption, double deadline_s, int most_full)
      : secret_(secret),
        encryption_(std::move(encryption)),
        most_full_(most_full),
        deadline_(Clock::now() + seconds(deadline_s)) {}

  /// Call before run().
  Status open(Fd local, Listeners listeners) {
    events_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    if (!events_) return Status(StatusCode::kSystem, "epoll_create1: " + errno_text(errno));
    RONDO_TRY(acceptor_.open(std::move(local), std::move(listeners.sockets)));
    if (!watch(acceptor_.event_fd(), nullptr)) return Status(StatusCode::kSystem, "epoll_ctl: " + errno_text(errno));
    acceptor_.serve([this](const Arrival&) { return ServerHandshake(secret_, Purpose::kRendezvous, encryption_); },
                    [this](Arrival& a, bool accepted) { come(a, accepted); }, false);
    return {};
  }

  void run() {
    while (!done()) {
      epoll_event events[64];
      const int n = ::epoll_wait(events_.get(), events, std::size(events), unsent_.empty() ? kPollMs : kUnsentPollMs);
      for (int i = 0; i < n; ++i)
        if (events[i].data.ptr != nullptr) serve(*static_cast<Connection*>(events[i].data.ptr));
      std::erase_if(unsent_, [](Connection* c) { return c->link->flush(); });
      drop_the_finished();
      // All ranks may connect at once and must not displace each other. Their number is unknown until the first joins.
      acceptor_.set_most(kMaxPending + static_cast<size_t>(std::max(0, nranks_ - num_present_)));
      if (acceptor_.is_open() && !acceptor_.look().ok())
        ::poll(nullptr, 0, kNoDescriptorPauseMs);  // no descriptor is free
      for (Connection* c : std::exchange(come_, {})) serve(*c);
      drop_the_finished();
      watch_the_clock();
    }
  }

 private:
  using Arrival = Acceptor<ServerHandshake>::Connection;
  bool done() const {
    if (failed_) return Clock::now() >= deadline_ || (nranks_ > 0 && num_told_ >= nranks_ && unsent_.empty());
    return (table_sent_ && connections_.empty()) || Clock::now() >= deadline_ + kFarewell;
  }
  bool watch(int fd, Connection* what) {  // nullptr for the acceptor
    epoll_event event = {EPOLLIN, {.ptr = what}};
    return ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }
  // If a forked child has a copy of the descriptor, the kernel would report events for it even after close().
  void unwatch(int fd) { ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, fd, nullptr); }
  void send(Connection& c, FrameKind kind, std::shared_ptr<const std::string> payload) {
    c.link->queue(kind, 0, std::move(payload));
    unsent_.push_back(&c);
  }
  void finish(Connection& c) {
    c.finished = true;
    some_finished_ = true;
  }

  void come(Arrival& a, bool accepted) {
    if (a.handshake->was_wrong_secret() && num_refusals_++ < kMaxRefusalsLogged)
      std::fprintf(stderr, "rondo: rendezvous refused %s: it %s%s\n", a.address.c_str(),
                   std::string(a.handshake->status().message()).c_str(),
                   num_refusals_ == kMaxRefusalsLogged ? "; further refusals are not shown" : "");
    if (a.handshake->encryption_differs()) fail_for_encryption(a);
    if (!accepted) return;
    Connection& c = connections_.emplace_back();
    c.rank = a.handshake->rank();
    c.link = std::make_unique<Link>(std::move(a.fd), false, kMaxJoinBytes, a.handshake->take_session());
    if (!watch(c.link->fd(), &c)) finish(c);
    come_.push_back(&c);
  }

  void serve(Connection& c) {
    if (c.finished) return;
    c.link->drain();
    while (auto frame = c.link->pop()) {
      if (frame->kind == FrameKind::kJoin && !c.joined) admit(c, *frame);
      else if (frame->kind == FrameKind::kMeshed) c.meshed = true;
      else if (frame->kind == FrameKind::kGaveUp && c.joined) fail(refusal(*frame));
    }
    std::string why;
    if (c.link->end(&why) == Link::End::kNone) return;
    finish(c);
    if (c.joined && !c.meshed && !c.told)
      fail(StatusCode::kPeerLost, fmt::format("{} left the rendezvous before all ranks were connected ({})",
                                              peer_text(c.rank, peers_[c.rank]), why));
  }

  // Fails all ranks if one has another encryption setting. That rank has got the error in the handshake; the others
  // would wait for it.
  void fail_for_encryption(const Arrival& a) {
    fail(StatusCode::kMismatch,
         fmt::format("rank {} at {} {}, and the process that made the id (pid {}) {}: set RONDO_ENCRYPT to the same "
                     "value on all ranks",
                     a.handshake->rank(), a.address, encryption_.on ? "does not encrypt" : "encrypts", ::getpid(),
                     encryption_.on ? "does" : "does not"));
    ++num_told_;
  }

  void admit(Connection& c, const Frame& join) {
    Decoder r(join.payload);
    const auto nranks = static_cast<int>(r.get<uint32_t>());
    const auto deadline = Clock::now() + seconds(static_cast<double>(r.get<uint64_t>()) * 1e-3);
    const double deadline_text_s = static_cast<double>(r.get<uint64_t>()) * 1e-3;  // the whole deadline, for messages
    PeerInfo info = r.get<PeerInfo>();
    if (!r.finished() || nranks < 1 || c.rank < 0 || c.rank >= nranks) {
      finish(c);
      return;
    }
    if (failed_) {
      if (nranks_ == 0) nranks_ = std::min(nranks, kMaxRanks);  // the number of ranks that must get the error
      return tell(c);
    }
    newcomer_ = &c;
    if (nranks > kMaxRanks)  // checked before allocating memory of that size
      return fail(StatusCode::kInvalidArgument,
                  fmt::format("{} was started with nranks = {}: a communicator has at most {} ranks",
                              peer_text(c.rank, info), nranks, kMaxRanks));
    if (nranks_ == 0) {
      nranks_ = nranks;
      first_ = c.rank;
      peers_.resize(nranks);
      present_.resize(nranks, false);
    }
    if (num_present_ == 0 || deadline < deadline_) {
      deadline_ = deadline;
      deadline_text_s_ = deadline_text_s;
    }
    if (nranks != nranks_)
      return fail(StatusCode::kMismatch, fmt::format("{} was started with nranks = {}, but {} with nranks = {}",
                                                     peer_text(c.rank, info), nranks, peer_text(first_, peers_[first_]),
                                                     nranks_));
    if (present_[c.rank])
      return fail(StatusCode::kMismatch, fmt::format("rank {} of {} joined twice: {} and {}", c.rank, nranks_,
                                                     peer_text(c.rank, peers_[c.rank]), peer_text(c.rank, info)));
    peers_[c.rank] = std::move(info);
    present_[c.rank] = true;
    c.joined = true;
    newcomer_ = nullptr;
    if (++num_present_ == nranks_) send_table();
  }

  void send_table() {
    close_listeners();  // before any rank can finish, so that a later rendezvous can use this port
    const auto tables = encode_tables(peers_, most_full_);
    for (Connection& c : connections_) {
      if (c.joined) send(c, FrameKind::kTable, tables[c.rank]);
      else finish(c);
    }
    table_sent_ = true;
  }

  void fail(StatusCode code, std::string message) { fail(Status(code, std::move(message))); }
  void fail(const Status& why) {
    if (failed_) return;
    failed_ = true;
    refusal_ = refusal_payload(why);
    for (Connection& c : connections_)
      if (c.joined || &c == newcomer_) tell(c);
    // Ranks that join later get the same error until the deadline. After the table no rank can join.
    if (table_sent_) deadline_ = std::min(deadline_, Clock::now() + kFarewell);
  }
  void tell(Connection& c) {
    if (c.told || c.finished || !c.link) return;
    c.told = true;
    ++num_told_;
    send(c, FrameKind::kRefused, refusal_);
  }

  void drop_the_finished() {
    if (!std::exchange(some_finished_, false)) return;
    std::erase_if(unsent_, [](const Connection* c) { return c->finished; });
    connections_.remove_if([this](const Connection& c) {
      if (c.finished) unwatch(c.link->fd());
      return c.finished;
    });
  }

  void watch_the_clock() {
    const auto now = Clock::now();
    if (now < deadline_ || failed_ || nranks_ == 0) return;
    std::vector<Rank> missing;
    for (Rank r = 0; r < nranks_; ++r)
      if (!present_[r]) missing.push_back(r);
    for (const Connection& c : connections_)
      if (table_sent_ && !c.meshed) missing.push_back(c.rank);
    fail(StatusCode::kTimeout,
         fmt::format("{} {} not {} after {:g} s ({}; {} of {} ranks have)", list_ranks(missing),
                     missing.size() == 1 ? "has" : "have", table_sent_ ? "connected to all others" : "joined",
                     deadline_text_s_, kInitDeadline, nranks_ - static_cast<int>(missing.size()), nranks_));
    deadline_ = now + kFarewell;
    close_listeners();
    nranks_ = num_told_;  // all present ranks have got the error: only wait until it is flushed
  }

  void close_listeners() {
    if (acceptor_.is_open()) unwatch(acceptor_.event_fd());
    acceptor_.close();
  }

  const Secret secret_;
  const Encryption encryption_;
  const int most_full_;
  Clock::time_point deadline_;
  double deadline_text_s_ = 0;
  Fd events_;  // epoll: listeners and connections
  Acceptor<ServerHandshake> acceptor_;
  std::list<Connection> connections_;
  std::vector<Connection*> come_;    // not served yet
  std::vector<Connection*> unsent_;  // with frames that are not flushed
  bool some_finished_ = false;
  int nranks_ = 0;  // 0: no rank has joined
  Rank first_ = -1;
  std::vector<PeerInfo> peers_;
  std::vector<bool> present_;
  int num_present_ = 0;
  bool table_sent_ = false;
  bool failed_ = false;
  int num_told_ = 0;
  int num_refusals_ = 0;
  Connection* newcomer_ = nullptr;  // caused the failure and has not joined; must get the error too
  std::shared_ptr<const std::string> refusal_;
};

}  // namespace

Status start_rendezvous(Fd local, Listeners listeners, const Secret& secret, double deadline_s) {
  RONDO_TRY_ASSIGN(Encryption encrypted, encryption());
  const char* tested = std::getenv("RONDO_TEST_FULL_MESH");  // for grids of few ranks
  const int most_full = tested != nullptr ? std::max(1, std::atoi(tested)) : kMostFullMesh;
  // The kernel does not report a connection without data for a second.
  const int silent_s = 1;
  for (const Fd& l : listeners.sockets)
    ::setsockopt(l.get(), IPPROTO_TCP, TCP_DEFER_ACCEPT, &silent_s, sizeof(silent_s));
  const auto root = std::make_shared<Root>(secret, std::move(encrypted), deadline_s, most_full);
  RONDO_TRY(root->open(std::move(local), std::move(listeners)));
  const NoSignals inherited;
  Thread thread;
  RONDO_TRY(thread.start("the rendezvous thread", [root] { root->run(); }));
  thread.detach();
  return {};
}

}  // namespace rondo
