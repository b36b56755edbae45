// The root's side of core/rendezvous.h: one thread, one poll loop, no wait on any single connection.
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <list>
#include <optional>
#include <utility>

#include "core/rendezvous.h"

namespace rondo {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPollMs = 100;
constexpr int kCrowdedPollMs = 20;
constexpr size_t kMaxJoinBytes = 64 * 1024;
constexpr auto kFarewell = std::chrono::seconds(1);  // for telling everybody of a failure

Clock::duration seconds(double s) { return std::chrono::microseconds(static_cast<int64_t>(std::clamp(s, 0.0, 1e8) * 1e6)); }

struct Connection {
  std::string address;
  Clock::time_point since = Clock::now();
  Fd fd;                          // until authenticated
  std::optional<ServerHandshake> handshake;
  std::unique_ptr<Link> link;     // since
  Rank rank = -1;
  bool joined = false;            // in the table
  bool meshed = false;
  bool told = false;              // of the failure
  bool finished = false;          // to be dropped
  int poll_fd() const { return link ? link->fd() : fd.get(); }
};

class Root {
 public:
  Root(Listeners listeners, const Secret& secret, Encryption encryption, double deadline_s)
      : listeners_(std::move(listeners)),
        secret_(secret),
        encryption_(std::move(encryption)),
        deadline_(Clock::now() + seconds(deadline_s)) {}

  void run() {
    while (!done()) {
      std::vector<pollfd> fds;
      const short listening = std::exchange(crowded_, false) ? 0 : POLLIN;
      for (const Fd& l : listeners_.sockets) fds.push_back({l.get(), listening, 0});
      const size_t num_listeners = fds.size();
      std::vector<Connection*> polled;
      for (Connection& c : connections_) {
        fds.push_back({c.poll_fd(), POLLIN, 0});
        polled.push_back(&c);
      }
      ::poll(fds.data(), fds.size(), listening != 0 ? kPollMs : kCrowdedPollMs);
      for (size_t i = 0; i < polled.size(); ++i)
        if (fds[num_listeners + i].revents != 0) serve(*polled[i]);
      for (Connection& c : connections_)
        if (c.link) c.link->flush();
      drop_the_finished();
      for (size_t i = 0; i < num_listeners && i < listeners_.sockets.size(); ++i)
        if (fds[i].revents != 0) accept_from(listeners_.sockets[i].get());
      watch_the_clock();
    }
  }

 private:
  bool done() const {
    if (failed_) return Clock::now() >= deadline_ || (nranks_ > 0 && num_told_ >= nranks_ && all_flushed());
    return (table_sent_ && connections_.empty()) || Clock::now() >= deadline_ + kFarewell;
  }
  bool all_flushed() const {
    return std::all_of(connections_.begin(), connections_.end(),
                       [](const Connection& c) { return !c.link || c.link->flush(); });
  }

  // Sets crowded_ when a waiting connection cannot be taken now: the next poll must not return because of it.
  void accept_from(int listener) {
    for (;;) {
      if (num_strangers() >= kMaxStrangers + num_awaited() && !evict_oldest_stranger()) {
        crowded_ = true;
        return;
      }
      Connection c;
      c.fd = accept_one(listener, &c.address);
      if (!c.fd) {
        const bool out_of_descriptors = errno == EMFILE || errno == ENFILE;
        if (out_of_descriptors && evict_oldest_stranger()) continue;
        crowded_ = out_of_descriptors;
        return;
      }
      c.handshake.emplace(secret_, Purpose::kRendezvous, encryption_);
      connections_.push_back(std::move(c));
    }
  }
  size_t num_strangers() const {
    return static_cast<size_t>(
        std::count_if(connections_.begin(), connections_.end(), [](const Connection& c) { return !c.joined; }));
  }
  // Ranks that may all come at once and need not go for one another; unknown before the first has joined.
  size_t num_awaited() const { return static_cast<size_t>(std::max(0, nranks_ - num_present_)); }
  // Honest joiners authenticate within milliseconds, so the oldest of a crowd is the least likely to be one.
  bool evict_oldest_stranger() {
    for (auto c = connections_.begin(); c != connections_.end(); ++c) {
      if (c->joined) continue;
      if (Clock::now() - c->since < kCrowdedPatience) return false;
      connections_.erase(c);
      return true;
    }
    return false;
  }

  void serve(Connection& c) {
    if (!c.link) {
      const auto state = c.handshake->advance(c.fd.get());
      if (state == ServerHandshake::State::kFailed) {
        if (c.handshake->was_wrong_secret() && num_refusals_++ < kMaxRefusalsLogged)
          std::fprintf(stderr, "rondo: rendezvous refused %s: it %s%s\n", c.address.c_str(), c.handshake->why().c_str(),
                       num_refusals_ == kMaxRefusalsLogged ? "; further refusals are not shown" : "");
        c.finished = true;
      }
      if (state != ServerHandshake::State::kAccepted) return;
      c.rank = c.handshake->rank();
      c.link = std::make_unique<Link>(std::move(c.fd), false, kMaxJoinBytes, c.handshake->take_session());
    }
    c.link->drain();
    while (auto frame = c.link->pop()) {
      if (frame->kind == FrameKind::kJoin && !c.joined) admit(c, *frame);
      else if (frame->kind == FrameKind::kMeshed) c.meshed = true;
    }
    std::string why;
    if (c.link->end(&why) == Link::End::kNone) return;
    c.finished = true;
    if (c.joined && !c.meshed && !c.told)
      fail(StatusCode::kPeerLost, fmt::format("{} left the rendezvous before all ranks were connected ({})",
                                              peer_text(c.rank, peers_[c.rank]), why));
  }

  void admit(Connection& c, const Frame& join) {
    wire::Reader r(join.payload);
    const auto nranks = static_cast<int>(r.get<uint32_t>());
    const auto deadline = Clock::now() + seconds(static_cast<double>(r.get<uint64_t>()) * 1e-3);
    const double deadline_text_s = static_cast<double>(r.get<uint64_t>()) * 1e-3;  // of which some has passed already
    PeerInfo info = decode_peer(&r);
    if (!r.finished() || nranks < 1 || c.rank < 0 || c.rank >= nranks) {
      c.finished = true;
      return;
    }
    if (failed_) return tell(c);
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
    if (nranks != nranks_) {
      newcomer_ = &c;
      return fail(StatusCode::kMismatch, fmt::format("{} was started with nranks = {}, but {} with nranks = {}",
                                                     peer_text(c.rank, info), nranks, peer_text(first_, peers_[first_]),
                                                     nranks_));
    }
    if (present_[c.rank]) {
      newcomer_ = &c;
      return fail(StatusCode::kMismatch,
                  fmt::format("rank {} of {} came twice: {} and {}", c.rank, nranks_,
                              peer_text(c.rank, peers_[c.rank]), peer_text(c.rank, info)));
    }
    peers_[c.rank] = std::move(info);
    present_[c.rank] = true;
    c.joined = true;
    if (++num_present_ == nranks_) send_table();
  }

  void send_table() {
    close_listeners();  // before anyone can have finished, so that a later rendezvous on this port meets nobody here
    wire::Writer w;
    for (const PeerInfo& p : peers_) encode(p, &w);
    const auto table = std::make_shared<const std::string>(w.take());
    for (Connection& c : connections_) {
      if (c.joined) c.link->queue(FrameKind::kTable, 0, table);
      else c.finished = true;
    }
    table_sent_ = true;
  }

  void fail(StatusCode code, std::string message) {
    if (failed_) return;
    failed_ = true;
    refusal_ = refusal_payload(Status(code, std::move(message)));
    for (Connection& c : connections_)
      if (c.joined || &c == newcomer_) tell(c);
    // Ranks that come later hear the same story for a while. After the table nobody new can come.
    if (table_sent_) deadline_ = std::min(deadline_, Clock::now() + kFarewell);
  }
  void tell(Connection& c) {
    if (c.told || c.finished || !c.link) return;
    c.told = true;
    ++num_told_;
    c.link->queue(FrameKind::kRefused, 0, refusal_);
  }

  void drop_the_finished() {
    connections_.remove_if([](const Connection& c) { return c.finished; });
  }

  void watch_the_clock() {
    const auto now = Clock::now();
    for (Connection& c : connections_)
      if (!c.joined && !c.told && now - c.since > kStrangerPatience) c.finished = true;
    drop_the_finished();
    if (now < deadline_ || failed_ || nranks_ == 0) return;
    std::vector<Rank> missing;
    for (Rank r = 0; r < nranks_; ++r)
      if (!present_[r]) missing.push_back(r);
    for (const Connection& c : connections_)
      if (table_sent_ && !c.meshed) missing.push_back(c.rank);
    fail(StatusCode::kTimeout,
         fmt::format("{} {} not {} after {:g} s ({} of {} ranks have)", list_ranks(missing),
                     missing.size() == 1 ? "has" : "have", table_sent_ ? "connected to all others" : "joined",
                     deadline_text_s_, nranks_ - static_cast<int>(missing.size()), nranks_));
    deadline_ = now + kFarewell;
    close_listeners();
    nranks_ = num_told_;  // whoever is here has been told: nothing more to wait for but the flush
  }

  void close_listeners() {
    for (Fd& l : listeners_.sockets) l.shut();
    listeners_.sockets.clear();
  }

  Listeners listeners_;
  const Secret secret_;
  const Encryption encryption_;
  Clock::time_point deadline_;
  double deadline_text_s_ = 0;
  std::list<Connection> connections_;
  int nranks_ = 0;  // 0: nobody has joined
  Rank first_ = -1;
  std::vector<PeerInfo> peers_;
  std::vector<bool> present_;
  int num_present_ = 0;
  bool table_sent_ = false;
  bool crowded_ = false;
  bool failed_ = false;
  int num_told_ = 0;
  int num_refusals_ = 0;
  Connection* newcomer_ = nullptr;  // caused the failure, is not in the table, and must hear of it too
  std::shared_ptr<const std::string> refusal_;
};

void* run_root(void* root) {
  const std::unique_ptr<Root> owned(static_cast<Root*>(root));
  owned->run();
  return nullptr;
}

}  // namespace

Status start_rendezvous(Listeners listeners, const Secret& secret, double deadline_s) {
  RONDO_TRY_ASSIGN(Encryption encrypted, encryption());
  auto root = std::make_unique<Root>(std::move(listeners), secret, std::move(encrypted), deadline_s);
  // The application's signal handlers must not run on this thread.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const int error = ::pthread_create(&thread, &attributes, run_root, root.get());
  ::pthread_attr_destroy(&attributes);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) return Status(StatusCode::kSystem, "start the rendezvous thread: " + errno_text(error));
  root.release();
  return {};
}

}  // namespace rondo
