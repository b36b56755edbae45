// Transport: moves messages of a communicator from one rank to another. src/transport/README.md is the full contract.
//
// A transport owns the memory of its connections. It provides the status pages of the ranks. It reports aborts, deaths
// and departures, and translates addresses of buffers. The engine decides contents, order and waiting, through the FIFO
// protocol (src/protocol/fifo.h) over the transport's FifoViews.
//
// Thread safety: one thread at a time per rank may call the functions. Any thread may use raise_abort, aborted_by,
// departed, find_lost, the status pages and the functions for disagreements and failures.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/fifo.h"
#include "protocol/spin.h"
#include "protocol/zero_copy.h"
#include "rondo/status.h"
#include "rondo/types.h"
#include "trace/operation_record.h"

namespace rondo {

/// The name of a connection, equal on all its ends. A unicast has group 0 and a reader. A multicast has a group above
/// 0, and its reader is -1.
struct ConnectionKey {
  Rank writer = 0;
  Rank reader = -1;
  uint16_t tag = 0;
  uint16_t group = 0;
  bool inline_only = false;  // header lines only: the Inline protocol
  uint8_t channel = 0;       // of a proxied connection, from 1 on (proxy.h)
  friend bool operator==(const ConnectionKey&, const ConnectionKey&) = default;
};

/// The address of a buffer, with the same meaning on every rank of the communicator. It has 16 bytes and is sent in
/// entry credits.
struct RemoteAddress {
  static constexpr uint64_t kNowhere = UINT64_MAX;
  static constexpr uint64_t kByCopy = UINT64_MAX - 1;  // not mapped, but pull() can read it
  static constexpr uint64_t kNothing = UINT64_MAX - 2;  // no buffer
  uint64_t region = kNowhere;                           // kNowhere: no peer can access it
  uint64_t offset_bytes = 0;
};

/// A peer that has died or left, and how that was detected.
struct PeerLoss {
  Rank rank;
  std::string how;
};

/// The local peers: the ranks that share memory with this one, and the transport between them.
struct PeersOnHost {
  class Transport* transport = nullptr;  // nullptr: there are none
  std::vector<int> index;                // by rank: its index in `transport`; -1: no common memory
};

class Proxy;

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;

  /// Makes the connection's memory and publishes it. Its writer calls it once per key. If it fails (kExhausted), it
  /// also raises this rank's abort with the reason, because the peers wait for messages that cannot arrive.
  virtual Expected<FifoView> open_writer(const ConnectionKey& key) = 0;
  /// Returns the same memory for a reader. Never blocks. Returns nothing if the writer has not made it yet: call again.
  virtual std::optional<FifoView> open_reader(const ConnectionKey& key) = 0;
  /// Returns the index of `reader`'s read counter.
  virtual uint32_t counter_index(const ConnectionKey& key, Rank reader) const = 0;

  /// Returns the zero-copy sends of an open connection's writer, one per line; nullptr if not available.
  virtual ZeroCopySend* zero_copy_sends(const ConnectionKey& key) { return nullptr; }
  /// Returns true if the readers of an open connection can pull() from the writer's memory. Zero-copy sends by address
  /// are then possible.
  virtual bool sends_by_address(const ConnectionKey& key) const { return false; }
  /// Returns the posted receive of an open connection's reader; nullptr if not available.
  virtual PostedReceive* posted_receive(const ConnectionKey& key) { return nullptr; }
  /// Ends all zero-copy sends and posted receives. The engine calls it when the current operations fail. When it
  /// returns, the transport no longer accesses the engine's memory, or has printed a warning. It blocks for at most a
  /// second, but with UCX up to 10 s more if it must cut a connection.
  virtual void let_go() {}

  /// Returns rank r's status page; nullptr if this rank cannot read it.
  virtual StatusPage* page(Rank r) = 0;
  /// Returns the status page of rank r's sends and receives; nullptr if this rank cannot read it.
  virtual PairPage* pair_page(Rank r) = 0;
  /// Returns rank r's doorbell; nullptr if this rank cannot wake it.
  virtual Doorbell* bell(Rank r) = 0;

  /// Reports that ranks disagree on the operation `sequence`. `text` names them. Ranks that cannot see this on status
  /// pages get the report now, or when this rank departs.
  virtual void tell_disagreement(uint64_t sequence, std::string_view text) {}
  /// Returns the earliest reported disagreement, if it is on an operation up to `sequence`.
  virtual std::optional<std::string> told_disagreement(uint64_t sequence) { return std::nullopt; }

  /// Reports that this rank's communicator has failed. The others can query the cause when this rank has departed.
  /// Called once.
  virtual void tell_failure(const Status& cause) {}
  /// Returns the cause that the departed rank r has reported; ok if it left without a failure.
  virtual Status parting_failure(Rank r) { return {}; }

  /// Reports to all ranks that rank `by` has aborted.
  virtual void raise_abort(Rank by) = 0;
  virtual std::optional<Rank> aborted_by() = 0;
  /// Returns the reason if the transport itself raised `by`'s abort; empty if the program called abort().
  virtual std::string abort_reason(Rank by) { return {}; }
  /// Returns true if rank r has destroyed its communicator. It then sends nothing more.
  virtual bool departed(Rank r) = 0;
  /// Returns a peer that died. It costs a system call. Therefore only slow waits use it.
  virtual std::optional<PeerLoss> find_lost() = 0;

  /// Allocates memory that every rank can access, or, between hosts, private memory. If ranks are processes, all must
  /// call it, and it waits for them. Another thread may have the driver role meanwhile. Afterwards call adopt_alloc().
  /// kMismatch: the ranks' bytes differ.
  virtual Expected<void*> alloc(uint64_t bytes) = 0;
  /// Makes the memory of the last alloc() known to the functions below.
  virtual void adopt_alloc() {}
  virtual Status free(void* ptr) = 0;
  // Access to memory of other ranks. A transport that has none uses these defaults.
  /// Returns true if all ranks map some memory of this communicator, or may do so. A plan may then be direct. Equal on
  /// all ranks.
  virtual bool may_be_direct() const { return false; }
  /// Returns true if pull() can read any memory of any rank. A plan may then pull. Equal on all ranks, permanently.
  virtual bool can_pull() const { return false; }
  /// Returns the buffer's address for peers; kNowhere if they cannot access all `bytes` of it.
  virtual RemoteAddress describe(const void* ptr, uint64_t bytes) const { return {}; }
  /// Returns rank `peer`'s buffer in this process. The address must not be kByCopy.
  virtual std::byte* resolve(Rank peer, const RemoteAddress& address) const { return nullptr; }
  /// Copies `bytes` from a peer's buffer whose address is kByCopy. Errors: kSystem with the errno's text.
  virtual Status pull(Rank peer, const RemoteAddress& address, uint64_t offset_bytes, void* to, uint64_t bytes) {
    return Status(StatusCode::kInternal, "memory of rank " + std::to_string(peer) + " cannot be read from here");
  }
  /// Keeps an object that peers access, until no rank of the communicator can access it any more. A rank whose process
  /// has ended cannot access it. Any thread may then destroy it.
  virtual void keep(std::shared_ptr<void> what) = 0;
  /// Returns the length of the longest message, equal on all ranks.
  virtual uint32_t longest_message_bytes() const { return 128 * 1024; }
  /// Returns true if messages move only while a thread calls progress(). The driver then calls it in every pass, except
  /// the last one of an operation. It calls rest() when it has no more work.
  virtual bool needs_progress() const { return false; }
  /// Moves sent and received messages. Returns true if something moved. Never blocks.
  virtual bool progress() { return false; }
  /// Delivers the pending messages without the driver. The driver calls it when it leaves.
  virtual void rest() {}
  /// If some ranks share no memory with this one, these return the local peers, and the proxy for devices' messages to
  /// the other ranks (proxy.h). Otherwise they return nothing: all ranks share memory through this transport.
  virtual std::optional<PeersOnHost> local_peers() { return std::nullopt; }
  virtual Proxy* proxy() { return nullptr; }
  /// Returns the communicator's id if all ranks have agreed on it. 0: it is on rank 0's status page.
  virtual uint64_t agreed_id() const { return 0; }
};

/// Returns "rank 3 aborted the communicator", with the reason if there is one.
inline std::string abort_text(Transport& transport, Rank by) {
  const std::string reason = transport.abort_reason(by);
  return "rank " + std::to_string(by) + " aborted the communicator" + (reason.empty() ? "" : ": ") + reason;
}

}  // namespace rondo
