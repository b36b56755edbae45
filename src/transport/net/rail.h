// Rail: one network path from this rank to the ranks without common memory. Each network (network.h) has its own.
// Messages between two ranks arrive once each and intact; no code relies on their order.
//
// The base class counts the pending messages of each peer, stores which peers are lost and why, and seals messages.
// A derived class makes the connections and moves the bytes.
//
// Thread safety: none; RemoteTransport holds one lock around all calls. The sink is called from progress(), push() and
// recall().
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rondo/types.h"
#include "transport/net/message.h"
#include "transport/net/sealer.h"
#include "transport/transport.h"

namespace rondo::net {

/// The route to a peer over one rail.
struct PeerRoute {
  std::string address;  // the peer's address() of this rail
  std::string host;     // its numeric IP address, from the communicator's own connections; may be empty
  bool near = false;    // on this host
};

class Rail {
 public:
  virtual ~Rail() = default;
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;

  /// The address that peers need to reach this rank.
  const std::string& address() const { return address_; }
  /// By rank. `session`: equal on all of them.
  void set_peers(std::vector<PeerRoute> routes, uint64_t session);
  /// Seals all data from now on. A message without a seal of this key for this rank, or one that arrives twice, fails
  /// the communicator. Call before the first message.
  void seal_with(std::unique_ptr<Sealer> sealer) { sealer_ = std::move(sealer); }

  /// Sends a header and data without a copy: both must stay unchanged until the peer has acknowledged them. A zero-copy
  /// send is returned when `data` is no longer read.
  void send(Rank to, const DataHeader& header, const std::byte* data, size_t bytes, ZeroCopySend* zero_copy = nullptr);
  void send_copy(Rank to, Header header, const void* data, size_t bytes);
  /// Works for a bounded time. True if a message has arrived. (Other activity is not counted: over a dead link it may
  /// never end.)
  virtual bool progress() = 0;
  /// At least the sending part of progress().
  virtual void push() = 0;
  /// Returns true if some received bytes are not processed yet. event_fd() does not report these.
  virtual bool has_unread() const { return false; }
  /// Messages not yet handed to the network.
  uint64_t pending() const { return pending_; }
  /// The same for one peer.
  uint32_t pending(Rank to) const { return peers_[static_cast<size_t>(to)].pending; }
  virtual bool connected(Rank to) const = 0;
  /// Messages to this rank no longer arrive.
  bool lost(Rank r) const { return peers_[static_cast<size_t>(r)].lost; }
  /// True if zero-copy sends to this rank are possible.
  virtual bool may_zero_copy(Rank to) const = 0;
  /// Returns all zero-copy sends and stops receiving into callers' buffers. Cuts connections that still hold some after
  /// `quiet_ns` without progress, or at `until_ns` of monotonic_ns(). False: some are still held.
  virtual bool recall(uint64_t quiet_ns, uint64_t until_ns) = 0;
  /// The ranks lost before `before_ns` of monotonic_ns(), with the reasons.
  std::vector<PeerLoss> losses(uint64_t before_ns) const;
  /// True if the kernel or a device has everything that was sent. Call again until then.
  virtual bool flush() = 0;
  /// Closes all connections, by `until_ns` of monotonic_ns(). The sink gets no more messages. False: this process's
  /// memory is still in use, therefore neither it nor this object may ever be freed.
  virtual bool close(uint64_t until_ns) = 0;

  /// event_fd() becomes readable at the next event after arm() returned true. False: there are events already.
  virtual int event_fd() const = 0;
  virtual bool arm() = 0;
  uint64_t session() const { return session_; }

 protected:
  struct Copy {
    DataHeader header;
    std::string data;
  };
  /// A header and data to send, in this order.
  struct Outgoing {
    const void* header = nullptr;
    size_t header_bytes = 0;
    const std::byte* data = nullptr;
    size_t bytes = 0;
    std::unique_ptr<Copy> copy = nullptr;  // owns both, if set
    ZeroCopySend* zero_copy = nullptr;     // to be returned
  };
  Rail(Rank rank, int nranks, Sink& sink, std::string device)
      : rank_(rank), sink_(sink), device_(std::move(device)), peers_(static_cast<size_t>(nranks)) {}
  /// Sends it, or drops it if the peer is lost.
  virtual void post(Rank to, Outgoing what) = 0;
  /// Counts a message to `to` as pending, or no longer.
  void begin_pending(Rank to) { ++pending_, ++peers_[static_cast<size_t>(to)].pending; }
  void end_pending(Rank to) { --pending_, --peers_[static_cast<size_t>(to)].pending; }
  /// If zero_copy is not null, returns it to the engine and counts it as progress.
  void give_back(ZeroCopySend* zero_copy);
  /// The peer is lost from now on. The first reason counts; without one, losses() does not report it.
  void lose(Rank r, std::string_view how);
  /// True for a valid header of a message from rank `from` to this one (negative: from any rank).
  bool plausible(const DataHeader& h, size_t header_bytes, Rank from = -1) const;
  bool is_sealed() const { return sealer_ != nullptr; }
  /// Opens a sealed message into unsealed(). False: it was altered, or arrived twice.
  bool unseal(Rank from, std::string_view header, const void* data, size_t bytes);
  /// A proof that lets rank `to` detect changes of `text`, which stays readable: kExtraBytes of the Sealer.
  std::string proof_of(Rank to, std::string_view text) { return sealer_->seal(to, text, nullptr, 0); }
  bool is_proven(Rank from, std::string_view text, const void* proof) {
    return sealer_->open(from, text, static_cast<const std::byte*>(proof), Sealer::kExtraBytes, nullptr);
  }
  /// Data between rank `from` and this one were altered: fails all ranks with this error.
  void tampered(Rank from);
  const std::string& unsealed() const { return unsealed_; }

  const Rank rank_;
  Sink& sink_;
  const std::string device_;  // as its owner names it; empty: any
  std::string address_;
  std::vector<PeerRoute> routes_;  // by rank
  uint64_t moves_ = 0;             // messages received and zero-copy sends returned
  bool closing_ = false;

 private:
  struct Peer {
    uint32_t pending = 0;
    bool lost = false;
    uint64_t lost_ns = 0;
    std::string how;
  };
  void post_copy(Rank to, const DataHeader& header, size_t header_bytes, const void* data, size_t bytes);
  std::vector<Peer> peers_;  // by rank
  uint64_t pending_ = 0;     // of all peers
  uint64_t session_ = 0;
  std::unique_ptr<Sealer> sealer_;
  std::string unsealed_;  // data of the current message
};

}  // namespace rondo::net
