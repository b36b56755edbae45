#include "api/thread_control.h"

#include <algorithm>
#include <chrono>

#include "api/bind_rank.h"
#include "api/communicator_impl.h"
#include "base/error.h"
#include "base/outcome.h"
#include "base/thread.h"
#include "bootstrap/rendezvous.h"

namespace rondo {

Expected<std::shared_ptr<ThreadMeeting>> ThreadMeeting::create(int nranks) {
  auto meeting = std::make_shared<ThreadMeeting>(nranks);
  RONDO_TRY_ASSIGN(meeting->memory_, InprocWorld::create(nranks));
  return meeting;
}

Status ThreadMeeting::close(Status why) {
  if (closed_.ok()) closed_ = why;
  changed_.notify_all();
  return why;
}

// Waits until done() returns true. The caller holds the lock, which guards the data of done() and missing().
Status ThreadMeeting::wait_for(std::unique_lock<std::mutex>& lock, Rank rank, const Wait& wait, std::string_view what,
                               const std::function<bool()>& done, const std::function<std::vector<Rank>()>& missing) {
  while (!done()) {
    changed_.wait_for(lock, std::chrono::milliseconds(std::max(1, wait.deadline.slice_ms())));
    if (done()) break;
    Status s = wait.deadline.check(what);
    if (s.ok() && wait.interrupt) s = wait.interrupt();
    if (!s.ok()) return make_error(s.code(), "rank {} {}, waiting for {}", rank, s.message(), list_ranks(missing()));
  }
  return {};
}

Expected<ThreadMeeting::Offers> ThreadMeeting::gather(Rank rank, Offer mine, const Wait& wait) {
  std::unique_lock lock(mutex_);
  if (!closed_.ok()) return closed_;
  offers_[rank] = std::move(mine);
  here_[rank] = true;
  const uint64_t round = round_;
  if (std::all_of(here_.begin(), here_.end(), [](bool h) { return h; })) {
    complete_ = std::make_shared<const std::vector<Offer>>(std::exchange(offers_, std::vector<Offer>(here_.size())));
    here_.assign(here_.size(), false);
    ++round_;
    changed_.notify_all();
    return complete_;
  }
  // No rank can begin the next round before this rank has left this one. Therefore complete_ belongs to this round.
  auto missing = [&] {
    std::vector<Rank> ranks;
    for (size_t r = 0; r < here_.size(); ++r)
      if (!here_[r]) ranks.push_back(static_cast<Rank>(r));
    return ranks;
  };
  auto gone = [&]() -> std::optional<Rank> {
    for (const Rank r : missing())
      if (left_[r]) return r;
    return std::nullopt;
  };
  const Status s = wait_for(lock, rank, wait, "meeting the other ranks", [&] {
    return round_ != round || !closed_.ok() || gone();
  }, missing);
  if (round_ != round) return complete_;
  if (!s.ok()) return close(s);
  if (!closed_.ok()) return closed_;
  if (const Status why = wait.interrupt ? wait.interrupt() : Status(); !why.ok()) return close(why);  // the reason
  const Rank left = *gone();
  const std::string& cause = causes_[left];
  return close(make_error(StatusCode::kPeerLost, "rank {} met the other ranks, but rank {} left the communicator{}{}",
                          rank, left, cause.empty() ? "" : " after this failure: ", cause));
}

void ThreadMeeting::leave(Rank rank, const Status& cause) {
  const std::lock_guard lock(mutex_);
  left_[rank] = true;
  causes_[rank] = cause.message();
  changed_.notify_all();
}

ThreadMeeting::Wait ThreadControl::wait(const ChildOptions& options, bool interruptible) const {
  return {Deadline(options.settings.init_timeout_s, options.abort ? options.abort->flag() : nullptr),
          interruptible ? interrupt_ : std::function<Status()>()};
}

Status ThreadControl::gather(std::string_view mine, std::vector<std::string>* all) {
  RONDO_TRY_ASSIGN(const ThreadMeeting::Offers offers,
                   meeting_->gather(rank_, {std::string(mine), nullptr}, wait(options_, true)));
  all->clear();
  for (const ThreadMeeting::Offer& o : *offers) all->push_back(o.bytes);
  return {};
}

Status ThreadControl::commit(const Status& made, const ChildOptions& options) {
  RONDO_TRY_ASSIGN(const ThreadMeeting::Offers outcomes,
                   meeting_->gather(rank_, {encode_outcome(made), nullptr}, wait(options, true)));
  for (const ThreadMeeting::Offer& o : *outcomes) RONDO_TRY(Decoder(o.bytes).get<Status>());
  return {};
}

namespace {

Expected<std::unique_ptr<CommunicatorImpl>> make_thread_rank(Rank rank, const AllSettings& all,
                                                             const std::shared_ptr<ThreadMeeting>& meeting,
                                                             const ChildOptions& options) {
  const auto nranks = static_cast<int>(all.size());
  RONDO_TRY_ASSIGN(const Agreement agreed, agree(rank, options.settings, all, nranks));
  auto impl = std::make_unique<CommunicatorImpl>(
      rank, agreed.hosts, agreed.settings, spin_settings(nranks, count_cpus(all, nranks, 0)),
      options.decorated(rank, nranks, std::make_unique<InprocTransport>(rank, meeting->memory())));
  impl->take_control(std::make_unique<ThreadControl>(rank, meeting, options), options);
  if (options.device) RONDO_TRY(impl->take_device(*options.device));
  return impl;
}

}  // namespace

Expected<std::vector<std::unique_ptr<CommunicatorImpl>>> make_thread_communicators(int nranks,
                                                                                   const ChildOptions& options,
                                                                                   const std::vector<int>& devices) {
  RONDO_TRY_ASSIGN(const std::shared_ptr<ThreadMeeting> meeting, ThreadMeeting::create(nranks));
  const AllSettings all(static_cast<size_t>(nranks), std::make_shared<const Settings>(options.settings));
  std::vector<std::unique_ptr<CommunicatorImpl>> made;
  const std::vector<std::optional<Binding>> bindings = bindings_of_threads(all);
  for (Rank r = 0; r < nranks; ++r) {
    ChildOptions mine = options;
    mine.binding = bindings[r];
    mine.progress = std::make_shared<ProgressThread>();
    RONDO_TRY_ASSIGN(auto impl, make_thread_rank(r, all, meeting, mine));
    made.push_back(std::move(impl));
  }
  if (devices.empty()) return made;
  // take_device is collective: each rank needs its own thread.
  RONDO_TRY(run_concurrently("a thread that makes a rank", made.size(),
                             [&](size_t r) { return made[r]->take_device(devices[r]); }));
  return made;
}

// The first member makes the new meeting and passes it on with its settings, in one gather.
Expected<std::unique_ptr<CommunicatorImpl>> ThreadControl::make_child(const std::vector<Rank>& members,
                                                                      const ChildOptions& options) {
  ThreadMeeting::Offer mine{encode(options.settings), nullptr};
  if (!members.empty() && members[0] == rank_) {
    auto meeting = ThreadMeeting::create(static_cast<int>(members.size()));
    if (meeting.ok()) mine.meeting = *meeting;
    else mine.bytes = meeting.status().to_string();
  }
  RONDO_TRY_ASSIGN(const ThreadMeeting::Offers offers, meeting_->gather(rank_, std::move(mine), wait(options, true)));
  if (members.empty()) return std::unique_ptr<CommunicatorImpl>();
  const ThreadMeeting::Offer& first = (*offers)[members[0]];
  if (first.meeting == nullptr)
    return make_error(StatusCode::kSystem, "rank {} cannot make the new communicator's memory: {}", members[0],
                      first.bytes);
  std::vector<std::string_view> said;
  for (const Rank r : members) said.push_back((*offers)[r].bytes);
  RONDO_TRY_ASSIGN(const AllSettings all, decode_settings(rank_, said));
  const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
  return make_thread_rank(static_cast<Rank>(place), all, first.meeting, options);
}

Expected<std::unique_ptr<CommunicatorImpl>> ThreadControl::make_of_survivors(const std::vector<Rank>& excluded,
                                                                             const ChildOptions& options) {
  RONDO_TRY_ASSIGN(const ThreadMeeting::Survivors found,
                   meeting_->find_survivors(rank_, excluded, encode(options.settings), wait(options, false)));
  const auto place = std::find(found.members.begin(), found.members.end(), rank_) - found.members.begin();
  RONDO_TRY_ASSIGN(const AllSettings all, decode_settings(rank_, {found.settings.begin(), found.settings.end()}));
  return make_thread_rank(static_cast<Rank>(place), all, found.meeting, options);
}

// Ranks that exclude the same ranks share a Gathering. When all ranks that have not left have called, the first rank to
// see this decides once, under the lock, and the others use its outcome. A rank that has given up may call again with
// another list while the others still wait. Therefore only callers of the same attempt must have the same list.
Expected<ThreadMeeting::Survivors> ThreadMeeting::find_survivors(Rank rank, const std::vector<Rank>& excluded,
                                                                 std::string settings, const Wait& wait) {
  std::unique_lock lock(mutex_);
  const auto me = static_cast<size_t>(rank);
  const uint32_t attempt = ++attempts_[me];
  std::vector<bool> out(here_.size(), false);
  for (const Rank r : excluded) out[r] = true;
  for (const auto& [their_out, gathering] : gatherings_)
    for (const auto& [other, theirs] : gathering->callers) {
      if (!theirs.waits) continue;
      if (their_out[me])
        return make_error(StatusCode::kMismatch, "shrink: rank {} continues without rank {}", other, rank);
      if (their_out != out && theirs.attempt == attempt)
        return make_error(StatusCode::kMismatch, "shrink: ranks {} and {} exclude different ranks", other, rank);
    }
  std::shared_ptr<Gathering>& slot = gatherings_[out];
  if (slot == nullptr) slot = std::make_shared<Gathering>();
  const std::shared_ptr<Gathering> mine = slot;
  mine->callers[rank] = {attempt, std::move(settings), true};
  changed_.notify_all();
  // Returns the ranks that have never called or, if all have, those that have given up since.
  auto missing = [&] {
    std::vector<Rank> never, gave_up;
    for (Rank r = 0; r < static_cast<Rank>(out.size()); ++r) {
      if (left_[r] || out[r]) continue;
      const auto caller = mine->callers.find(r);
      if (caller == mine->callers.end()) never.push_back(r);
      else if (!caller->second.waits) gave_up.push_back(r);
    }
    return never.empty() ? gave_up : never;
  };
  const Status s = wait_for(lock, rank, wait, "agreeing with the survivors", [&] {
    return mine->outcome || missing().empty();
  }, missing);
  if (!mine->outcome && s.ok()) {
    gatherings_.erase(out);
    decide(*mine);
  }
  if (!mine->outcome) {
    mine->callers[rank].waits = false;
    return s;
  }
  if (!mine->outcome->ok()) return mine->outcome->status();
  return **mine->outcome;
}

void ThreadMeeting::decide(Gathering& gathering) {
  Survivors found;
  for (auto& [rank, caller] : gathering.callers) {
    if (left_[rank]) continue;  // it gave up and has left
    found.members.push_back(rank);
    found.settings.push_back(std::move(caller.settings));
  }
  auto made = create(static_cast<int>(found.members.size()));
  if (made.ok()) found.meeting = *made;
  gathering.outcome = made.ok() ? Expected<Survivors>(std::move(found)) : Expected<Survivors>(made.status());
  changed_.notify_all();
}

}  // namespace rondo
