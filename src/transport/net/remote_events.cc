// RemoteTransport's membership events: aborts, departures, losses and disagreements. The Bootstrap carries them.
#include <fmt/format.h>

#include <vector>

#include "base/status_from_peer.h"
#include "transport/net/remote.h"

namespace rondo::net {
namespace {

// A departing rank closes its connections a moment before its note arrives another way. Losses seen by the network or
// in shared memory therefore count only after this time.
constexpr uint64_t kLossNs = 300 * kMs;

}  // namespace

// The first abort that a rank receives is the one that counts for it. All ranks get this rank's.
void RemoteTransport::take_abort(Rank by, std::string reason) {
  int nobody = -1;
  if (!aborted_by_.compare_exchange_strong(nobody, by)) return;
  reason_ = std::move(reason);
  if (by == rank_) bootstrap_.announce(Bootstrap::Topic::kAbort, 0, reason_);
  ring(*bell(rank_));
}

void RemoteTransport::raise(Rank by, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  take_abort(by, reason);
}

void RemoteTransport::hear_of_aborts() {
  if (aborted_by_ >= 0) return;
  auto heard = bootstrap_.announced(Bootstrap::Topic::kAbort);
  if (!heard) return;
  const std::lock_guard lock(mutex_);
  take_abort(heard->by, std::move(heard->text));
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
  // Network data may be incomplete until its note arrives.
  if (shares_memory(r)) {
    if (remote.heard.load(std::memory_order_acquire) || !local_->departed(index_here(r))) return false;
    // Shared memory is faster than its note, which has the reason: an abort, a different call.
    const uint64_t now = monotonic_ns();
    uint64_t since = 0;
    if (remote.left_here_ns.compare_exchange_strong(since, now)) since = now;
    if (now > since + kLossNs) return true;
  }
  const auto note = bootstrap_.parting_note(r);
  if (!note) return false;
  hear_of_aborts();  // it may be the reason
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
  if (note.failure_code != 0)
    remotes_[static_cast<size_t>(r)]->failure = status_from_peer(note.failure_code, note.failure);
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

void RemoteTransport::tell_disagreement(uint64_t sequence, std::string_view text) {
  bootstrap_.announce(Bootstrap::Topic::kDisagreement, sequence, std::string(text));
}

std::optional<std::string> RemoteTransport::told_disagreement(uint64_t sequence) {
  const auto told = bootstrap_.announced(Bootstrap::Topic::kDisagreement);
  if (!told || told->place > sequence) return std::nullopt;
  return fmt::format("rank {} says: {}", told->by, told->text);
}

std::optional<PeerLoss> RemoteTransport::find_lost() {
  auto lost = bootstrap_.find_lost();  // also receives announcements
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
