// RemoteTransport's membership events, sent and received: aborts, departures, losses and disagreements.
#include <fmt/format.h>

#include <vector>

#include "transport/net/remote.h"

namespace rondo::net {
namespace {

// A departing rank closes its connections a moment before its note arrives another way. Losses seen by the network or
// in shared memory therefore count only after this time.
constexpr uint64_t kLossNs = 300 * kMs;

}  // namespace

// The first abort that a rank receives is the one that counts for it.
void RemoteTransport::take_abort(Rank by, std::string reason) {
  int nobody = -1;
  if (aborted_by_.compare_exchange_strong(nobody, by)) reason_ = std::move(reason);
}

void RemoteTransport::tell_abort() {
  const bool many = are_many();
  if (many) bootstrap_.announce(Bootstrap::Topic::kAbort, 0, reason_);
  for (Rank r = 0; r < nranks_; ++r)
    if (r != rank_ && (!many || rails_->connected(r)) && !rails_->lost(r) &&
        !remotes_[static_cast<size_t>(r)]->departed)
      rails_->send_copy(r, {.kind = MessageKind::kAbort}, reason_.data(), reason_.size());
}

void RemoteTransport::raise(Rank by, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    take_abort(by, reason);
    if (by == rank_ && aborted_by_ == rank_) tell_abort();
    rails_->progress();
  }
  ring(*bell(rank_));
  wake_poller();
}

std::optional<Rank> RemoteTransport::aborted_by() {
  const int by = aborted_by_.load(std::memory_order_acquire);
  return by >= 0 ? std::optional<Rank>(by) : std::nullopt;
}

std::string RemoteTransport::abort_reason(Rank by) {
  const std::lock_guard lock(mutex_);
  return by == aborted_by_ ? reason_ : std::string();
}

bool RemoteTransport::departed(Rank r) {
  if (r == rank_) return false;
  Remote& remote = *remotes_[static_cast<size_t>(r)];
  if (remote.departed.load(std::memory_order_acquire)) return true;
  // Until the departing rank's note arrives, some of its network data may be missing.
  if (shares_memory(r)) {
    if (remote.heard.load(std::memory_order_acquire) || !local_->departed(index_here(r))) return false;
    // The mark in shared memory is seen before that rank's note, and only the note has the reason (an abort, a
    // different call).
    const uint64_t now = monotonic_ns();
    uint64_t since = 0;
    if (remote.left_here_ns.compare_exchange_strong(since, now)) since = now;
    if (now > since + kLossNs) return true;
  }
  const auto note = bootstrap_.parting_note(r);
  if (!note) return false;
  const std::lock_guard lock(mutex_);
  note_end(r, *note);
  return true;
}

// False: not a note.
bool RemoteTransport::note_end(Rank r, std::string_view bytes) {
  auto decoded = decode<PartingNote>(bytes);
  if (!decoded) return false;
  PartingNote& note = *decoded;
  remotes_[static_cast<size_t>(r)]->mirror.end(note);
  if (note.aborted_by >= 0 && note.aborted_by < nranks_) take_abort(static_cast<Rank>(note.aborted_by), note.reason);
  if (note.differ_by >= 0 && note.differ_by < nranks_)
    take_disagreement({static_cast<Rank>(note.differ_by), note.differ_place, std::move(note.difference)});
  if (!note.failure.ok()) remotes_[static_cast<size_t>(r)]->failure = note.failure;
  return true;
}

void RemoteTransport::tell_failure(const Status& cause) {
  if (local_ != nullptr) local_->tell_failure(cause);
  const std::lock_guard lock(mutex_);
  failure_ = cause;
}

Status RemoteTransport::parting_failure(Rank r) {
  if (shares_memory(r)) return local_->parting_failure(index_here(r));
  const std::lock_guard lock(mutex_);
  return remotes_[static_cast<size_t>(r)]->failure;
}

void RemoteTransport::hear_of_aborts() {
  if (!are_many() || aborted_by_ >= 0) return;
  if (auto events = bootstrap_.announced(Bootstrap::Topic::kAbort)) {
    {
      const std::lock_guard lock(mutex_);
      take_abort(events->by, std::move(events->text));
    }
    ring(*bell(rank_));
  }
}

// Keeps the first report on the earliest operation.
void RemoteTransport::take_disagreement(Bootstrap::Announcement events) {
  if (!disagreement_ || events.place < disagreement_->place) disagreement_ = std::move(events);
}

// With few ranks nothing is sent: the others read the difference on the status pages, or in the note of a rank that has
// departed.
void RemoteTransport::tell_disagreement(uint64_t sequence, std::string_view text) {
  if (are_many()) bootstrap_.announce(Bootstrap::Topic::kDisagreement, sequence, std::string(text));
  const std::lock_guard lock(mutex_);
  take_disagreement({rank_, sequence, std::string(text)});
}

std::optional<std::string> RemoteTransport::told_disagreement(uint64_t sequence) {
  auto events = are_many() ? bootstrap_.announced(Bootstrap::Topic::kDisagreement) : std::nullopt;
  const std::lock_guard lock(mutex_);
  if (events) take_disagreement(std::move(*events));
  if (!disagreement_ || disagreement_->place > sequence) return std::nullopt;
  return fmt::format("rank {} says: {}", disagreement_->by, disagreement_->text);
}

std::optional<PeerLoss> RemoteTransport::find_lost() {
  auto lost = bootstrap_.find_lost();  // also reads events about aborts
  hear_of_aborts();
  if (lost) return PeerLoss{lost->rank, std::move(lost->how)};
  std::vector<PeerLoss> losses;
  {
    const std::lock_guard lock(mutex_);
    losses = rails_->losses(monotonic_ns() - kLossNs);
  }
  for (PeerLoss& l : losses)
    if (!departed(l.rank)) return std::move(l);
  return std::nullopt;
}

}  // namespace rondo::net
