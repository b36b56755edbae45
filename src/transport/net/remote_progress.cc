// Moves the messages of a RemoteTransport: the driver, the poller, and a departing rank.
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/no_cancel.h"
#include "transport/net/remote.h"

namespace rondo::net {
namespace {

constexpr uint64_t kLeaveNs = 5000 * kMs;     // for the peers to get everything from a departing rank
constexpr uint64_t kLastWordsNs = 200 * kMs;  // for an abort to be sent
constexpr uint32_t kIdlePasses = 1024;        // then the peers get credits for all messages read
constexpr int kMovesAtOnce = 64;
constexpr int kGiveWayMs = 2;  // interval of the poller's checks for a driver
// While devices may post: number of looks without a pause after the last message, and the pause between later ones.
constexpr int kIdleLooks = 2000;
constexpr auto kNap = std::chrono::microseconds(20);

}  // namespace

bool RemoteTransport::carry() {
  bool any = fifos_->carry(*rails_);
  // A rank that gives up sets all flags to release its streams; these flags announce no data.
  if (aborted_by_.load(std::memory_order_acquire) < 0) any |= slots_->carry(*rails_);
  return any;
}

bool RemoteTransport::move() {
  bool moved = carry();
  moved |= rails_->progress();
  moved |= answer_leavers();
  if (std::exchange(abort_untold_, false)) tell_abort();
  if (moved) idle_passes_ = 0;
  else if (++idle_passes_ % kIdlePasses == 0) moved = fifos_->send_credits(*rails_, RemoteFifos::Credits::kAll);
  return moved;
}

bool RemoteTransport::progress() {
  if (!driven_.load(std::memory_order_relaxed)) driven_.store(true, std::memory_order_relaxed);
  passes_.fetch_add(1, std::memory_order_relaxed);
  const NoCancel no_cancel;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && move();
}

void RemoteTransport::rest() {
  const NoCancel no_cancel;
  driven_.store(false, std::memory_order_relaxed);
  bool something_left = true;
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) {
    carry();
    rails_->push();
    answer_leavers();
    if (std::exchange(abort_untold_, false)) tell_abort();
    // The poller looks again by itself, unless it waits for the network, which does not report bytes that were already
    // read.
    if (listens_ && rails_->has_unread()) wake_poller();
    something_left = rails_->is_pending() || fifos_->has_unsent();
  }
  if (something_left) wake_poller();
}

ReceiveTarget RemoteTransport::place(const Header& header, const HeaderLine& line, size_t bytes, PostedReceiveUse use) {
  const auto at =
      header.kind == MessageKind::kSlot ? slots_->place(header, bytes) : fifos_->place(header, line, bytes, use);
  if (at.ok()) return *at;
  fail_here(at.status());
  return {};
}

// An unreadable message: this rank aborts, and the others get the reason.
void RemoteTransport::fail_here(const Status& why) {
  if (aborted_by_ >= 0) return;
  take_abort(rank_, std::string(why.message()));
  abort_untold_ = true;
  ring(*bell(rank_));
}

void RemoteTransport::arrived(const Header& header, const HeaderLine* line, const std::byte* data, size_t bytes) {
  Remote& remote = *remotes_[static_cast<size_t>(header.from)];
  Status s;
  switch (header.kind) {
    case MessageKind::kLines:
    case MessageKind::kData: remote.heard.store(true, std::memory_order_release); [[fallthrough]];
    case MessageKind::kCredit: s = fifos_->arrived(header, line, data, bytes); break;
    case MessageKind::kAbort: take_abort(header.from, std::string(reinterpret_cast<const char*>(data), bytes)); break;
    case MessageKind::kLeaving:
      if (!note_end(header.from, {reinterpret_cast<const char*>(data), bytes})) s = malformed(rank_, header, bytes);
      remote.will_have_sent = header.step;
      remote.leaving = true;
      break;
    case MessageKind::kLeft: remote.has_all = true; break;
    case MessageKind::kPagesAsked: {
      const std::string both = encode_pages(*page(rank_), *pair_page(rank_));
      rails_->send_copy(header.from, {.kind = MessageKind::kPages}, both.data(), both.size());
      break;
    }
    case MessageKind::kOpened: ready_readers_.insert(pack(key_of(header, rank_, header.from), header.from)); break;
    case MessageKind::kSlot: remote.heard.store(true, std::memory_order_release); [[fallthrough]];
    case MessageKind::kSlotEmpty: s = slots_->arrived(header); break;
    case MessageKind::kPages:
      if (remote.mirror.store({reinterpret_cast<const char*>(data), bytes}, index_here(header.from) >= 0))
        remote.pages_came_ns = monotonic_ns();
      else s = malformed(rank_, header, bytes);
      break;
    default: s = malformed(rank_, header, bytes);
  }
  if (!s.ok()) fail_here(s);
  ring(*bell(rank_));
}

// Answers a departing rank when all its messages have arrived; from then on it counts as departed.
bool RemoteTransport::answer_leavers() {
  bool any = false;
  for (Rank r = 0; r < nranks_; ++r) {
    Remote* remote = remotes_[static_cast<size_t>(r)].get();
    if (r == rank_ || !remote->leaving || fifos_->received(r) < remote->will_have_sent) continue;
    remote->leaving = false;
    remote->departed.store(true, std::memory_order_release);
    rails_->send_copy(r, {.kind = MessageKind::kLeft}, nullptr, 0);
    any = true;
  }
  return any;
}

// Waits until peers that exchanged messages with this rank have all that it sent. After an abort, it waits only until
// the abort is sent.
void RemoteTransport::leave() {
  const uint64_t since = monotonic_ns();
  const bool aborted = aborted_by_ >= 0;
  std::vector<Rank> waiting;
  PartingNote note;
  {
    StatusPage& mine = *page(rank_);
    const std::lock_guard lock(mutex_);
    note.posted = mine.last_posted();
    note.finished = mine.last_finished();
    note.aborted_by = aborted_by_;
    note.reason = reason_.substr(0, PartingNote::kMostTextBytes);
    if (disagreement_) {
      note.differ_by = disagreement_->by;
      note.differ_place = disagreement_->place;
      note.difference = disagreement_->text.substr(0, PartingNote::kMostTextBytes);
    }
    if (!failure_.ok())
      note.failure = {failure_.code(), std::string(failure_.message().substr(0, PartingNote::kMostFailureBytes))};
    const std::string bytes = encode(note);
    bootstrap_.part(bytes);
    fifos_->carry(*rails_);
    if (!aborted) slots_->carry(*rails_);
    for (Rank r = 0; r < nranks_ && !aborted; ++r) {
      if (r == rank_ || remotes_[static_cast<size_t>(r)]->departed) continue;
      if (!rails_->connected(r) && fifos_->received(r) == 0) continue;
      const Header h{.step = fifos_->sent(r), .kind = MessageKind::kLeaving};
      rails_->send_copy(r, h, bytes.data(), bytes.size());
      waiting.push_back(r);
    }
  }
  const uint64_t limit = aborted ? kLastWordsNs : kLeaveNs;
  for (uint32_t pass = 0;; ++pass) {
    bool moved = false, out = false;
    {
      const std::lock_guard lock(mutex_);
      moved = move();
      out = !rails_->is_pending() && rails_->flush();
      // A rank that departed earlier needs nothing more, and a lost rank cannot answer.
      std::erase_if(waiting, [&](Rank r) { return remotes_[static_cast<size_t>(r)]->has_all || rails_->lost(r); });
    }
    if (pass % 64 == 0 && !waiting.empty()) {
      const auto lost = bootstrap_.find_lost();
      std::erase_if(waiting,
                    [&](Rank r) { return (lost && lost->rank == r) || bootstrap_.parting_note(r).has_value(); });
    }
    if ((waiting.empty() && out) || monotonic_ns() - since > limit) return;
    if (!moved) sched_yield();
  }
}

void RemoteTransport::wake_poller() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
}

// Listens while there is no driver. It recognises a driver by its progress() calls. A driver that makes none counts as
// absent.
void RemoteTransport::poll_loop() {
  constexpr int kMostBusy = 100;
  uint32_t seen = passes_;
  int busy = 0, idle = 0;
  pollfd fds[2] = {{wake_.get(), POLLIN, 0}, {rails_->event_fd(), POLLIN, 0}};
  while (!stop_) {
    uint64_t woken;
    (void)!read(wake_.get(), &woken, sizeof woken);
    if (const uint32_t now = passes_; driven_ && now != seen) {
      seen = now;
      ::poll(fds, 1, kGiveWayMs);
      continue;
    }
    hear_of_aborts();
    bool quiet = false, moved = false;
    const bool attended = attended_.load(std::memory_order_acquire);  // before the last look at the devices' posts
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) {
      // Other threads need the lock too.
      int moves = 0;
      while (moves < kMovesAtOnce && (move() || fifos_->send_credits(*rails_, RemoteFifos::Credits::kAll))) ++moves;
      moved = moves != 0;
      quiet = moves < kMovesAtOnce && rails_->arm();
      listens_ = quiet && !attended;
    }
    // A network on a dead link can stay busy without moving data.
    busy = moved || quiet ? 0 : busy + 1;
    if (attended) {  // devices post without notice
      idle = moved ? 0 : idle + 1;
      if (idle < kIdleLooks) sched_yield();
      else std::this_thread::sleep_for(kNap);
    } else if (quiet) {
      ::poll(fds, 2, 100);
      listens_ = false;
    } else if (busy < kMostBusy) sched_yield();
    else ::poll(fds, 1, kGiveWayMs);
  }
}

}  // namespace rondo::net
