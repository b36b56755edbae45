// Finds the reason of a long wait of an OperationQueue: an abort, different calls, a lost rank or a late rank. These
// are slow paths. Every error text names this rank, the operation, the peer and the position in the schedule.
#include <algorithm>

#include "base/error.h"
#include "engine/queue.h"
#include "engine/tracing.h"
#include "plan/describe_program.h"

namespace rondo {
namespace {

// After a wait this long, two more things are errors: the death of a rank that has finished the operation, and messages
// of another operation whose call no page shows yet. Waits noted on status pages longer ago than this are not reported.
constexpr uint64_t kLongWaitNs = 500'000'000;

std::string peer_text(uint16_t peer) { return peer == kAnyPeer ? "any rank" : fmt::format("rank {}", peer); }

std::string describe_shape(const OperationShape& s) {
  std::string text = std::string(collective_name(s.collective)) + (s.variable ? "_v" : "");
  if (s.collective == Collective::kBarrier) return text;
  const bool counted = !s.variable || s.count_elems != 0;
  text += counted ? fmt::format(" of {} {}", s.count_elems, dtype_name(s.dtype))
                  : fmt::format(" of {}", dtype_name(s.dtype));
  if (s.row != 0) {
    const TypeRow row = row_at(s.row, s.dtype);
    text += fmt::format(" as {}, {} out", dtype_name(row.wire), dtype_name(row.output));
  }
  if (collective_reduces(s.collective)) text += fmt::format(" {}", op_name(s.op));
  const bool from = s.collective == Collective::kRecv || s.collective == Collective::kBroadcast ||
                    s.collective == Collective::kScatter;
  if (is_point_to_point(s.collective) || collective_is_rooted(s.collective))
    text += fmt::format(" {} {}", from ? "from" : "to", peer_text(s.root));
  return text;
}

std::string list_peers(const std::vector<Rank>& peers) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < peers.size() && i < kMost; ++i) text += fmt::format("{}rank {}", i == 0 ? "" : ", ", peers[i]);
  return peers.size() > kMost ? fmt::format("{} and {} more", text, peers.size() - kMost) : text;
}

std::string difference(const OperationShape& a, const OperationShape& b) {
  if (a.collective != b.collective || a.variable != b.variable) return "the operation";
  if (a.count_elems != b.count_elems) return "count_elems";
  if (a.root != b.root) return "root";
  if (a.dtype != b.dtype) return "dtype";
  if (a.op != b.op) return "op";
  if (a.row != b.row) return "the types";
  return "the algorithm";
}

}  // namespace

std::string OperationQueue::describe(const Operation& op) const {
  const OperationShape& s = op.program->operation;
  return fmt::format("rank {}: {}{} ({}, {} {}{})", rank_, is_point_to_point(op.program) ? "call" : "operation",
                     op.sequence != 0 ? fmt::format(" #{}", op.sequence) : "", describe_shape(s), algorithm_name(s),
                     protocol_name(op.program->protocol),
                     op.tag != 0 || is_matched(s) ? fmt::format(", tag {}", op.tag) : "");
}

bool OperationQueue::check_abort() {
  const std::optional<Rank> by = transport_.aborted_by();
  if (!by) return false;
  const Operation* op = oldest();
  const std::string text = abort_text(transport_, *by);
  fail(Status(StatusCode::kAborted, op != nullptr ? fmt::format("{}: {}; {}", describe(*op), text, blocked_on(*op))
                                                  : fmt::format("rank {}: {}", rank_, text)));
  return true;
}

void OperationQueue::diagnose(uint64_t waited_ns) {
  if (flight_wanted_.exchange(false, std::memory_order_relaxed) && observer_ != nullptr) observer_->flight_wanted();
  Operation* op = oldest();
  if (op == nullptr || check_abort()) return;
  ports_.open_sends().reclaim_refused();
  if (matcher_.has_receives()) [[unlikely]]
    check_receives(waited_ns);
  if (!has_failed() && (alone_ != nullptr || !active_.empty())) diagnose(*op, waited_ns);
}

// Diagnoses the receives that the matcher waits for: those at their deadlines, and one other.
void OperationQueue::check_receives(uint64_t waited_ns) {
  const uint64_t now = monotonic_ns();
  const std::vector<Operation*> all = matcher_.receives();
  const size_t turn = next_receive_++ % std::max<size_t>(all.size(), 1);
  for (size_t i = 0; i < all.size() && !has_failed(); ++i) {
    Operation& op = *all[i];
    if (op.waiting_since_ns == 0) op.waiting_since_ns = now;
    if (i == turn || now - op.waiting_since_ns >= op.deadline_ns) diagnose(op, waited_ns);
  }
}

void OperationQueue::diagnose(Operation& operation, uint64_t waited_ns) {
  Operation* const op = &operation;
  const uint64_t now = monotonic_ns();
  if (op->waiting_since_ns == 0) op->waiting_since_ns = now - waited_ns;
  const uint64_t waited = now - op->waiting_since_ns;
  announce(*op);  // so that the others see that it runs: in `once` form it may not have posted itself
  auto end = [&](StatusCode code, const std::string& text, const Status& cause = {}) {
    page_.note_waits(waits_of(*op), StatusPage::kForGood);
    const Status status(code, text);
    fail(status, cause.ok() ? status : cause);
  };
  auto end_if_ranks_differ = [&](bool looks_back) {
    const Status s = find_mismatch(*op, waited, looks_back);
    if (!s.ok()) end(s.code(), fmt::format("{}; {}", s.message(), blocked_on(*op)));
    return !s.ok();
  };
  if (end_if_ranks_differ(op->mismatch_with >= 0)) return;
  constexpr uint64_t kLossCheckNs = 10'000'000;
  if (waited >= kLossCheckNs) {
    page_.note_waits(waits_of(*op), now);
    // A status page does not show whether the peer of a send or recv sent its message before it left. The message may
    // be newer than our lanes' last step. Therefore this loss is an error only if the next check finds it too.
    Status cause;
    const auto loss = find_lost(*op, waited_ns, &cause);
    if (loss && check_abort()) return;  // an abort may be the reason why it left
    if (loss && end_if_ranks_differ(true)) return;
    const bool may_have_come = loss && is_point_to_point(op->program) && !op->peer_was_gone;
    op->peer_was_gone = loss.has_value();
    if (loss && !may_have_come)
      return end(cause.ok() ? StatusCode::kPeerLost : cause.code(),
                 fmt::format("{}: rank {} is lost: {}; {}", describe(*op), loss->rank, loss->how, blocked_on(*op)),
                 cause);
  }
  if (!op->reach_error.ok() && waited >= kLongWaitNs)
    return end(op->reach_error.code(),
               fmt::format("{}: {}; {}", describe(*op), op->reach_error.message(), blocked_on(*op)));
  if (waited >= op->deadline_ns && !end_if_ranks_differ(true)) end(StatusCode::kTimeout, timed_out(*op, waited));
}

// Returns a lost rank that may be the reason of the wait. The loss of a rank that has finished `op` cannot be the
// reason. After a long wait that loss is reported anyway, because transports report only the first death and a second
// one may be the reason. Sets `cause` to the failure that the rank reported when it left, if any.
std::optional<PeerLoss> OperationQueue::find_lost(const Operation& op, uint64_t waited_ns, Status* cause) const {
  const bool pair = is_point_to_point(op.program);
  const Rank peer = op.program->operation.root;
  const bool from_any = pair && peer == kAnyPeer;
  auto finished = [&](Rank r) {
    if (pair) return r != peer && !from_any;  // only the peer matters
    StatusPage* page = transport_.page(r);
    return page != nullptr && page->last_finished() >= op.sequence;
  };
  // Ranks leave when they notice a death. Therefore a death is reported before a departure, and departures are read
  // first: the death that caused one is visible afterwards.
  std::optional<PeerLoss> left;
  int num_left = 0;
  for (Rank r = 0; r < nranks_ && !left; ++r) {
    if (r == rank_ || !transport_.departed(r) || finished(r)) continue;
    // If the message may be from any rank, ranks that left without a failure matter when nobody else can send it.
    if (from_any && ++num_left < nranks_ - 1 && transport_.parting_failure(r).ok()) continue;
    left = PeerLoss{r, "it has destroyed its communicator"};
  }
  std::optional<PeerLoss> died = transport_.find_lost();
  if (died && (!finished(died->rank) || waited_ns >= kLongWaitNs)) return died;
  if (!left) return left;
  *cause = transport_.parting_failure(left->rank);
  if (!cause->ok()) left->how += fmt::format(" after this failure: {}", cause->message());
  return left;
}

// Compares every rank's status page with ours. Therefore all ranks notice a mismatch, not only the neighbours. Compares
// this operation and the other rank's last one. (An operation without elements has no messages that could show it.)
// `looks_back`: also compares all earlier operations on the pages, because ranks may differ in a call in which neither
// had to wait.
Status OperationQueue::find_mismatch(const Operation& op, uint64_t waited_ns, bool looks_back) {
  if (is_matched(op.program->operation)) return {};  // the matcher has compared them
  if (is_point_to_point(op.program)) {
    if (Status s = find_pair_mismatch(op); !s.ok()) return s;
  } else {
    if (Status s = find_page_mismatch(op, looks_back); !s.ok()) return s;
  }
  if (op.mismatch_with < 0 || waited_ns < kLongWaitNs) return {};
  std::string text = fmt::format("{}: rank {} sends the messages of another operation", describe(op), op.mismatch_with);
  constexpr uint64_t kNear = 1000;  // the fingerprint of another shape is this near with a probability of 1 in 8000
  if (op.mismatch_at != 0 && op.mismatch_at + kNear > op.sequence && op.mismatch_at < op.sequence + kNear)
    text += fmt::format(": #{}, an equal call. After it the two ranks made different calls", op.mismatch_at);
  if (is_point_to_point(op.program)) return Status(StatusCode::kMismatch, std::move(text));
  return disagreement(op.sequence, std::move(text));
}

// Returns the error, and reports it to ranks that cannot see the difference.
Status OperationQueue::disagreement(uint64_t sequence, std::string text) {
  transport_.tell_disagreement(sequence, text);
  return Status(StatusCode::kMismatch, std::move(text));
}

Status OperationQueue::compare_call(uint64_t sequence, const OperationShape& mine, Rank peer) {
  StatusPage* page = transport_.page(peer);
  const std::optional<OperationShape> theirs = page != nullptr ? page->find(sequence) : std::nullopt;
  if (!theirs || *theirs == mine) return {};
  return disagreement(
      sequence, fmt::format("operation #{}: ranks disagree on {}: rank {} calls {} ({}), rank {} calls {} ({})",
                            sequence, difference(mine, *theirs), rank_, describe_shape(mine), algorithm_name(mine),
                            peer, describe_shape(*theirs), algorithm_name(*theirs)));
}

Status OperationQueue::find_page_mismatch(const Operation& op, bool looks_back) {
  for (Rank r = 0; r < nranks_; ++r) {
    StatusPage* page = r != rank_ ? transport_.page(r) : nullptr;
    if (page == nullptr) continue;
    const uint64_t last = std::min(page->last_posted(), op.sequence);
    const uint64_t first = !looks_back ? last : last - std::min<uint64_t>(last, StatusPage::kRecords) + 1;
    for (uint64_t sequence = first; sequence <= last && sequence < op.sequence; ++sequence)
      if (const std::optional<OperationShape> mine = page_.find(sequence)) RONDO_TRY(compare_call(sequence, *mine, r));
    RONDO_TRY(compare_call(op.sequence, op.shape(), r));
  }
  if (const auto told = transport_.told_disagreement(op.sequence))
    return make_error(StatusCode::kMismatch, "{}: {}", describe(op), *told);
  return {};
}

Status OperationQueue::compare_calls() {
  const uint64_t last = next_sequence_ - 1;
  for (Rank r = 0; r < nranks_ && !has_failed(); ++r) {
    StatusPage* page = r != rank_ ? transport_.page(r) : nullptr;
    if (page == nullptr) continue;
    const uint64_t posted = page->last_posted();
    for (uint64_t s = last - std::min<uint64_t>(last, StatusPage::kRecords) + 1; s <= std::min(last, posted); ++s)
      if (const std::optional<OperationShape> mine = page_.find(s)) RONDO_TRY(compare_call(s, *mine, r));
    const std::optional<OperationShape> more = posted > last ? page->find(last + 1) : std::nullopt;
    if (more)
      return disagreement(last + 1,
                          fmt::format("operation #{}: rank {} calls {} ({}), and rank {} ends its communicator "
                                      "after {} operations: the ranks must make the same calls",
                                      last + 1, r, describe_shape(*more), algorithm_name(*more), rank_, last));
  }
  return {};
}

// Compares the calls at the two ends of a message.
Status OperationQueue::find_pair_mismatch(const Operation& op) {
  const OperationShape& mine = op.shape();
  const Rank peer = mine.root;
  PairPage* page = transport_.pair_page(peer);
  if (page == nullptr) return {};
  const Collective other_end = mine.collective == Collective::kSend ? Collective::kRecv : Collective::kSend;
  const std::optional<OperationShape> theirs = page->find(other_end, rank_, op.sequence);
  if (!theirs || (theirs->count_elems == mine.count_elems && theirs->dtype == mine.dtype)) return {};
  return make_error(StatusCode::kMismatch,
                    "message #{} from rank {} to rank {}: the ranks disagree on {}: rank {} calls {}, rank {} calls {}",
                    op.sequence, mine.collective == Collective::kSend ? rank_ : peer,
                    mine.collective == Collective::kSend ? peer : rank_,
                    theirs->count_elems != mine.count_elems ? "count_elems" : "dtype", rank_, describe_shape(mine),
                    peer, describe_shape(*theirs));
}

// Describes the first lane that waits for a peer, or else a lane that waits for another lane or is in a step.
std::string OperationQueue::blocked_on(const Operation& op) const {
  std::string otherwise = "it has not started";
  const OpenSends::Send* const open = ports_.open_sends().find(OpenSends::of(&op));
  if (op.lanes_left == 0 && open != nullptr)
    return fmt::format("it has done its part, but {} has not taken all of its messages",
                       open->by_address() ? "a rank of this host" : "the network");
  const Program& p = *op.program;
  if (!op.started && is_posted(p.operation))
    return fmt::format("it waits for {} with tag {} from {}",
                       matcher_.is_arriving(op) ? "the rest of the message" : "a message", op.tag,
                       peer_text(p.operation.root));
  for (uint32_t lane = 0; lane < p.lanes.size() && op.started; ++lane) {
    if (p.lanes[lane].empty()) continue;
    const FlightLane l = executor_.look_at(op, lane);
    if (l.state == FlightLane::State::kDone) continue;
    const std::string where =
        fmt::format("step {} of lane {} in loop {} of {} ({})", l.step, lane, l.loop, l.num_loops, verb_name(l.verb));
    if (l.state == FlightLane::State::kData)
      return fmt::format("it waits for data from {} in {}", list_peers(l.peers), where);
    if (l.state == FlightLane::State::kRoom)
      return fmt::format("it waits for space at {} in {}", list_peers(l.peers), where);
    otherwise = (l.state == FlightLane::State::kOrder ? "it waits for another lane in " : "it is in ") + where;
  }
  return otherwise;
}

// Returns every rank that a lane of this operation waits for.
std::vector<PeerWait> OperationQueue::waits_of(const Operation& op) const {
  std::vector<PeerWait> waits;
  const Program& p = *op.program;
  if (!op.started && is_posted(p.operation) && p.operation.root != kAnyPeer)
    waits.push_back({op.sequence, p.operation.root, false, true});
  for (uint32_t lane = 0; lane < p.lanes.size() && op.started; ++lane) {
    if (p.lanes[lane].empty()) continue;
    const FlightLane l = executor_.look_at(op, lane);
    for (const Rank peer : l.peers) {
      const PeerWait w{op.sequence, peer, l.state == FlightLane::State::kRoom, is_point_to_point(&p)};
      if (std::ranges::find(waits, w) == waits.end()) waits.push_back(w);
    }
  }
  return waits;
}

// Returns the ranks that each rank waits for. A late rank makes other ranks late. Status pages show which ranks a rank
// waits for, in this operation or in an earlier one. The end of such a chain, or a stopped process, is the likely
// cause.
std::string OperationQueue::who_waits_for_whom(const Operation& op, std::string* ended) {
  constexpr size_t kMost = 16;  // ranks; a longer message would not be read
  auto get = [](uint64_t& w) { return std::atomic_ref(w).load(std::memory_order_relaxed); };
  const bool pair = is_point_to_point(op.program);
  std::vector<Rank> found;
  auto add = [&](Rank r) {
    if (r >= 0 && r < nranks_ && r != rank_ && std::ranges::find(found, r) == found.end()) found.push_back(r);
  };
  for (const PeerWait& w : waits_of(op)) add(w.peer);
  for (Rank r = 0; r < nranks_ && !pair; ++r)
    if (StatusPage* page = transport_.page(r); page != nullptr && page->last_posted() < op.sequence) add(r);
  std::string text;
  for (size_t i = 0; i < found.size() && i < kMost; ++i) {
    const Rank r = found[i];
    StatusPage* page = transport_.page(r);
    if (page == nullptr) continue;
    const std::string state = process_state(get(page->owner_pid), get(page->owner_pid_namespace));
    if (state == "stopped" || state == "gone") {
      *ended += fmt::format("; rank {}'s process (pid {}) is {}", r, get(page->owner_pid), state);
      continue;
    }
    const uint64_t posted = page->last_posted(), finished = page->last_finished();
    std::vector<Rank> data, room;
    uint64_t where = op.sequence;
    for (const PeerWait& w : page->waits_since(monotonic_ns() - kLongWaitNs)) {
      if (!w.pair && w.sequence <= finished) continue;  // this wait is over
      (w.for_room ? room : data).push_back(w.peer);
      if (!w.pair) where = w.sequence;
      add(w.peer);
    }
    const std::string in = where != op.sequence && !pair ? fmt::format(" in #{}", where) : "";
    if (!data.empty()) text += fmt::format("; rank {} waits for data from {}{}", r, list_peers(data), in);
    if (!room.empty()) text += fmt::format("; rank {} waits for space at {}{}", r, list_peers(room), in);
    if (!data.empty() || !room.empty() || pair || posted < op.sequence) continue;  // who_is_late reports late ranks
    text +=
        fmt::format("; rank {} {}", r, finished >= op.sequence ? "has finished it" : "runs it and waits for no rank");
  }
  return text;
}

// As who_is_late, for a message that matches by its tag.
std::string OperationQueue::who_is_late_to_match(const Operation& op) {
  const OperationShape& mine = op.shape();
  if (mine.collective == Collective::kSend) return fmt::format("; rank {} has not received it", mine.root);
  if (op.started || matcher_.is_arriving(op)) return "; the message has begun to arrive";
  std::string text = mine.root == kAnyPeer ? "; no rank has sent such a message"
                                           : fmt::format("; rank {} has sent no such message", mine.root);
  if (const std::string other = matcher_.describe_unexpected(); !other.empty())
    text += fmt::format("; no recv was called for {}", other);
  PairPage* page = mine.root != kAnyPeer ? transport_.pair_page(mine.root) : nullptr;
  const uint64_t next = received_from_.empty() || mine.root == kAnyPeer ? 1 : received_from_[mine.root] + 1;
  if (page != nullptr && page->find(Collective::kSend, rank_, next))
    text += fmt::format("; rank {} calls send without match_tags: only a recv without match_tags gets its message",
                        mine.root);
  return text;
}

std::string OperationQueue::who_is_late(const Operation& op) {
  const OperationShape& mine = op.shape();
  if (is_matched(mine)) return who_is_late_to_match(op);
  if (is_point_to_point(op.program)) {
    PairPage* page = transport_.pair_page(mine.root);
    const bool sends = mine.collective == Collective::kSend;
    if (page != nullptr && page->find(sends ? Collective::kRecv : Collective::kSend, rank_, op.sequence))
      return "; both ranks have called it";
    if (!sends && matcher_.has_envelope(mine.root))
      return fmt::format("; rank {} calls send with match_tags: only a recv with match_tags gets its message",
                         mine.root);
    if (page == nullptr) return fmt::format("; no response from rank {}", mine.root);
    return fmt::format("; rank {} has not called {} rank {} (call {} of this pair)", mine.root,
                       sends ? "recv from" : "send to", rank_, op.sequence);
  }
  std::string late;
  std::vector<Rank> silent;  // on other hosts; they do not answer, or there is no connection
  for (Rank r = 0; r < nranks_; ++r) {
    if (r == rank_) continue;
    StatusPage* page = transport_.page(r);
    if (page == nullptr) silent.push_back(r);
    if (page == nullptr || page->last_posted() >= op.sequence) continue;
    const uint64_t last = page->last_posted();
    const std::optional<OperationShape> shape = page->find(last);
    late += fmt::format("; rank {} has not called it (its last operation is {})", r,
                        shape ? fmt::format("#{}, {}, {}", last, describe_shape(*shape),
                                            page->last_finished() >= last ? "finished" : "under way")
                              : "none");
  }
  if (!silent.empty()) late += fmt::format("; no response from {}", list_peers(silent));
  return late.empty() ? "; all ranks have called it" : late;
}

std::string OperationQueue::timed_out(const Operation& op, uint64_t waited_ns) {
  std::string ended;  // first in the text, because a forwarded text may be shortened
  const std::string waits = who_waits_for_whom(op, &ended);
  return fmt::format("{} waited {:.1f} s (RONDO_TIMEOUT_S or deadline_s){}{}; {}{}", describe(op),
                     static_cast<double>(waited_ns) * 1e-9, ended, who_is_late(op), blocked_on(op), waits);
}

}  // namespace rondo
