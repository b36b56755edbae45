// OperationQueue: the ordered queue of operations of a rank's communicator, and its driver role.
//
// Only the thread with the driver role (drive/leave) may plan, admit and step operations. A lone blocking call keeps
// the role until it is done. Other waiting threads take it for each pass. The progress thread takes it only while no
// thread waits.
//
// Operations start in order. They have a number in this order. Sends and receives have numbers of their own, because
// they are not part of the order that all ranks share. An operation may start while earlier ones run, if none of them
// writes memory that another one reads or writes. A collective with a direct program or a fallback does not run beside
// other collectives. On a connection that operations share, a later one waits for the steps of the earlier ones. A
// receive that matches by its tag starts when its message arrives (matcher.h). If an operation fails, the communicator
// refuses all further work with that error, because its ranks no longer agree on the messages of their connections.
//
// Thread safety: from any thread: drive(), leave(), rest(), contend(), stop_contending(), contended(), needs_helper(),
// set_helper(), outstanding(), flight_record(false), want_flight(), has_failed(), failure(), cause(), and accessors of
// constants. All other functions only from the driver.
#pragma once

#include <atomic>
#include <deque>
#include <span>

#include "engine/executor.h"
#include "engine/matcher.h"
#include "protocol/spin.h"
#include "trace/flight_record.h"

namespace rondo {

class ProgressThread;
class Tracing;

class OperationQueue {
 public:
  OperationQueue(Rank rank, int nranks, Transport& transport, const SpinSettings& spin)
      : rank_(rank),
        nranks_(nranks),
        transport_(transport),
        needs_progress_(transport.needs_progress()),
        spin_(spin),
        ports_(rank, transport),
        executor_(rank, nranks, ports_),
        page_(*transport.page(rank)),
        pair_page_(*transport.pair_page(rank)) {
    for (Rank r = 0; r < nranks; ++r) bells_.push_back(transport.bell(r));
    executor_.set_oversubscribed(spin.oversubscribed);
    sign_page();
  }

  // The driver role.
  bool drive() {
    return driver_.load(std::memory_order_relaxed) == 0 && driver_.exchange(1, std::memory_order_acquire) == 0;
  }
  void leave() { driver_.store(0, std::memory_order_release); }
  /// Ends the driver's work. The transport completes outstanding messages without it.
  void rest() {
    if (needs_progress_) [[unlikely]]
      transport_.rest();
  }
  /// Returns true if programs may run in their `once` form. That form does not move messages of the transport.
  bool may_run_once() const { return !needs_progress_; }
  /// Requests the role for a waiting thread. The helper does not take it until stop_contending().
  void contend() { contenders_.fetch_add(1); }
  void stop_contending() {
    if (contenders_.fetch_sub(1) == 1 && outstanding() != 0) kick_helper();
  }
  bool contended() const { return contenders_.load() != 0; }
  bool needs_helper() const { return outstanding() != 0 && !contended(); }
  /// Sets the thread that drives while no thread waits. Set it before the first operation that needs help, and to
  /// nullptr after the last.
  void set_helper(ProgressThread* helper) { helper_.store(helper, std::memory_order_release); }
  /// Returns the number of operations that are admitted and not done.
  int outstanding() const { return outstanding_.load(std::memory_order_acquire); }

  // For the driver:
  /// Gives the operation its number and adds it to the queue. The operation must live until it is done.
  void admit(Operation& op);
  /// Posts a receive that matches by its tag. It starts when its message has arrived, whatever the order of the other
  /// operations. It must live until it is done.
  void post(Operation& op, Planner& planner);
  /// Runs one pass over all operations that may run. Returns true if a lane advanced, an operation ended or the
  /// transport moved something.
  bool step();
  bool idle() const { return outstanding_.load(std::memory_order_relaxed) == 0; }
  /// Returns the operations that receive messages for which no receive was called.
  std::vector<std::shared_ptr<Operation>> arriving_unexpected() const { return matcher_.arriving(); }
  /// These run one operation of a blocking call on an idle queue, without admission. Call begin_alone, then step_alone
  /// until op.done.
  void begin_alone(Operation& op);
  bool step_alone(Operation& op);
  /// Ends every operation of the queue, and all later ones, with `status`. Peers get `cause` when this rank leaves.
  void fail(const Status& status, const Status& cause);
  void fail(const Status& status) { fail(status, status); }
  /// Checks for an abort, a mismatch, a lost peer and the end of the deadline. Fails the queue if it finds one. Call it
  /// about once a millisecond during a long wait. waited_ns: time since the caller last moved.
  void diagnose(uint64_t waited_ns);
  /// Returns the running operations and the visible state of the other ranks. `lanes`: true if the caller drives.
  /// Otherwise the record does not contain the running operations, because they may end at any moment.
  FlightRecord flight_record(bool lanes);
  /// Compares this rank's calls with the other ranks' calls, as far as their status pages show them. Call it when this
  /// rank makes no more calls. O(ranks). Errors: kMismatch.
  Status compare_calls();
  /// Returns an id of the communicator, equal on all its ranks. 0 until rank 0 has made its queue.
  uint64_t communicator_id();
  /// Sets the observer. The driver calls it on a failure before the operations end.
  void set_observer(Tracing* observer) { observer_ = observer; }
  /// Requests a call of the observer's flight_wanted() by the driver. A waiting driver checks this about once a
  /// millisecond. Any thread may call it.
  void want_flight() { flight_wanted_.store(true, std::memory_order_relaxed); }
  /// Moves this thread to another core if ranks are distributed unevenly over their cores. On several hosts a rank
  /// returns to its home core, because it does not know the cores of all other ranks.
  void even_out() {
    if (spin_.home_cpu >= 0) go_to_cpu(spin_.home_cpu);
    else rondo::even_out(bells_, static_cast<size_t>(rank_));
  }
  /// Returns true, and fails the queue, if an abort was raised.
  bool check_abort();
  /// Returns a number that changes when the oldest operation moves; 0: there is none.
  uint64_t place_of_oldest();

  /// Returns ok, or the reason why the communicator refuses work.
  Status failure() const;
  /// Returns the cause that peers get; ok if there is none.
  Status cause() const { return has_failed() ? cause_ : Status(); }
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }
  Rank rank() const { return rank_; }
  int nranks() const { return nranks_; }
  PortTable& ports() { return ports_; }
  Executor& executor() { return executor_; }
  Transport& transport() { return transport_; }
  const SpinSettings& spin() const { return spin_; }
  Doorbell* bell() { return transport_.bell(rank_); }

 private:
  friend class HostBackend;  // for HostBackend::run_once()
  friend class Matcher;
  friend struct LaneByLane;  // tests/engine/cooperative_test.cc steps single lanes
  void kick_helper();
  bool may_start(size_t index) const;
  void begin(Operation& op);
  bool start(size_t index);
  void start_at_once(Operation& op);
  bool retire_if_done(size_t index);
  bool is_complete(Operation& op);
  void reserve_turns(Operation& op);
  bool step_lanes(Operation& op);
  static bool receives_next(const Operation& op, uint32_t lane);
  void number(Operation& op) {
    op.sequence = is_point_to_point(op.program) ? next_in_pair(op) : next_sequence_++;
    op.call_index = call_index(op.sequence);
    op.announced = false;
  }
  uint64_t next_in_pair(const Operation& op);
  static bool is_point_to_point(const Program* p) { return rondo::is_point_to_point(p->operation.collective); }
  /// Posts the operation on the status page. Call it after its first messages are sent, so that it adds no latency.
  void announce(Operation& op) {
    if (op.announced) return;
    op.announced = true;
    if (is_matched(op.program->operation)) [[unlikely]]
      return;
    if (is_point_to_point(op.program)) [[unlikely]]
      pair_page_.post(op.sequence, op.shape(), op.tag);
    else page_.post(op.sequence, op.shape(), op.tag);
  }
  void finish(const Operation& op) {
    if (!is_point_to_point(op.program)) [[likely]]
      page_.finish(op.sequence, all_finished());
  }
  /// Returns the number of the last collective before the first unfinished one. Collectives may finish out of order.
  uint64_t all_finished() const {
    for (const Operation* o : active_)
      if (!is_point_to_point(o->program)) return o->sequence - 1;
    return next_sequence_ - 1;
  }
  void sign_page();
  FlightCurrent look_at(const Operation& op);
  void complete(Operation& op, Status status);
  Operation* oldest() {
    if (alone_ != nullptr) return alone_;
    if (!active_.empty()) return active_.front();
    return matcher_.has_receives() ? matcher_.receives().front() : nullptr;
  }
  void diagnose(Operation& op, uint64_t waited_ns);
  void check_receives(uint64_t waited_ns);
  std::optional<PeerLoss> find_lost(const Operation& op, uint64_t waited_ns, Status* cause) const;
  Status find_mismatch(const Operation& op, uint64_t waited_ns, bool looks_back);
  Status find_page_mismatch(const Operation& op, bool looks_back);
  Status compare_call(uint64_t sequence, const OperationShape& mine, Rank peer);
  Status disagreement(uint64_t sequence, std::string text);
  Status find_pair_mismatch(const Operation& op);
  std::string who_is_late(const Operation& op);
  std::string who_is_late_to_match(const Operation& op);
  std::string timed_out(const Operation& op, uint64_t waited_ns);
  std::string describe(const Operation& op) const;
  std::string blocked_on(const Operation& op) const;
  std::vector<PeerWait> waits_of(const Operation& op) const;
  /// Adds stopped or ended processes to `ended`.
  std::string who_waits_for_whom(const Operation& op, std::string* ended);

  Rank rank_;
  int nranks_;
  Transport& transport_;
  const bool needs_progress_;  // the driver moves the transport's messages
  SpinSettings spin_;
  PortTable ports_;
  Executor executor_;
  StatusPage& page_;  // this rank's status pages
  PairPage& pair_page_;
  std::vector<const Doorbell*> bells_;  // by rank
  uint64_t next_sequence_ = 1;
  // Number of calls, by peer; made with the first call. sent_to_ also has the matched ones, from `nranks_` on.
  std::vector<uint64_t> sent_to_, received_from_;
  std::deque<Operation*> active_;  // in order; done ones are removed
  Operation* alone_ = nullptr;     // a blocking call's operation, which is never in active_
  Matcher matcher_{*this};
  size_t next_receive_ = 0;  // of matcher_, to be diagnosed
  alignas(64) std::atomic<uint32_t> driver_{0};
  std::atomic<int> contenders_{0};
  std::atomic<ProgressThread*> helper_{nullptr};
  std::atomic<int> outstanding_{0};
  const ClockPair made_ = read_clock_pair();  // with a later pair: the length of a tick
  Tracing* observer_ = nullptr;
  std::atomic<bool> flight_wanted_{false};
  std::atomic<bool> failed_{false};
  Status failure_, cause_;  // written once, before failed_
};

/// Watches the queues of a wait. Takes the driver role of a queue to check it.
class QueueWatch final : public WaitObserver {
 public:
  explicit QueueWatch(std::span<OperationQueue* const> queues) : queues_(queues) {
    for (OperationQueue* q : queues.subspan(1)) more_bells_.push_back(q->bell());
  }
  /// Returns the bells of all queues but the first.
  std::span<Doorbell* const> more_bells() const { return more_bells_; }
  /// Call it after every pass over the queues: one operation may be stuck while others move. About once a millisecond,
  /// checks those whose oldest operation has not moved since the last time.
  void end_pass() {
    if (++passes_ % 64 == 0) find_stuck();
  }
  bool urgent() override {
    for (OperationQueue* q : queues_)
      if (q->transport().aborted_by() && q->drive()) {
        q->check_abort();
        q->leave();
      }
    return false;
  }
  bool check_wait(uint64_t waited_ns) override {
    for (OperationQueue* q : queues_)
      if (q->drive()) {
        q->diagnose(waited_ns);
        q->leave();
      }
    return false;
  }

 private:
  void find_stuck();
  const std::span<OperationQueue* const> queues_;
  std::vector<Doorbell*> more_bells_;
  uint32_t passes_ = 0;
  uint64_t checked_ns_ = 0;
  std::vector<uint64_t> places_;  // at the last check, by queue
};

}  // namespace rondo
