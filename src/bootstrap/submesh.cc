// Makes a mesh of some ranks of a mesh, its parent. Each member opens a new port and sends its addresses to the others
// through the parent. Then the members connect as after a rendezvous, and prove to each other that they are members.
// Their secret is derived from the parent's secret and the random names of the new ports.
//
// Afterwards the mesh and its parent share nothing. Either may be closed first. If a member dies before its links are
// made, the parent's links show it.
#include <algorithm>

#include "base/outcome.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/caller_ranks.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/survivors.h"

namespace rondo {

// Makes a Bootstrap with an open port. Sets *offer to the data for the other members.
std::unique_ptr<Bootstrap> Bootstrap::begin_child(const std::vector<Rank>& members, const BootstrapOptions& options,
                                                  std::string* offer) {
  const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
  std::unique_ptr<Bootstrap> child(new Bootstrap(static_cast<Rank>(place), options));
  PeerInfo self = peers_[rank_];
  self.greeting = options.greeting ? options.greeting(child->rank_, static_cast<int>(members.size())) : std::string();
  const bool one_host = std::all_of(members.begin(), members.end(), [this](Rank r) { return same_host(r); });
  auto port = open_mesh_port(&self, !one_host);
  *offer = encode_outcome(port.status()) + encode(self);
  if (port.ok()) child->port_ = std::move(*port);
  return child;
}

// Connects the child. offers[i] is the offer of members[i].
Status Bootstrap::finish_child(const std::vector<Rank>& members, const std::vector<std::string>& offers,
                               const std::function<Status()>& interrupt, Bootstrap* child) {
  std::vector<PeerInfo> peers;
  std::string names = "child";
  for (size_t i = 0; i < members.size(); ++i) {
    RONDO_TRY_ASSIGN(PeerInfo peer, read_outcome<PeerInfo>(offers[i], static_cast<size_t>(members[i])));
    names += ' ' + peer.unix_name;
    peers.push_back(std::move(peer));
  }
  Status heard;  // an error of interrupt, which uses the ranks of this mesh
  std::function<Status()> listening;
  if (interrupt) listening = [&] { return heard = interrupt(); };
  Met met{MeshPlan(hosts_of(peers), plan_.most_full()), std::move(peers), nullptr};
  const Status met_all = child->connect(std::move(met), derive_secret(secret_, names), listening);
  RONDO_TRY(heard);
  return in_callers_ranks(met_all, members);
}

Expected<std::unique_ptr<Bootstrap>> Bootstrap::subset(const std::vector<Rank>& members,
                                                       const BootstrapOptions& options) {
  std::unique_ptr<Bootstrap> child;
  std::string mine;
  if (!members.empty()) child = begin_child(members, options, &mine);
  std::vector<std::string> all, offers;
  RONDO_TRY(gather(FrameKind::kGather, mine, &all, Deadline(options.deadline_s, options.abort)));
  for (const Rank r : members) offers.push_back(std::move(all[r]));
  if (child != nullptr) RONDO_TRY(finish_child(members, offers, options.interrupt, child.get()));
  return child;
}

// Same as subset() without the ranks that take no part: each member sends its offer only to the others.
Expected<std::unique_ptr<Bootstrap>> Bootstrap::subset_of_survivors(const std::vector<Rank>& members,
                                                                    const BootstrapOptions& options) {
  const Call call(*this);
  Awaited how{FrameKind::kOffer, shrink_sequence(), {}, {}, &*shrink_deadline_};
  how.skip_others = true;
  how.gave_up = [this](Rank peer) { return has_begun_anew(peer, true); };
  std::string mine;
  std::unique_ptr<Bootstrap> child = begin_child(members, options, &mine);
  // Ignore the failure and the interrupt of the communicator's own calls.
  const Status before = std::exchange(failure_, Status());
  const std::function<Status()> interrupt = std::exchange(interrupt_, nullptr);
  const Status made = [&]() -> Status {
    RONDO_TRY(make_links(members, how.gave_up));
    const auto payload = std::make_shared<const std::string>(mine);
    for (const Rank r : members) {
      if (r == rank_) continue;
      links_[r]->queue(how.kind, how.sequence, payload);
      how.to.push_back(r);
    }
    how.from = how.to;
    std::vector<Frame> got;
    RONDO_TRY(receive(how, &got));
    std::vector<std::string> offers;
    for (const Rank r : members) offers.push_back(r == rank_ ? mine : std::move(got[r].payload));
    return finish_child(
        members, offers, [&] { return still_with(members, how.gave_up); }, child.get());
  }();
  failure_ = before;
  interrupt_ = interrupt;
  RONDO_TRY(made);
  return child;
}

// Returns an error if a rank is gone or has given up. The caller holds the turn.
Status Bootstrap::still_whole_locked() {
  if (!failure_.ok()) return failure_;
  if (interrupt_) RONDO_TRY(interrupt_());
  while (!look().empty()) {
  }
  {
    const std::lock_guard lock(loss_mutex_);
    if (loss_) return Status(StatusCode::kPeerLost, loss_->how);
  }
  for (Rank r = 0; r < static_cast<Rank>(links_.size()); ++r) {
    if (!links_[r]) continue;
    sort_frames(r);
    for (const Frame& frame : others_[r])
      if (frame.kind == FrameKind::kGaveUp) return refusal(frame);
  }
  const std::lock_guard lock(loss_mutex_);
  return first_left_ ? Status(StatusCode::kPeerLost, left_text(*first_left_)) : Status();
}

Status Bootstrap::still_whole() {
  const Call call(*this);
  return still_whole_locked();
}

// Gathers the results of all ranks. A rank that knows that another will not take part sends kGaveUp instead.
Status Bootstrap::commit(const Status& made, const BootstrapOptions& options) {
  constexpr double kGraceS = 0.5;  // a rank that is still making gives up first, because it can name the missing rank
  const Call call(*this);
  ++sequence_;
  Status why = still_whole_locked();
  if (why.ok() && (made.code() == StatusCode::kTimeout || made.code() == StatusCode::kAborted)) why = made;
  if (!why.ok()) return give_up(sequence_, std::move(why));
  const Deadline deadline = Deadline(options.deadline_s, options.abort).extended(made.ok() ? kGraceS : 0);
  const std::string mine = encode_outcome(made);
  std::vector<Frame> got;
  RONDO_TRY(exchange({FrameKind::kGather, mine, {}, sequence_, deadline}, &got));
  Status most_serious;
  for (Rank r = 0; r < static_cast<Rank>(got.size()); ++r) {
    const bool failed = r == rank_ ? !made.ok() : !got[r].payload.starts_with('\0');
    if (!failed) continue;
    const Status theirs = r == rank_ ? made : refusal(got[r]);
    if (gravity(theirs.code()) > gravity(most_serious.code())) most_serious = theirs;
  }
  return most_serious;
}

}  // namespace rondo
