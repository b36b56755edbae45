// Matcher: finds the receive of each message that matches by its tag (rondo_call.match_tags), on one rank.
//
// The sender of such a message first sends an envelope (plan/program.h) on an inline connection. A receive is *posted*
// here until its envelope arrives. The message then goes straight to the receive's buffer. An envelope is read only if
// a posted receive may be for this sender. If its tag is not the right one, the message is *unexpected*: it is received
// into memory of the matcher, so that the envelopes behind it can be read. Later receives look there first.
//
// Thread safety: belongs to the driver. Invariant: a posted receive matches no unexpected message that is not taken.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "plan/planner.h"

namespace rondo {

class OperationQueue;

class Matcher {
 public:
  explicit Matcher(OperationQueue& queue) : queue_(queue) {}
  /// Posts a receive. All calls must have the same planner.
  void post(Operation& op, Planner& planner);
  /// Returns true if receives are posted, or wait for the rest of an unexpected message. The driver then calls step().
  bool has_receives() const { return !posted_.empty() || num_taken_ != 0; }
  /// Reads envelopes and completes receives of unexpected messages. Returns true if something moved.
  bool step();
  /// Returns the receives of has_receives(). The posted ones are first, the oldest first.
  std::vector<Operation*> receives() const;
  /// Returns the operations that receive unexpected messages. Others may be done.
  std::vector<std::shared_ptr<Operation>> arriving() const;
  /// Forgets all receives and messages, because the queue has failed. Returns the receives.
  std::vector<Operation*> give_up();
  /// Returns the unexpected messages that no receive has taken, for an error text.
  std::string describe_unexpected() const;
  /// Returns true if the receive has taken a message that is still arriving.
  bool is_arriving(const Operation& op) const;
  /// Returns true if the next envelope of this rank has arrived.
  bool has_envelope(Rank from);

 private:
  struct Message {
    Rank from;
    Envelope envelope;
    std::unique_ptr<std::byte[]> data;
    std::shared_ptr<Operation> arrival;  // receives the data
    Operation* taken_by = nullptr;       // a receive that waits for the arrival's end
  };
  struct Sender {
    ReadPort* envelopes = nullptr;
    uint64_t num_taken = 0;   // envelopes
    uint32_t num_posted = 0;  // receives from this rank only
  };
  Sender& sender(Rank r);
  void count_posted(const Operation& op, int change);
  bool is_awaited(Rank r) { return num_posted_from_any_ + sender(r).num_posted != 0; }
  bool take_envelope(Rank from);
  void take_message(Rank from, const Envelope& envelope);
  void keep(Rank from, const Envelope& envelope);
  bool agrees(const Operation& op, Rank from, const Envelope& envelope);
  bool plan(Operation& op, Rank from, const Envelope& envelope);
  bool deliver_unexpected();

  OperationQueue& queue_;
  Planner* planner_ = nullptr;
  std::vector<Operation*> posted_;  // in the order of their calls
  std::vector<Sender> senders_;     // by rank; made at the first use
  uint32_t num_posted_from_any_ = 0;
  std::list<Message> unexpected_;  // in the order of arrival
  size_t num_taken_ = 0;           // of unexpected_
  uint64_t longest_deadline_ns_ = 0;
  uint32_t passes_ = 0;
  uint64_t checked_ns_ = 0;
};

}  // namespace rondo
