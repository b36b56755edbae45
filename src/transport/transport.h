// Transport: moves messages of a communicator from one rank to another. src/transport/README.md is the full contract.
//
// A transport owns the memory of its connections and nothing else. The engine decides contents, order and waiting,
// through the FIFO protocol (src/protocol/fifo.h) over the transport's FifoViews.
//
// Thread safety: all functions may be called by one thread at a time per rank, except raise_abort, aborted_by,
// departed, find_lost, the status pages and the functions for disagreements and failures, which any thread may use.
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

/// The name of a connection on both of its ends. Unicast: group 0 and a reader; multicast: group > 0, reader -1.
struct ConnectionKey {
  Rank writer = 0;
  Rank reader = -1;
  uint16_t tag = 0;
  uint16_t group = 0;
  bool inline_only = false;  // header lines only: the Inline protocol
  uint8_t channel = 0;       // of a proxied connection, from 1 on (relay.h)
  friend bool operator==(const ConnectionKey&, const ConnectionKey&) = default;
};

/// The address of a buffer in a form with the same meaning for every rank of the communicator. 16 bytes, sent in entry
/// credits.
struct RemoteAddress {
  static constexpr uint64_t kNowhere = UINT64_MAX;
  static constexpr uint64_t kByCopy = UINT64_MAX - 1;  // not mapped, but pull() can read it
  static constexpr uint64_t kNothing = UINT64_MAX - 2;  // no buffer
  uint64_t region = kNowhere;                           // kNowhere: no peer can access it
  uint64_t offset_bytes = 0;
};

/// A peer that no longer answers, and how that was detected.
struct PeerLoss {
  Rank rank;
  std::string how;
};

/// Message sizes of a transport's connections.
struct MessageLimits {
  uint32_t longest_bytes = 128 * 1024;  // the maximum
  /// The network sends so much at once; a slightly longer message takes one more piece. By default slightly less than
  /// the kernel's TCP segment of 64 KiB, so that the header fits too.
  uint32_t piece_bytes = 63 * 1024;
};

/// The local peers: the ranks that share memory with this one, as a transport among them.
struct Mates {
  class Transport* transport = nullptr;  // nullptr: there are none
  std::vector<int> index;                // by rank: its index in `transport`; -1: no common memory
};

class Relay;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;

  /// Makes the connection's memory and publishes it. Called once per key, by the writer. After an error (kExhausted) it
  /// has also raised this rank's abort with the reason, because the peers wait for messages that cannot come.
  virtual Expected<FifoView> open_writer(const ConnectionKey& key) = 0;
  /// The same memory for a reader; nothing if the writer has not made it yet (never blocks; call again).
  virtual std::optional<FifoView> open_reader(const ConnectionKey& key) = 0;
  /// The index of `reader`'s read counter.
  virtual uint32_t counter_index(const ConnectionKey& key, Rank reader) const = 0;

  /// For an open connection: its writer's zero-copy sends, by line; nullptr if not available.
  virtual Loan* loans(const ConnectionKey& key) { return nullptr; }
  /// True if the readers of such a connection can pull() from the writer's memory: zero-copy sends by address are then
  /// possible.
  virtual bool lends_by_address(const ConnectionKey& key) const { return false; }
  /// For an open connection: its reader's posted receive; nullptr if not available.
  virtual Landing* landing(const ConnectionKey& key) { return nullptr; }
  /// Called when the current operations fail: after it returns, their zero-copy sends are not read and their posted
  /// receives are not written any more. It may take a moment.
  virtual void let_go() {}

  /// Rank r's status page; nullptr if it cannot be read from here.
  virtual OperationBoard* board(Rank r) = 0;
  /// The same for its sends and receives.
  virtual PairBoard* pair_board(Rank r) = 0;
  /// Rank r's doorbell; nullptr if it cannot be woken from here.
  virtual Doorbell* bell(Rank r) = 0;

  /// Reports a disagreement of ranks on the operation `sequence`; `text` names them. Ranks that cannot see it on status
  /// pages get it, now or when this rank departs.
  virtual void tell_disagreement(uint64_t sequence, std::string_view text) {}
  /// The earliest reported disagreement, if it is on an operation up to `sequence`.
  virtual std::optional<std::string> told_disagreement(uint64_t sequence) { return std::nullopt; }

  /// This rank's communicator has failed: the others can query the cause once it has departed. Called once.
  virtual void tell_failure(const Status& cause) {}
  /// The cause that the departed rank r has reported; ok if it left without a failure.
  virtual Status parting_failure(Rank r) { return {}; }

  /// Tells all ranks that rank `by` has aborted.
  virtual void raise_abort(Rank by) = 0;
  virtual std::optional<Rank> aborted_by() = 0;
  /// The reason if the transport itself raised `by`'s abort; empty if its caller requested it.
  virtual std::string abort_reason(Rank by) { return {}; }
  /// True if rank r has destroyed its communicator: it sends nothing more.
  virtual bool departed(Rank r) = 0;
  /// A peer that died; costs a system call, therefore used in slow waits only.
  virtual std::optional<PeerLoss> find_lost() = 0;

  /// Memory that every rank can access. Collective if ranks are processes. kMismatch: the ranks' bytes differ.
  virtual Expected<void*> alloc(uint64_t bytes) = 0;
  virtual Status free(void* ptr) = 0;
  /// True if some memory of this communicator is, or may be, mapped by all: then a plan may be direct. Equal on all
  /// ranks.
  virtual bool may_be_direct() const = 0;
  /// True if pull() can read any memory of any rank: then a plan may pull. Equal on all ranks, permanently.
  virtual bool can_pull() const = 0;
  /// The buffer's address for peers; kNowhere if they cannot access all `bytes` of it.
  virtual RemoteAddress describe(const void* ptr, uint64_t bytes) const = 0;
  /// Rank `peer`'s buffer in this process; the address must not be kByCopy.
  virtual std::byte* resolve(Rank peer, const RemoteAddress& address) const = 0;
  /// Copies `bytes` from a peer's buffer whose address is kByCopy. Errors: kSystem with the errno's text.
  virtual Status pull(Rank peer, const RemoteAddress& address, uint64_t offset_bytes, void* to, uint64_t bytes) = 0;
  /// Holds an object that this rank has lent to its peers until no rank of the communicator can access it any more, or
  /// its process has ended. Any thread may release it.
  virtual void keep(std::shared_ptr<void> what) = 0;
  /// Equal on all ranks.
  virtual MessageLimits message_limits() const { return {}; }
  /// True if messages move only while a thread calls progress(): the driver then does so in every pass, except the last
  /// of an operation, and calls rest() when it has no more work.
  virtual bool needs_progress() const { return false; }
  /// Moves sent and received messages. True if something moved. Never blocks.
  virtual bool progress() { return false; }
  /// The driver leaves; pending messages must still arrive.
  virtual void rest() {}
  /// If some ranks share no memory with this one: the local peers, and the proxy for devices' messages to the others
  /// (relay.h). Otherwise nothing: all ranks share memory through this transport.
  virtual std::optional<Mates> mates() { return std::nullopt; }
  virtual Relay* relay() { return nullptr; }
  /// The communicator's number, not 0, known to all ranks; 0: it is on rank 0's status page.
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
