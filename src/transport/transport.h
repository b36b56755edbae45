// Transport: how messages of a communicator get from one rank to another. src/transport/README.md is the full contract.
//
// A transport owns the memory of its connections and nothing else: what is sent, in which order and when to wait is the
// engine's business, through the FIFO protocol (src/protocol/fifo.h) over the FifoViews that a transport hands out.
//
// Thread safety: all functions may be called by one thread at a time per rank, except raise_abort, aborted_by,
// departed, find_lost, the boards and what is told of disagreements and failures, which any thread may use.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/fifo.h"
#include "protocol/lending.h"
#include "protocol/spin.h"
#include "rondo/status.h"
#include "rondo/types.h"
#include "trace/operation_record.h"
#include "trace/pair_record.h"

namespace rondo {

/// Names a connection on both of its ends. Unicast: group 0 and a reader; multicast: group > 0, reader -1.
struct ConnectionKey {
  Rank writer = 0;
  Rank reader = -1;
  uint16_t tag = 0;
  uint16_t group = 0;
  bool inline_only = false;  // header lines alone: the Inline protocol
  uint8_t channel = 0;       // of a relayed connection, from 1 on (relay.h)
  friend bool operator==(const ConnectionKey&, const ConnectionKey&) = default;
};

/// Where a buffer stands, in a form that means the same to every rank of the communicator. 16 bytes: it travels in
/// entry credits.
struct RemoteAddress {
  static constexpr uint64_t kNowhere = UINT64_MAX;
  static constexpr uint64_t kByCopy = UINT64_MAX - 1;  // not mapped, but pull() can read it
  static constexpr uint64_t kNothing = UINT64_MAX - 2;  // no buffer at all
  uint64_t region = kNowhere;  // kNowhere: no peer can reach it
  uint64_t offset_bytes = 0;
};

/// A peer that will not answer any more, and how that was seen.
struct PeerLoss {
  Rank rank;
  std::string how;
};

/// The ranks that share memory with this one, as a transport among them.
struct Mates {
  class Transport* transport = nullptr;  // nullptr: this rank is alone
  std::vector<int> index;                // by rank: its place in `transport`; -1: no common memory
};

class Relay;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;

  /// Makes the connection's memory and publishes it. Called once per key, by the writer. On an error (kExhausted) it
  /// has also raised this rank's abort, with the reason, since the peers will wait for what can never come.
  virtual Expected<FifoView> open_writer(const ConnectionKey& key) = 0;
  /// The same memory seen by a reader; nothing while the writer has not made it yet (ask again: never blocks).
  virtual std::optional<FifoView> open_reader(const ConnectionKey& key) = 0;
  /// Which read counter of a connection belongs to `reader`.
  virtual uint32_t counter_index(const ConnectionKey& key, Rank reader) const = 0;

  /// Of a connection that is open: where its writer may lend messages, by line; nullptr where it may not.
  virtual Loan* loans(const ConnectionKey& key) { return nullptr; }
  /// Whether the readers of such a connection can read the writer's memory with pull(): then its messages may be lent
  /// by their address.
  virtual bool lends_by_address(const ConnectionKey& key) const { return false; }
  /// Likewise where its reader says what the next message's place is.
  virtual Landing* landing(const ConnectionKey& key) { return nullptr; }
  /// The operations under way end in an error: once this has returned, what they have lent is not read and nothing
  /// lands any more. It may take a moment.
  virtual void let_go() {}

  /// What rank r is doing, as it posted it; nullptr where r's memory cannot be read from here.
  virtual OperationBoard* board(Rank r) = 0;
  /// Its sends and receives, likewise.
  virtual PairBoard* pair_board(Rank r) = 0;
  /// Where rank r sleeps; nullptr where it cannot be woken from here.
  virtual Doorbell* bell(Rank r) = 0;

  /// Ranks disagree on an operation of this place in their order; `text` names them. Those are told so who could not
  /// see it on boards, now or when this rank leaves.
  virtual void tell_disagreement(uint64_t sequence, std::string_view text) {}
  /// What this rank was told of the earliest one, where that is of an operation up to `sequence`.
  virtual std::optional<std::string> told_disagreement(uint64_t sequence) { return std::nullopt; }

  /// This rank's communicator has failed: the others can ask for the cause once it has departed. Called once.
  virtual void tell_failure(const Status& cause) {}
  /// The cause that rank r, which has departed, has told; ok if it left without a failure.
  virtual Status parting_failure(Rank r) { return {}; }

  /// Tells all ranks that rank `by` has aborted.
  virtual void raise_abort(Rank by) = 0;
  virtual std::optional<Rank> aborted_by() = 0;
  /// Why the transport itself raised `by`'s abort; empty when its caller asked for it.
  virtual std::string abort_reason(Rank by) { return {}; }
  /// True when rank r has destroyed its communicator: what it has not sent by then, it will not send.
  virtual bool departed(Rank r) = 0;
  /// A peer that died; costs a system call, so it is asked in slow waits only.
  virtual std::optional<PeerLoss> find_lost() = 0;

  /// Memory that every rank reaches. Collective where ranks are processes. kMismatch: the ranks' bytes differ.
  virtual Expected<void*> alloc(uint64_t bytes) = 0;
  virtual Status free(void* ptr) = 0;
  /// True when some memory of this communicator is, or may be, mapped by all: then a plan may be direct. Equal on all
  /// ranks.
  virtual bool may_be_direct() const = 0;
  /// True when any memory of any rank can be read with pull(): then a plan may pull. Equal on all ranks, for good.
  virtual bool can_pull() const = 0;
  /// The buffer's address for peers, kNowhere when they cannot reach all `bytes` of it.
  virtual RemoteAddress describe(const void* ptr, uint64_t bytes) const = 0;
  /// Rank `peer`'s buffer as this process sees it; the address is not kByCopy.
  virtual std::byte* resolve(Rank peer, const RemoteAddress& address) const = 0;
  /// Copies `bytes` from a peer's buffer whose address is kByCopy. Errors: kSystem with the errno's text.
  virtual Status pull(Rank peer, const RemoteAddress& address, uint64_t offset_bytes, void* to, uint64_t bytes) = 0;
  /// Holds what this rank has lent to its peers until no rank of the communicator can touch it any more, or its process
  /// has ended. It is given back in whichever thread finds that out.
  virtual void keep(std::shared_ptr<void> what) = 0;
  /// The longest message that its connections take; equal on all ranks.
  virtual uint32_t longest_message_bytes() const { return 128 * 1024; }
  /// True when messages travel only while somebody calls progress(): then the driver does, in every pass, but for the
  /// last of an operation, and rest() when it has nothing more to do.
  virtual bool needs_progress() const { return false; }
  /// Carries what was posted and what has come. True when something moved. Never blocks.
  virtual bool progress() { return false; }
  /// The driver goes; what is under way must arrive all the same.
  virtual void rest() {}
  /// Where some ranks share no memory with this one: those that do, and what carries devices' messages to the others
  /// (relay.h). Else nothing: all ranks share memory through this transport.
  virtual std::optional<Mates> mates() { return std::nullopt; }
  virtual Relay* relay() { return nullptr; }
  /// A number, not 0, that all ranks know and that names the communicator; 0: rank 0's board has one.
  virtual uint64_t agreed_id() const { return 0; }
  /// Bytes of staging memory that this rank has set up so far.
  virtual uint64_t staging_bytes() const = 0;
};

/// "rank 3 aborted the communicator", with the reason if there is one.
inline std::string abort_text(Transport& transport, Rank by) {
  const std::string reason = transport.abort_reason(by);
  return "rank " + std::to_string(by) + " aborted the communicator" + (reason.empty() ? "" : ": ") + reason;
}

}  // namespace rondo
