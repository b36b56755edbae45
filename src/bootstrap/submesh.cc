// Makes the mesh of some of a mesh's ranks.
//
//   parent's links      rank 0 ======= rank 1        of each pair of members, the one that comes first in the new order
//   (Unix sockets)        \\          //             makes a connected pair of sockets and sends one end to the other:
//                           \\      //               one message per pair, no rendezvous, no listener, no proof needed,
//                            rank 2                  since the link that it comes through was proven already
//
// Nothing is shared with the parent afterwards: either may be closed first, and the end of a stream tells of a death as
// in any mesh. Ranks of several hosts cannot hand over sockets, and ranks of a mesh that is not full have no links to
// do it through; they meet at a rendezvous of the group's first rank, whose id travels through the parent.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bootstrap/bootstrap.h"
#include "bootstrap/caller_ranks.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/unique_id.h"

namespace rondo {
namespace {

Rank place_in(const std::vector<Rank>& members, Rank rank) {
  return static_cast<Rank>(std::find(members.begin(), members.end(), rank) - members.begin());
}

}  // namespace

Expected<std::unique_ptr<Bootstrap>> Bootstrap::subset(const std::vector<Rank>& members,
                                                       const BootstrapOptions& options) {
  const bool one_host = std::all_of(peers_.begin(), peers_.end(),
                                    [this](const PeerInfo& p) { return p.host == peers_[rank_].host; });
  if (!one_host || !plan_.is_full()) return subset_by_id(members, options);
  const Call call(*this);
  if (!failure_.ok()) return failure_;
  ++sequence_;
  if (members.empty()) return std::unique_ptr<Bootstrap>();
  const Patience patience(options.deadline_s, options.abort);
  Awaited how{FrameKind::kStream, sequence_, {}, {}, &patience};
  return subset_by_streams(members, how, options);
}

// Every member sends before it waits, and to all, so that a failure here leaves nobody waiting there.
Expected<std::unique_ptr<Bootstrap>> Bootstrap::subset_by_streams(const std::vector<Rank>& members,
                                                                  const Awaited& template_of,
                                                                  const BootstrapOptions& options) {
  const Rank mine = place_in(members, rank_);
  std::unique_ptr<Bootstrap> child(new Bootstrap(mine, options));
  child->plan_ = MeshPlan(std::vector<uint32_t>(members.size(), 0), plan_.most_full());  // full, as this one
  child->links_.resize(members.size());
  child->pidfds_.resize(members.size());
  child->views_.resize(members.size());
  child->others_.resize(members.size());
  Awaited how = template_of;
  Status failed;
  for (Rank i = 0; i < static_cast<Rank>(members.size()); ++i) {
    const Rank peer = members[i];
    child->peers_.push_back(peers_[peer]);
    if (i == mine) continue;
    if (pidfds_[peer]) child->pidfds_[i] = Fd(::fcntl(pidfds_[peer].get(), F_DUPFD_CLOEXEC, 0));
    if (i < mine) {
      how.from.push_back(peer);
      continue;
    }
    how.to.push_back(peer);
    int ends[2];
    std::vector<Fd> theirs;
    std::shared_ptr<const std::string> why;
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0) {
      child->links_[i] = std::make_unique<Link>(Fd(ends[0]), true, kMaxPayloadBytes);
      theirs.emplace_back(ends[1]);
    } else {
      failed = Status(StatusCode::kSystem, fmt::format("rank {} cannot make a socket: {}", rank_, errno_text(errno)));
      why = std::make_shared<const std::string>(failed.message());
    }
    links_[peer]->queue_owned(how.kind, how.sequence, std::move(why), std::move(theirs));
  }
  std::vector<Frame> got;
  RONDO_TRY(receive(how, &got));
  RONDO_TRY(failed);
  for (const Rank peer : how.from) {
    Frame& frame = got[peer];
    if (frame.descriptors.size() != 1)
      return Status(StatusCode::kSystem,
                    frame.payload.empty() ? fmt::format("rank {} cannot take a socket of rank {}: the kernel dropped its "
                                                        "descriptor; raise this process's limit (ulimit -n)", rank_, peer)
                                          : std::move(frame.payload));
    child->links_[place_in(members, peer)] =
        std::make_unique<Link>(std::move(frame.descriptors[0]), true, kMaxPayloadBytes);
  }
  RONDO_TRY(child->watch());
  return child;
}

namespace {

// Status code, then a new id or why there is none.
std::string make_id_blob() {
  wire::Writer blob;
  auto id = make_unique_id();
  blob.put(static_cast<uint8_t>(id.status().code()));
  blob.raw(id.ok() ? std::string_view(id->bytes, sizeof(id->bytes)) : id.status().message());
  return blob.take();
}

}  // namespace

Expected<std::unique_ptr<Bootstrap>> Bootstrap::subset_by_id(const std::vector<Rank>& members,
                                                             const BootstrapOptions& options) {
  const bool first = !members.empty() && members[0] == rank_;
  std::vector<std::string> all;
  RONDO_TRY(gather(FrameKind::kGather, first ? make_id_blob() : std::string(), &all));
  if (members.empty()) return std::unique_ptr<Bootstrap>();
  // Who dies on the way to the rendezvous is not missed there before the deadline, but here.
  return meet_by_id(members, all[members[0]], options, options.interrupt);
}

// The same without those who take no part: the first member sends its id to the others.
Expected<std::unique_ptr<Bootstrap>> Bootstrap::subset_by_sent_id(const std::vector<Rank>& members,
                                                                  const Awaited& template_of,
                                                                  const BootstrapOptions& options) {
  Awaited how = template_of;
  std::string blob;
  if (members[0] == rank_) {
    blob = make_id_blob();
    const auto payload = std::make_shared<const std::string>(blob);
    for (const Rank peer : members)
      if (peer != rank_) {
        links_[peer]->queue(how.kind, how.sequence, payload);
        how.to.push_back(peer);
      }
  } else {
    how.from.push_back(members[0]);
  }
  std::vector<Frame> got;
  RONDO_TRY(receive(how, &got));
  if (members[0] != rank_) blob = std::move(got[members[0]].payload);
  return meet_by_id(members, blob, options, [&] { return still_with(members, how.gave_up); });
}

Expected<std::unique_ptr<Bootstrap>> Bootstrap::meet_by_id(const std::vector<Rank>& members, const std::string& blob,
                                                           const BootstrapOptions& options,
                                                           const std::function<Status()>& interrupt) {
  wire::Reader r(blob);
  const auto code = r.get<uint8_t>();
  const std::string_view text = std::string_view(blob).substr(std::min<size_t>(1, blob.size()));
  if (code != 0) return status_from_peer(code, fmt::format("rank {}: {}", members[0], text));
  rondo_unique_id id = {};
  if (text.size() != sizeof(id.bytes))
    return Status(StatusCode::kMismatch, fmt::format("rank {} sent {} bytes in place of an id", members[0], text.size()));
  std::memcpy(id.bytes, text.data(), sizeof(id.bytes));
  RONDO_TRY_ASSIGN(const IdContents contents, decode_id(id));
  BootstrapOptions same_host = options;
  same_host.pretend_host = options_.pretend_host;
  std::unique_ptr<Bootstrap> child(new Bootstrap(place_in(members, rank_), same_host));
  Status heard;  // in this mesh, whose numbers it has
  const Status met = child->connect(static_cast<int>(members.size()), contents,
                                    interrupt ? [&] { return heard = interrupt(); } : std::function<Status()>());
  RONDO_TRY(heard);
  RONDO_TRY(in_callers_ranks(met, members));
  return child;
}

// With the turn: a rank that is gone, or has given up what is being made.
Status Bootstrap::find_whole() {
  if (!failure_.ok()) return failure_;
  if (interrupt_) RONDO_TRY(interrupt_());
  while (!look().empty()) {
  }
  auto lost = [this]() -> Status {
    const std::lock_guard lock(loss_mutex_);
    return loss_ ? Status(StatusCode::kPeerLost, loss_->how) : Status();
  };
  RONDO_TRY(lost());
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
  return find_whole();
}

// A gather of outcomes. Who knows that one of the ranks will not come tells all in its place.
Status Bootstrap::commit(const Status& made, const BootstrapOptions& options) {
  constexpr double kGraceS = 0.5;  // who waits for what is being made gives up first, and knows for whom
  const Call call(*this);
  ++sequence_;
  Status why = find_whole();
  if (why.ok() && (made.code() == StatusCode::kTimeout || made.code() == StatusCode::kAborted)) why = made;
  if (!why.ok()) return give_up(sequence_, std::move(why));
  const Patience patience(options.deadline_s, options.abort);
  std::vector<Frame> got;
  RONDO_TRY(exchange({FrameKind::kGather,
                      refusal_payload(made),
                      {},
                      [](Rank) { return true; },
                      sequence_,
                      patience.extended(made.ok() ? kGraceS : 0)},
                     &got));
  // A rank that has lost another one while it made its part has seen the consequence of what that one says.
  auto is_graver = [](const Status& a, const Status& b) {
    return !a.ok() && (b.ok() || (b.code() == StatusCode::kPeerLost && a.code() != StatusCode::kPeerLost));
  };
  Status gravest;
  for (Rank r = 0; r < static_cast<Rank>(got.size()); ++r) {
    const bool failed = r == rank_ ? !made.ok() : !got[static_cast<size_t>(r)].payload.starts_with('\0');
    if (!failed) continue;
    const Status theirs = r == rank_ ? made : refusal(got[static_cast<size_t>(r)]);
    if (is_graver(theirs, gravest)) gravest = theirs;
  }
  return gravest;
}

}  // namespace rondo
