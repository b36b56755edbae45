// Rail: one way from this rank to the ranks that share no memory with it. UcxRail goes through UCX, TcpRail through
// sockets of our own. Messages between two ranks arrive once each, and intact; nothing here relies on their order.
//
// Thread safety: none; RemoteTransport holds one lock around all calls. The sink is called from progress() and push().
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

/// How a rank reaches one of its peers over one rail.
struct PeerRoute {
  std::string address;  // what the peer's rail said of itself
  std::string host;     // its numeric IP address, as the communicator's own connections found it; perhaps empty
  bool near = false;    // on this host
};

class Rail {
 public:
  virtual ~Rail() = default;
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;

  /// What the peers need to reach this rank.
  const std::string& address() const { return address_; }
  /// By rank. `session`: equal on all of them.
  void set_peers(std::vector<PeerRoute> routes, uint64_t session);
  /// From now on all data are sealed. What a peer has not sealed with this key for this rank, or comes twice, fails the
  /// communicator. Before the first message.
  void seal_with(std::unique_ptr<Sealer> sealer) { sealer_ = std::move(sealer); }

  /// Sends a header and data that stay as they are until the peer has answered for them: `header` and `data` are read
  /// until they are out. What is lent is given back when `data` are read no more.
  void send(Rank to, const DataHeader& header, const std::byte* data, size_t bytes, Lent* lent = nullptr);
  /// Sends a copy.
  void send_copy(Rank to, Header header, const void* data, size_t bytes);
  /// Works for a bounded while. True when a message has come: that the network is busy says nothing, since over a dead
  /// link it may never rest.
  virtual bool progress() = 0;
  /// Of progress() at least what sends.
  virtual void push() = 0;
  /// Something has been read and not yet been looked at, of which event_fd() does not tell.
  virtual bool has_unread() const { return false; }
  /// Messages that have not been taken off our hands.
  uint64_t pending() const { return pending_; }
  /// The same of one peer.
  virtual uint32_t pending(Rank to) const = 0;
  virtual bool connected(Rank to) const = 0;
  /// Nothing that is sent there arrives.
  virtual bool lost(Rank r) const = 0;
  /// True for ranks to which data may be lent.
  virtual bool may_lend(Rank to) const = 0;
  /// All loans come back, and nothing is received into callers' buffers any more. Connections that keep some although
  /// none has come back for `quiet_ns`, or not all within `limit_ns`, are cut. False: some are kept in spite of that.
  virtual bool recall(uint64_t quiet_ns, uint64_t limit_ns) = 0;
  /// The ranks that were lost before `before_ns` of monotonic_ns(), and how.
  virtual std::vector<PeerLoss> losses(uint64_t before_ns) const = 0;
  /// True when the kernel, or a device, has all that was sent. Ask again until then.
  virtual bool flush() = 0;
  /// Closes all connections within `limit_ns`. False: memory of ours is still read or written, so neither this nor that
  /// may ever be freed. No message is told to the sink any more.
  virtual bool close(uint64_t limit_ns) = 0;

  /// A descriptor that becomes readable when there is news, once arm() has said true; false: there is some already.
  int event_fd() const { return event_fd_; }
  virtual bool arm() = 0;
  uint64_t session() const { return session_; }

 protected:
  struct Copy {
    DataHeader header;
    std::string data;
    void* endpoint = nullptr;  // the rail's own
  };
  Rail(Rank rank, Sink& sink, std::string device) : rank_(rank), sink_(sink), device_(std::move(device)) {}
  /// Sends a message: header, then data. `copy`: both lie there, and go with it. With `lent` the loan is given back.
  virtual void post(Rank to, const void* header, size_t header_bytes, const void* data, size_t bytes,
                    std::unique_ptr<Copy> copy, Lent* lent) = 0;
  /// True for the header of a message that rank `from` may have sent to this one; any rank where `from` is negative.
  bool plausible(const DataHeader& h, size_t header_bytes, Rank from = -1) const;
  bool is_sealed() const { return sealer_ != nullptr; }
  /// Opens a sealed message into unsealed(). False: it was altered, or comes twice.
  bool unseal(Rank from, std::string_view header, const void* data, size_t bytes);
  /// What lets rank `to` notice whether `text`, which stays readable, was altered: kExtraBytes of the Sealer.
  std::string proof_of(Rank to, std::string_view text) { return sealer_->seal(to, text, nullptr, 0); }
  bool is_proven(Rank from, std::string_view text, const void* proof) {
    return sealer_->open(from, text, static_cast<const std::byte*>(proof), Sealer::kExtraBytes, nullptr);
  }
  /// Somebody alters what travels between rank `from` and this one: all ranks fail, and say so.
  void tampered(Rank from);
  const std::string& unsealed() const { return unsealed_; }
  /// "rank 3 was lost: <how>"
  PeerLoss loss(Rank r, std::string_view how) const;

  const Rank rank_;
  Sink& sink_;
  const std::string device_;  // as its owner names it; empty: whichever there is
  std::string address_;
  int event_fd_ = -1;
  std::vector<PeerRoute> routes_;  // by rank
  uint64_t pending_ = 0;
  uint64_t moves_ = 0;  // messages that came, and loans that came back
  bool closing_ = false;

 private:
  void post_copy(Rank to, const DataHeader& header, size_t header_bytes, const void* data, size_t bytes);
  uint64_t session_ = 0;
  std::unique_ptr<Sealer> sealer_;
  std::string unsealed_;  // the data of the message at hand
};

}  // namespace rondo::net
