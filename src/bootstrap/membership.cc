// Forwards membership events to ranks that cannot see them. If the mesh is not full, a rank sees only its neighbours
// leave or die. Therefore ranks forward these events:
//
//   lost   a flood: a rank that learns of a loss sends it once to all its neighbours
//   left   two steps: each neighbour of the leaving rank sends the event to some of its own neighbours, so that every
//          rank gets it once. In the grid of bootstrap/mesh_plan.h, X leaves:
//
//             G --- T  .         F (X's row, T's column) tells T. If there is no F, or F has left or died, G
//             |     |  .         (X's column, T's row) tells T. If both are gone, T gets nothing, but it has seen both
//             X --- F  .         end. If F leaves at the same moment as X, T gets nothing either.
//
//   aborted, disagreement   floods of announcements: a rank forwards an announcement if it is the first of its topic,
//          or if its call is earlier than those of all announcements so far
//   given up   (kGaveUp, bootstrap.cc) a rank that learns that its control call has failed sends it once to all its
//          neighbours
//
//   membership events = { what u8 | rank u32 | place u64 | text str } ...
//
// Between control calls a thread forwards the events, so that this also works while the rank computes. It sleeps until
// one arrives.
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "bootstrap/bootstrap.h"

namespace rondo {
namespace {

constexpr uint8_t kLost = 1, kLeft = 2, kAborted = 3, kDisagreement = 4;
constexpr int kUnsentMs = 20;  // before another attempt if a neighbour's socket is full

}  // namespace

void Bootstrap::tell(Rank to, uint8_t what, const Gone& gone) {
  const auto& link = links_[to];
  if (leaving_ || !link || gone_[to]) return;
  outgoing_events_[to](what, gone.rank, gone.place, gone.text);
}

// Sends all pending events of each neighbour in one frame.
void Bootstrap::send_events() {
  for (auto& [to, text] : std::exchange(outgoing_events_, {})) {
    links_[to]->queue(FrameKind::kEvents, 0, std::make_shared<const std::string>(text.take()));
    unsent_events_.push_back(to);
  }
  std::erase_if(unsent_events_, [this](Rank r) { return links_[r]->flush(); });
  if (!unsent_events_.empty()) wake_events();
}

void Bootstrap::note_lost(const Gone& what, Rank from) {
  if (gone_[what.rank]) return;
  gone_[what.rank] = true;
  if (!loss_) loss_ = Loss{what.rank, what.text};  // only the first is reported
  if (plan_.is_full()) return;                     // every rank sees it itself
  for (Rank r = 0; r < static_cast<Rank>(links_.size()); ++r)
    if (r != from && r != what.rank) tell(r, kLost, what);
}

void Bootstrap::note_announced(Topic topic, const Gone& what, Rank from) {
  auto& known = announced_[static_cast<size_t>(topic)];
  if (known && known->place <= what.place) return;
  known = Announcement{what.rank, what.place, what.text};
  for (Rank r = 0; r < static_cast<Rank>(links_.size()); ++r)
    if (r != from && r != what.rank) tell(r, topic == Topic::kAbort ? kAborted : kDisagreement, what);
}

void Bootstrap::announce(Topic topic, uint64_t place, std::string text) {
  const std::lock_guard lock(loss_mutex_);
  note_announced(topic, {rank_, std::move(text), place}, -1);
  send_events();
}

std::optional<Bootstrap::Announcement> Bootstrap::announced(Topic topic) {
  const std::lock_guard lock(loss_mutex_);
  return announced_[static_cast<size_t>(topic)];
}

// from: the neighbour that sent the event; -1 if this rank has a link to the rank that left.
void Bootstrap::note_left(const Gone& what, Rank from) {
  if (gone_[what.rank]) return;
  gone_[what.rank] = true;
  if (!first_left_) first_left_ = what.rank;
  if (from >= 0) parted_[what.rank] = what.text;
  else forward_leaving(what);
}

void Bootstrap::forward_leaving(const Gone& what) {
  const Rank x = what.rank;
  if (!plan_.linked(x, rank_)) return;  // a link that is not in the plan: x's neighbours in the plan forward it
  const bool same_row = plan_.corner(x, rank_) == rank_, same_column = plan_.corner(rank_, x) == rank_;
  for (const Rank t : plan_.neighbours(rank_)) {
    if (t == x || plan_.linked(t, x)) continue;
    const Rank f = plan_.corner(x, t);  // in x's row and t's column
    if (same_row && f == rank_) tell(t, kLeft, what);
    if (same_column && plan_.corner(t, x) == rank_ && (f < 0 || gone_[f])) tell(t, kLeft, what);
  }
}

// Returns the contents of the peer's goodbye. The caller holds loss_mutex_.
std::optional<Bootstrap::Goodbye> Bootstrap::goodbye_of(Rank peer) {
  const auto parted = parted_.find(peer);
  if (links_[peer] ? links_[peer]->end(nullptr) != Link::End::kLeft : parted == parted_.end()) return std::nullopt;
  const std::string bytes = links_[peer] ? links_[peer]->note() : parted->second;
  Decoder r(bytes);
  Goodbye said;
  r(said.cause, said.note);
  return said;
}

std::optional<std::string> Bootstrap::parting_note(Rank peer) {
  if (const std::unique_lock turn(turn_, std::try_to_lock); turn) look();
  const std::lock_guard lock(loss_mutex_);
  auto said = goodbye_of(peer);
  return said ? std::optional(std::move(said->note)) : std::nullopt;
}

// The caller holds loss_mutex_.
std::string Bootstrap::left_text(Rank peer) {
  const auto said = goodbye_of(peer);
  return peer_text(peer, peers_[peer]) + " left the communicator" +
         (said && !said->cause.empty() ? fmt::format(" after this failure: {}", said->cause) : "");
}

// Stops the thread first, because it must not write after the goodbyes.
void Bootstrap::say_goodbye(const Status& cause) {
  if (!made_here_) return;  // another thread may have held a lock
  {
    const Call call(*this);
    look();
    const std::lock_guard lock(loss_mutex_);
    leaving_ = true;
  }
  stop_events();
  const Call call(*this);
  if (failure_.ok()) failure_ = Status(StatusCode::kInvalidArgument, "this rank has left the communicator");
  port_.close();
  Encoder said;
  said(cause.message(), note_);
  for (const auto& link : links_)
    if (link) link->say_goodbye(std::string(said.bytes()));
}

// Handles the events that have arrived from a neighbour.
void Bootstrap::take_events(Rank from) {
  while (const auto frame = links_[from]->pop_events()) {
    Decoder r(frame->payload);
    while (r.ok() && !r.finished()) {
      const auto what = r.get<uint8_t>();
      Gone gone{};
      r(gone.rank, gone.place, gone.text);
      if (!r.ok() || gone.rank < 0 || gone.rank >= nranks()) break;
      if (gone.rank == rank_) continue;
      if (what == kLost) note_lost(gone, from);
      if (what == kAborted) note_announced(Topic::kAbort, gone, from);
      if (what == kDisagreement) note_announced(Topic::kDisagreement, gone, from);
      if (what == kLeft && !links_[gone.rank]) note_left(gone, from);
    }
  }
}

// Handles the events of a neighbour, and its end, after its link has been read.
void Bootstrap::judge(Rank peer, bool process_ended) {
  take_events(peer);
  std::string why;
  const Link::End end = links_[peer]->end(&why);
  if (end == Link::End::kNone && !process_ended) return;
  forget(peer);
  if (end == Link::End::kLeft) return note_left({peer, links_[peer]->note()}, -1);
  note_lost({peer, fmt::format("{} was lost: {}", peer_text(peer, peers_[peer]),
                               process_ended ? "its process has ended"
                                             : why + " without a goodbye, so its process died or gave up")},
            -1);
}

// Gathers every rank's PeerInfo. The rendezvous sends a rank only those of its neighbours.
Status Bootstrap::learn_of_all() {
  std::vector<std::string> all;
  RONDO_TRY(gather(FrameKind::kGather, encode(peers_[rank_]), &all));
  for (size_t r = 0; r < all.size(); ++r) {
    auto peer = decode<PeerInfo>(all[r]);
    if (!peer) return make_error(StatusCode::kMismatch, "rank {}: rank {} runs another version of rondo", rank_, r);
    peers_[r] = std::move(*peer);
  }
  return {};
}

Status Bootstrap::start_events() {
  events_wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!events_wake_) return Status(StatusCode::kSystem, "eventfd: " + errno_text(errno));
  const auto clear_wake = [this] {
    uint64_t times;
    (void)!::read(events_wake_.get(), &times, sizeof times);
  };
  const auto loop = [this, clear_wake] {
    pollfd fds[2] = {{watch_.get(), POLLIN, 0}, {events_wake_.get(), POLLIN, 0}};
    for (bool unsent = false; !events_stops_;) {
      ::poll(fds, 2, unsent ? kUnsentMs : -1);
      clear_wake();
      if (events_stops_) break;
      const std::lock_guard turn(turn_);
      look();
      const std::lock_guard lock(loss_mutex_);
      unsent = !unsent_events_.empty();
      if (unsent) clear_wake();  // by send_events() in this thread: otherwise the next wait would end at once
    }
  };
  const NoSignals inherited;
  return events_thread_.start("the thread that forwards membership events", loop);
}

void Bootstrap::wake_events() {
  const uint64_t one = 1;
  if (events_wake_) (void)!::write(events_wake_.get(), &one, sizeof one);
}

// The caller must not hold the turn, because the thread may wait for it.
void Bootstrap::stop_events() {
  if (!events_thread_.joinable()) return;
  events_stops_ = true;
  wake_events();
  events_thread_.join();
}

}  // namespace rondo
