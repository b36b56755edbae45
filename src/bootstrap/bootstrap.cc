// The control calls of a Bootstrap, and its detection of deaths.
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/codec.h"
#include "base/error.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/unique_id.h"
#include "config/setting_table.h"

namespace rondo {
namespace {

constexpr uint64_t kPidfdEvent = uint64_t{1} << 32;

// Returns an empty Fd if the peer's process is in another pid namespace or the kernel is older than 5.3. Then only the
// end of the link shows the peer's death.
Fd open_pidfd(int link_fd) {
  ucred who = {};
  socklen_t len = sizeof(who);
  if (::getsockopt(link_fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0 || who.pid <= 0) return Fd();
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, who.pid, 0)));
}

}  // namespace

Expected<rondo_unique_id> make_unique_id() {
  RONDO_TRY_ASSIGN(const SettingFields settings, read_process_settings());
  IdContents id;
  RONDO_TRY_ASSIGN(std::vector<IpAddress> addresses, usable_addresses(settings.socket_ifname));
  if (addresses.size() > IdContents::kMaxAddresses) addresses.resize(IdContents::kMaxAddresses);
  RONDO_TRY(random_bytes(id.secret.data(), id.secret.size()));
  RONDO_TRY_ASSIGN(const PeerInfo self, describe_self(0));
  id.host_hash = fnv1a(self.host);
  RONDO_TRY_ASSIGN(Listeners listeners, listen_tcp(addresses, 0));
  id.port = listeners.port;
  id.addresses = listeners.addresses;
  RONDO_TRY_ASSIGN(Fd local, listen_abstract(root_name(id.secret)));
  RONDO_TRY(start_rendezvous(std::move(local), std::move(listeners), id.secret, 2 * settings.init_timeout_s));
  return encode_id(id);
}

// Connects to the ranks that use the same unique id.
Status Bootstrap::meet(int nranks, const IdContents& id, const BootstrapOptions& options) {
  const Deadline deadline(options_.deadline_s, options_.abort);
  PeerInfo self;
  auto port = [&]() -> Expected<MeshPort> {
    RONDO_TRY_ASSIGN(self, describe_self(options_.pretend_host));
    if (options.greeting) self.greeting = options.greeting(rank_, nranks);
    return open_mesh_port(&self, true);
  }();
  if (!port.ok()) return make_error(port.status().code(), "rank {}: {}", rank_, port.status().message());
  port_ = std::move(*port);
  port_.set_most(kMaxPending + static_cast<size_t>(nranks));
  const auto between_looks = [&] {
    (void)port_.look();  // so that no queue is full when the peers connect
    return options.interrupt ? options.interrupt() : Status();
  };
  RONDO_TRY_ASSIGN(Met met, join_rendezvous(id, nranks, rank_, self, deadline, between_looks));
  return connect(std::move(met), id.secret, options.interrupt);
}

// Connects to the ranks at the ports in `met`.
Status Bootstrap::connect(Met met, const Secret& secret, const std::function<Status()>& interrupt) {
  const Deadline deadline(options_.deadline_s, options_.abort);
  RONDO_TRY_ASSIGN(links_, connect_mesh({rank_, &secret, &met, interrupt}, port_, deadline));
  if (met.root) {
    met.root->queue(FrameKind::kMeshed, 0, nullptr);
    met.root->flush();
  }
  peers_ = std::move(met.peers);
  plan_ = std::move(met.plan);
  secret_ = secret;
  views_.resize(peers_.size());
  others_.resize(peers_.size());
  pidfds_.resize(peers_.size());
  for (Rank peer = 0; peer < nranks(); ++peer)
    if (links_[peer] && same_host(peer) && !same_process(peer)) pidfds_[peer] = open_pidfd(links_[peer]->fd());
  RONDO_TRY(watch());
  if (plan_.is_full()) {
    port_ = {};
    return {};
  }
  if (met.root) {
    std::function<Status()> later = std::exchange(interrupt_, interrupt);
    const Status learnt = learn_of_all();
    interrupt_ = std::move(later);
    RONDO_TRY(learnt);
  }
  return start_events();
}

Bootstrap::~Bootstrap() { stop_events(); }

Status Bootstrap::watch() {
  watch_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!watch_) return Status(StatusCode::kSystem, "epoll_create1: " + errno_text(errno));
  gone_.resize(peers_.size(), false);
  for (Rank peer = 0; peer < static_cast<Rank>(peers_.size()); ++peer)
    if (links_[peer]) RONDO_TRY(watch_link(peer));
  return {};
}

Status Bootstrap::watch_link(Rank peer) {
  auto add = [this](int fd, uint32_t events, uint64_t data) -> Status {
    epoll_event event = {events, {.u64 = data}};
    if (::epoll_ctl(watch_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
    return Status(StatusCode::kSystem, "epoll_ctl: " + errno_text(errno));
  };
  RONDO_TRY(add(links_[peer]->fd(), EPOLLRDHUP | EPOLLIN, static_cast<uint64_t>(peer)));
  return pidfds_[peer] ? add(pidfds_[peer].get(), EPOLLIN, static_cast<uint64_t>(peer) | kPidfdEvent) : Status();
}

std::optional<Bootstrap::Loss> Bootstrap::find_lost() {
  if (!made_here_) return std::nullopt;
  if (const std::unique_lock turn(turn_, std::try_to_lock); turn)
    look();  // otherwise the thread that holds the turn looks
  const std::lock_guard lock(loss_mutex_);
  return loss_;
}

// Reads all links with events and returns their ranks. The caller holds the turn. Waits for at most slice_ms.
std::vector<Rank> Bootstrap::look(int slice_ms) {
  epoll_event events[64];
  const int n = ::epoll_wait(watch_.get(), events, 64, slice_ms);
  std::vector<Rank> heard;
  const std::lock_guard lock(loss_mutex_);
  for (int i = 0; i < n; ++i) {
    const auto peer = static_cast<Rank>(events[i].data.u64 & 0xffffffff);
    const bool process_ended = (events[i].data.u64 & kPidfdEvent) != 0;
    const bool ends = process_ended || (events[i].events & ~EPOLLIN) != 0;  // there may be a goodbye before the end
    links_[peer]->drain(ends ? Link::Until::kNothingIsLeft : Link::Until::kShortRead);
    judge(peer, process_ended);
    heard.push_back(peer);
  }
  send_events();
  return heard;
}

void Bootstrap::forget(Rank peer) {
  ::epoll_ctl(watch_.get(), EPOLL_CTL_DEL, links_[peer]->fd(), nullptr);
  if (pidfds_[peer]) ::epoll_ctl(watch_.get(), EPOLL_CTL_DEL, pidfds_[peer].get(), nullptr);
}

Status Bootstrap::fail(Status status) {
  // Unsent frames may refer to descriptors that their owner will now close.
  for (const auto& link : links_)
    if (link) link->drop_unsent();
  return failure_ = std::move(status);
}

// Fails the call and sends kGaveUp to all peers, so that they do not wait for this rank.
Status Bootstrap::give_up(uint32_t sequence, Status status) {
  const auto payload = refusal_payload(status);
  const Status failed = fail(std::move(status));
  send_to_all(links_, FrameKind::kGaveUp, sequence, payload);
  return failed;
}

// If `peer` has sent kGaveUp for this call, forwards it to all peers and returns its error. A full mesh needs this too:
// a rank that is already in the next call ignores `peer`'s frame but waits for this rank. Call numbers within a host
// are ignored if `peer` is on another host, which uses them for other calls.
Status Bootstrap::heard_of_giving_up(const Awaited& what, Rank peer) {
  if (what.skip_others || (what.sequence >= kFirstHostSequence && !same_host(peer))) return {};
  sort_frames(peer);
  for (const Frame& frame : others_[peer])
    if (frame.kind == FrameKind::kGaveUp && frame.sequence == what.sequence)
      return give_up(frame.sequence, refusal(frame));
  return {};
}

// Moves the frames that have arrived to views_ (for survivors.cc) and others_.
void Bootstrap::sort_frames(Rank peer) {
  while (auto frame = links_[peer]->pop())
    (frame->kind == FrameKind::kView ? views_[peer] : others_[peer]).push_back(std::move(*frame));
}

std::optional<Frame> Bootstrap::next_frame(Rank peer) {
  sort_frames(peer);
  if (others_[peer].empty()) return std::nullopt;
  Frame first = std::move(others_[peer].front());
  others_[peer].pop_front();
  return first;
}

// Takes the peer's frame if it has arrived. Returns an error if another frame has, or if the link has ended without it.
Expected<bool> Bootstrap::take_one(const Awaited& what, Rank peer, Frame* got) {
  Link& link = *links_[peer];
  std::string why;
  // Check the end before reading frames, because frames before the end are valid. A fork may keep a link open.
  const bool process_ended = pidfds_[peer] && is_gone(peer);
  if (process_ended) link.drain();
  const Link::End end = link.end(&why);
  while (auto frame = next_frame(peer)) {
    if (frame->kind == what.kind && frame->sequence == what.sequence) {
      *got = std::move(*frame);
      return true;
    }
    if (what.skip_others) continue;
    if (frame->kind == FrameKind::kGaveUp) return give_up(frame->sequence, refusal(*frame));
    return give_up(what.sequence, make_error(StatusCode::kMismatch, "rank {} is in {} #{}, but {} is in {} #{}", rank_,
                                             frame_name(what.kind), what.sequence, peer_text(peer, peers_[peer]),
                                             frame_name(frame->kind), frame->sequence));
  }
  if (end == Link::End::kNone && !process_ended) {
    if (what.gave_up && what.gave_up(peer))
      return fail(make_error(StatusCode::kPeerLost, "rank {}: {} has started the shrink again", rank_,
                             peer_text(peer, peers_[peer])));
    return false;
  }
  if (const Status s = interrupt_ ? interrupt_() : Status(); !s.ok())  // probably the reason why the peer left
    return what.skip_others ? fail(s) : give_up(what.sequence, s);
  if (!what.skip_others) {  // another rank may have seen which rank ended first, and sent kGaveUp
    for (const Rank r : what.from) {
      links_[r]->drain();
      RONDO_TRY(heard_of_giving_up(what, r));
    }
  }
  Status lost(StatusCode::kPeerLost, fmt::format("{}; rank {} was in {} #{}", first_end(peer, end, why), rank_,
                                                 frame_name(what.kind), what.sequence));
  return what.skip_others ? fail(std::move(lost)) : give_up(what.sequence, std::move(lost));
}

// Returns the text for the rank that ended first. A peer often ends because another rank ended before it, and the
// kernel reports ends in their order.
std::string Bootstrap::first_end(Rank peer, Link::End end, const std::string& why) {
  look();
  {
    const std::lock_guard lock(loss_mutex_);
    if (loss_) return loss_->how;
  }
  if (end != Link::End::kLeft) return fmt::format("{} was lost: {}", peer_text(peer, peers_[peer]), why);
  const std::lock_guard lock(loss_mutex_);
  return left_text(first_left_.value_or(peer));
}

Status Bootstrap::gather(FrameKind kind, std::string_view mine, std::vector<std::string>* all,
                         const Deadline& deadline) {
  if (mine.size() > kMaxPayloadBytes)
    return invalid_argument("all_gather of {} bytes: the bootstrap carries at most {}", mine.size(), kMaxPayloadBytes);
  const Call call(*this);
  std::vector<Frame> got;
  RONDO_TRY(exchange({kind, mine, {}, ++sequence_, deadline}, &got));
  all->clear();
  for (Frame& frame : got) all->push_back(std::move(frame.payload));
  (*all)[rank_] = std::string(mine);
  return {};
}

Status Bootstrap::all_gather_here(std::string_view mine, std::span<const int> descriptors, std::vector<FromRank>* all) {
  const Call call(*this);
  std::vector<Frame> got;
  const Deadline deadline(options_.deadline_s, options_.abort);
  RONDO_TRY(exchange({FrameKind::kHostGather, mine, descriptors, ++host_sequence_, deadline}, &got));
  all->clear();
  for (Frame& frame : got) all->push_back({std::move(frame.payload), std::move(frame.descriptors)});
  (*all)[rank_].bytes = mine;
  return {};
}

void Bootstrap::set_interrupt(std::function<Status()> interrupt) {
  const std::lock_guard lock(collective_mutex_);
  interrupt_ = std::move(interrupt);
}

Expected<std::unique_ptr<Bootstrap>> Bootstrap::join(int nranks, const rondo_unique_id& id, Rank rank,
                                                     const BootstrapOptions& options) {
  if (nranks < 1 || nranks > kMaxRanks)
    return invalid_argument("rank {} of {} ranks: nranks is {}, expected 1 to {}", rank, nranks, nranks, kMaxRanks);
  if (rank < 0 || rank >= nranks)
    return invalid_argument("rank {} of {} ranks: rank is {}, expected 0 to {}", rank, nranks, rank, nranks - 1);
  RONDO_TRY_ASSIGN(const IdContents contents, decode_id(id));
  if (options.abort != nullptr && options.abort->load(std::memory_order_acquire))  // reported before all other errors
    return make_error(StatusCode::kAborted, "rank {}: aborted before it joined the other ranks", rank);
  std::unique_ptr<Bootstrap> made(new Bootstrap(rank, options));
  RONDO_TRY(made->meet(nranks, contents, options));
  return made;
}

}  // namespace rondo
