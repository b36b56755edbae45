// Agreement of the live ranks on the set of survivors, in any state of their communicator.
//
//   round k   Every rank sends its view to all ranks that it does not know to be gone. From each of them it receives
//             the view of round k, or learns from the kernel that it is gone (end of the link or of the process).
//   decide    A rank decides if in a round all received views equal its own and it found no further rank gone. It then
//             sends the decision, not a view of the next round, to all ranks. A rank that receives a decision adopts
//             and forwards it.
//
// A view only grows. Therefore there are at most two more rounds than deaths. Two live ranks never decide differently:
//   - If a rank decides view V in round k, all ranks that are not gone in V have sent V in round k.
//   - To decide another view W later, a rank needs a view of a later round from every rank that is not gone in W.
//   - From a rank that has decided V it receives this decision, or nothing because that rank is gone. A rank accepts no
//     message from a rank that it knows to be gone.
//
// If the mesh is not full, the missing links are made at the same time: each rank connects to the lower ranks, whose
// ports are open, and accepts the higher ones. A rank whose port has no listener is gone. If a higher rank does not
// connect, this rank connects to its port, and the end of that connection shows that the rank is gone. If its host is
// silent, membership.cc reports the loss.
//
// Source: consensus by flooding with a perfect failure detector; Lynch, Distributed Algorithms, section 6.2, and the
// early decision of Charron-Bost and Schiper (2004).
#include "bootstrap/survivors.h"

#include <poll.h>

#include <algorithm>

#include "base/codec.h"
#include "base/error.h"
#include "base/outcome.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/rendezvous.h"

namespace rondo {
namespace {

constexpr auto kAskPause = std::chrono::milliseconds(50), kMostAskPause = std::chrono::milliseconds(3200);

}  // namespace

void SurvivorView::join(const SurvivorView& other) {
  for (size_t r = 0; r < gone.size(); ++r) gone[r] = gone[r] || other.gone[r];
  const int mine = gravity(code), theirs = gravity(other.code);
  if (theirs < mine || theirs == 0 || (theirs == mine && other.failed >= failed)) return;
  failed = other.failed;
  code = other.code;
  why = other.why;
}

void SurvivorView::set_failure(Rank rank, const Status& status) {
  failed = status.ok() ? -1 : rank;
  code = status.code();
  why = status.message();
}

std::vector<Rank> SurvivorView::members() const {
  std::vector<Rank> ranks;
  for (size_t r = 0; r < gone.size(); ++r)
    if (!gone[r]) ranks.push_back(static_cast<Rank>(r));
  return ranks;
}

template <class C>
void fields(C& c, ViewMessage& m) {
  auto code = static_cast<uint8_t>(m.view.code);
  c(m.attempt, m.phase, m.round, m.decided, m.view.excluded, m.view.gone, m.view.failed, code, m.view.why);
  if constexpr (C::kDecodes) {
    if (!is_status_code(code)) c.fail();
    m.view.code = static_cast<StatusCode>(code);
  }
}

std::string encode_view(const ViewMessage& m) { return encode(m); }

std::optional<ViewMessage> decode_view(std::string_view bytes, int nranks) {
  auto m = decode<ViewMessage>(bytes);
  const auto is_whole = [&](const std::vector<bool>& set) { return set.size() == static_cast<size_t>(nranks); };
  return m && is_whole(m->view.excluded) && is_whole(m->view.gone) ? m : std::nullopt;
}

Status Bootstrap::begin_shrink(const std::vector<Rank>& excluded, const BootstrapOptions& options) {
  const Call call(*this);
  SurvivorView view;
  view.excluded.resize(peers_.size(), false);
  for (const Rank r : excluded) {
    if (r < 0 || r >= static_cast<Rank>(peers_.size()) || r == rank_)
      return invalid_argument("rank {}: excluded names rank {}: {}", rank_, r,
                              r == rank_ ? "the caller" : "there is none");
    view.excluded[r] = true;
  }
  view.gone = view.excluded;
  view_ = std::move(view);
  ++attempt_;
  phase_ = 0;
  decisions_.clear();
  view_bytes_ = nullptr;
  shrink_deadline_.emplace(options.deadline_s, options.abort);
  return want_links();
}

// Starts to make links to all live ranks, if the mesh is not full.
Status Bootstrap::want_links() {
  if (plan_.is_full()) return {};
  if (!late_) {
    std::vector<bool> known(peers_.size());
    for (size_t r = 0; r < known.size(); ++r) known[r] = links_[r] != nullptr || r == static_cast<size_t>(rank_);
    RONDO_TRY_ASSIGN(Encryption encrypted, encryption());
    late_ = std::make_unique<LinkMaker>(rank_, secret_, peers_, port_, std::move(encrypted), std::move(known));
    unreachable_.resize(peers_.size(), false);
  }
  for (Rank r = 0; r < rank_; ++r) late_->call(r);
  ask_pause_ = kAskPause;
  ask_at_ = Deadline::Clock::now() + ask_pause_;
  return take_late_links();
}

// Adds the links that have been made. Sends the last view on them, also to excluded ranks.
Status Bootstrap::take_late_links() {
  if (!late_) return {};
  for (auto& [peer, link] : late_->take_links()) {
    const auto r = static_cast<size_t>(peer);
    {
      const std::lock_guard lock(loss_mutex_);
      links_[r] = std::move(link);
      RONDO_TRY(watch_link(peer));
    }
    if (!view_bytes_ || (view_.gone[r] && !view_.excluded[r])) continue;
    for (const auto& decision : decisions_) links_[r]->queue(FrameKind::kView, attempt_, decision);
    links_[r]->queue(FrameKind::kView, attempt_, view_bytes_);
    links_[r]->flush();
  }
  for (const LinkMaker::Failure& f : late_->take_failures())  // after other failures, connecting is tried again
    if (f.why.code() == StatusCode::kPeerLost) unreachable_[f.peer] = true;
  return {};
}

Expected<Bootstrap::Survivors> Bootstrap::agree(const Status& made) {
  const Call call(*this);
  view_.set_failure(rank_, made);
  ++phase_;
  bool restarted = false;
  for (;;) {
    RONDO_TRY_ASSIGN(const Phase end, run_phase());
    if (end == Phase::kDecided) break;
    // Another rank gave up and called shrink again. All ranks continue with its attempt.
    restarted = true;
    decisions_.clear();
    view_.gone = view_.excluded;
    view_.set_failure(rank_, {});
    phase_ = 1;
  }
  return Survivors{view_.members(), view_.failure(), restarted};
}

void Bootstrap::send_view(uint32_t round, bool decided) {
  view_bytes_ = std::make_shared<const std::string>(encode_view({attempt_, phase_, round, decided, view_}));
  if (decided && late_) decisions_.push_back(view_bytes_);
  // Excluded ranks get one view, because they may call shrink too.
  const bool to_excluded = phase_ == 1 && round == 1;
  for (size_t r = 0; r < peers_.size(); ++r) {
    if (!links_[r] || (view_.gone[r] && !(to_excluded && view_.excluded[r]))) continue;
    links_[r]->queue(FrameKind::kView, attempt_, view_bytes_);
    links_[r]->flush();
  }
}

// Returns the peer's next view of this phase. If the peer has begun a later attempt with the same excluded ranks,
// returns its view of that attempt, and this rank must continue with it.
std::optional<ViewMessage> Bootstrap::next_view(Rank peer) {
  if (!links_[peer]) return std::nullopt;
  links_[peer]->drain();
  {
    const std::lock_guard lock(loss_mutex_);
    judge(peer, false);
    send_events();
  }
  sort_frames(peer);
  std::list<Frame>& kept = views_[peer];
  const int nranks = static_cast<int>(peers_.size());
  for (const Frame& frame : kept)
    if (auto m = decode_view(frame.payload, nranks); m && m->attempt > attempt_ && m->view.excluded == view_.excluded)
      return m;  // the frame stays in the list
  while (!kept.empty()) {
    auto m = decode_view(kept.front().payload, nranks);
    if (m && m->attempt > attempt_) break;                        // used if this rank gives up this attempt too
    if (m && m->attempt == attempt_ && m->phase > phase_) break;  // another rank will send the decision of this phase
    kept.pop_front();
    if (m && m->attempt == attempt_ && m->phase == phase_) return m;
  }
  return std::nullopt;
}

bool Bootstrap::is_gone(Rank peer) {
  const auto& link = links_[peer];
  const std::lock_guard lock(loss_mutex_);
  return gone_[peer] || (link ? link->end(nullptr) != Link::End::kNone : unreachable_[peer]);
}

Expected<Bootstrap::Phase> Bootstrap::run_phase() {
  for (uint32_t round = 1;; ++round) {
    const SurvivorView sent = view_;
    send_view(round, false);
    bool all_equal = true;
    std::vector<bool> heard(peers_.size(), false);
    heard[rank_] = true;
    std::vector<bool> ready(peers_.size(), true);  // ranks to read now: reading costs one to three system calls
    for (;;) {
      std::vector<Rank> waiting_for;
      for (Rank peer = 0; peer < static_cast<Rank>(peers_.size()); ++peer) {
        if (heard[peer] || view_.gone[peer]) continue;
        if (links_[peer] && !ready[peer]) {
          waiting_for.push_back(peer);
          continue;
        }
        if (links_[peer]) links_[peer]->flush();
        const bool gone = is_gone(peer);  // checked before reading: views that it sent before its end are valid
        const std::optional<ViewMessage> m = next_view(peer);
        if (!m) {
          view_.gone[peer] = gone;
          if (!gone) waiting_for.push_back(peer);
          continue;
        }
        if (m->attempt > attempt_) {
          attempt_ = m->attempt;
          return Phase::kRestarted;
        }
        RONDO_TRY(check_view(peer, *m, round));
        if (m->decided) {
          view_ = m->view;
          send_view(round, true);
          return Phase::kDecided;
        }
        all_equal = all_equal && m->view == sent;
        view_.join(m->view);
        heard[peer] = true;
      }
      if (waiting_for.empty()) break;
      RONDO_TRY_ASSIGN(ready, await_views(waiting_for));
    }
    if (all_equal && view_ == sent) {
      send_view(round, true);
      return Phase::kDecided;
    }
  }
}

Status Bootstrap::check_view(Rank peer, const ViewMessage& m, uint32_t round) const {
  const std::string who = peer_text(peer, peers_[peer]);
  if (m.view.excluded != view_.excluded) {
    auto list = [](const std::vector<bool>& set) {
      std::vector<Rank> ranks;
      for (size_t r = 0; r < set.size(); ++r)
        if (set[r]) ranks.push_back(static_cast<Rank>(r));
      return ranks.empty() ? std::string("nobody") : list_ranks(ranks);
    };
    return make_error(StatusCode::kMismatch, "shrink: rank {} excludes {}, but {} excludes {}", rank_,
                      list(view_.excluded), who, list(m.view.excluded));
  }
  if (m.view.gone[rank_]) return make_error(StatusCode::kMismatch, "shrink: {} continues without rank {}", who, rank_);
  if (m.phase != phase_ || (m.round != round && !m.decided))
    return make_error(StatusCode::kInternal, "shrink: {} is in round {} of phase {}, rank {} in {} of {}", who, m.round,
                      m.phase, rank_, round, phase_);
  return {};
}

// Waits for at most one slice. Returns by rank whether data may have arrived.
Expected<std::vector<bool>> Bootstrap::await_views(const std::vector<Rank>& from) {
  std::vector<pollfd> fds;
  std::vector<Rank> missing, unflushed;
  for (const Rank r : from) {
    if (!links_[r]) missing.push_back(r);
    else if (!links_[r]->flush()) unflushed.push_back(r);
  }
  if (!missing.empty() && Deadline::Clock::now() >= ask_at_) {
    for (const Rank r : missing) r > rank_ ? late_->ask(r) : late_->call(r);
    ask_pause_ = std::min(2 * ask_pause_, kMostAskPause);
    ask_at_ = Deadline::Clock::now() + ask_pause_;
  }
  if (late_) late_->add_to(&fds);
  const int slice_ms = shrink_deadline_->slice_ms();
  const std::vector<Rank> heard = hear(&unflushed, late_ ? late_->slice_ms(slice_ms) : slice_ms, &fds);
  std::vector<bool> ready(peers_.size(), heard.empty());
  for (const Rank r : heard) ready[r] = true;
  if (late_) RONDO_TRY(late_->step(fds.data()));
  RONDO_TRY(take_late_links());
  for (const Rank r : missing) ready[r] = true;
  if (const Status s = shrink_deadline_->check("agreeing with the survivors"); !s.ok())
    return make_error(s.code(), "rank {} {}: {} {} and {} not called shrink", rank_, s.message(), list_ranks(from),
                      from.size() == 1 ? "lives" : "live", from.size() == 1 ? "has" : "have");
  return ready;
}

// Waits until there is a link to each rank of `with`.
Status Bootstrap::make_links(const std::vector<Rank>& with, const std::function<bool(Rank)>& gave_up) {
  for (;;) {
    std::vector<Rank> missing;
    for (const Rank r : with)
      if (r != rank_ && !links_[r]) missing.push_back(r);
    if (missing.empty()) return {};
    RONDO_TRY(still_with(with, gave_up));
    RONDO_TRY(await_views(missing).status());
  }
}

// Returns an error if a member is gone or has given up this communicator. Some members have no link to this rank.
Status Bootstrap::still_with(const std::vector<Rank>& members, const std::function<bool(Rank)>& gave_up) {
  while (!look().empty()) {
  }
  for (Rank r = 0; r < static_cast<Rank>(peers_.size()); ++r) {
    if (!links_[r]) continue;
    sort_frames(r);
    if (gave_up(r)) return Status(StatusCode::kPeerLost, peer_text(r, peers_[r]) + " has started the shrink again");
  }
  for (const Rank r : members)
    if (r != rank_ && is_gone(r)) return Status(StatusCode::kPeerLost, peer_text(r, peers_[r]) + " is gone");
  return {};
}

// Returns true if a view of a later attempt has arrived from this peer or, with phases_count, of a later phase.
bool Bootstrap::has_begun_anew(Rank peer, bool phases_count) {
  return std::any_of(views_[peer].begin(), views_[peer].end(), [&](const Frame& f) {
    const auto m = decode_view(f.payload, static_cast<int>(peers_.size()));
    return m && (m->attempt > attempt_ || (phases_count && m->attempt == attempt_ && m->phase > phase_));
  });
}

// A member that has finished is already in the next phase, which is not an error here.
Status Bootstrap::still_with_survivors(const std::vector<Rank>& members) {
  const Call call(*this);
  return still_with(members, [this](Rank peer) { return has_begun_anew(peer, false); });
}

}  // namespace rondo
