// Connections between ranks without common memory: private FIFOs on both sides, kept equal by messages.
//
//   writer's FIFO (here)  --kLines, kData-->  replica (there)       lines, flags, data at the same offsets of the ring
//   read counter  (here)  <-----kCredit-----  read counter (there)
//
// The engine uses the FIFO protocol on memory of its own process on either side. carry() sends posted messages;
// arrived() stores received ones, the flag or the counter last. A message contains its connection's ConnectionKey and
// its step. Therefore messages may arrive in any order. A replica is made on first use, by its reader or by its first
// message.
//
// A message is sent from the ring and stays there until its credit arrives. One credit serves several messages
// (send_credits). If nothing else moves, the reader sends all credits, because a writer may wait for any: they show
// the free space in the ring.
//
// A zero-copy message is sent from the caller's buffer, and a message with a posted receive goes to its destination;
// the others pass through the ring (protocol/zero_copy.h). A multicast FIFO has a replica for each reader. For a
// proxied connection (transport/proxy.h) both ends provide the memory.
//
// Thread safety: open_*, carry, arrived under the owner's lock. The FIFOs' memory: as the protocol requires.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "transport/net/rail_set.h"
#include "transport/pool.h"
#include "transport/segment.h"
#include "transport/transport.h"

namespace rondo::net {

/// `other` is the rank at the far end of one rank's connection: reader or writer.
constexpr uint64_t pack(const ConnectionKey& k, Rank other) {
  return static_cast<uint64_t>(other) << 40 | static_cast<uint64_t>(k.tag) << 24 | static_cast<uint64_t>(k.group) << 8 |
         static_cast<uint64_t>(k.channel) << 1 | static_cast<uint64_t>(k.inline_only);
}
/// The header of a message of this connection.
Header header_of(MessageKind kind, const ConnectionKey& k, uint64_t step);
/// The connection from `writer` to `reader` that a message belongs to.
inline ConnectionKey key_of(const Header& h, Rank writer, Rank reader) {
  return {writer, h.group == 0 ? reader : -1, h.tag, h.group, h.inline_only != 0, static_cast<uint8_t>(h.channel)};
}

class RemoteFifos {
 public:
  RemoteFifos(Rank rank, int nranks, std::shared_ptr<StagingPool> pool)
      : rank_(rank),
        nranks_(nranks),
        layout_(nranks),
        pool_(std::move(pool)),
        sent_(static_cast<size_t>(nranks)),
        received_(static_cast<size_t>(nranks)),
        has_data_for_(static_cast<size_t>(nranks)) {}
  /// Close the rails first: their messages refer to this object.
  ~RemoteFifos() { pool_->give_back(taken_); }
  RemoteFifos(const RemoteFifos&) = delete;
  RemoteFifos& operator=(const RemoteFifos&) = delete;

  uint32_t longest_message_bytes() const { return layout_.longest_message_bytes; }
  /// Call it before the first connection is opened, with the same value on all ranks.
  void set_longest_message(uint32_t bytes) { layout_.longest_message_bytes = bytes; }
  /// A connection that this rank writes to `readers`. Errors: those of the pool.
  Expected<FifoView> open_writer(const ConnectionKey& key, const std::vector<Rank>& readers);
  /// The replica of a connection that this rank reads. If this rank also writes it: the writer's FIFO, once it exists.
  Expected<std::optional<FifoView>> open_reader(const ConnectionKey& key);

  /// For proxied connections: from now on, this object sends from these views or stores into them. The first view is
  /// channel key.channel + 1.
  void adopt_writer(ConnectionKey key, std::span<const FifoView> channels, std::span<const Rank> readers);
  void adopt_reader(ConnectionKey key, std::span<const FifoView> channels);

  /// Return an open connection's zero-copy sends or posted receive; nullptr if it uses only the ring.
  ZeroCopySend* zero_copy_sends(const ConnectionKey& key);
  PostedReceive* posted_receive(const ConnectionKey& key);
  /// Disables posted receives.
  void let_go() { let_go_ = true; }

  /// Sends new messages and credits; true if there were any.
  bool carry(RailSet& rails);
  /// Sends all pending credits, or only those that are due; true if there were any.
  enum class Credits : uint8_t { kDue, kAll };
  bool send_credits(RailSet& rails, Credits which);
  /// Returns true if a posted message has not been sent. Ignores credits.
  bool has_unsent() const;

  /// The destination of a kData message. Errors: as arrived().
  Expected<ReceiveTarget> place(const Header& header, const HeaderLine& line, size_t bytes, PostedReceiveUse use);
  /// For kLines, kData, kCredit. Errors: the pool's, if a replica cannot be made; kInternal for an invalid message.
  Status arrived(const Header& header, const HeaderLine* line, const std::byte* data, size_t bytes);

  /// Lines (kLines) and messages (kData, kSlot) sent to a rank, and received from it.
  uint64_t sent(Rank to) const { return sent_[static_cast<size_t>(to)]; }
  void count_sent(Rank to) { ++sent_[static_cast<size_t>(to)]; }
  void count_received(Rank from) { ++received_[static_cast<size_t>(from)]; }
  uint64_t received(Rank from) const { return received_[static_cast<size_t>(from)]; }

 private:
  struct SendState {  // to one reader
    ConnectionKey key;
    Rank reader;
    FifoView view;
    uint64_t step = 0;                        // the next to be sent
    std::vector<DataHeader> headers = {};     // by line; must stay until they are sent
    ZeroCopySend* zero_copy_sends = nullptr;  // by line; shared by a multicast's readers. nullptr: only the ring
    uint32_t counter() const { return key.group == 0 ? 0 : static_cast<uint32_t>(reader); }
  };
  struct Replica {
    ConnectionKey key;
    FifoView view;
    uint64_t credited_steps = 0;  // steps already reported to the writer as read
    uint64_t last_bytes = 0;  // of data
    // The last message that was placed before it was complete went to a posted receive, or waits for one.
    bool used_posted_receive = false;
    PostedReceive posted_receive;
    /// Returns true if the writer may find no space in the ring without a credit for the steps before `read`.
    bool writer_may_lack_space(uint64_t read) const;
  };
  void add_outgoing(const ConnectionKey& key, Rank reader, const FifoView& view, ZeroCopySend* zero_copy_sends);
  Expected<FifoView> make(const ConnectionKey& key, uint32_t num_counters);
  Expected<std::byte*> carve(StagingPool::Use use, uint64_t bytes);
  Replica* add_replica(const ConnectionKey& key, const FifoView& view);
  Expected<Replica*> replica(const ConnectionKey& key);
  bool carry_lines(SendState& o, RailSet& rails);
  bool carry_data(SendState& o, RailSet& rails);

  const Rank rank_;
  const int nranks_;
  SegmentLayout layout_;
  const std::shared_ptr<StagingPool> pool_;
  std::vector<StagingPool::Range> taken_;
  RangeCutter cutter_;
  bool let_go_ = false;
  std::vector<std::unique_ptr<SendState>> outgoing_;
  std::unordered_map<uint64_t, std::vector<ZeroCopySend>> zero_copy_sends_;  // by packed key
  std::unordered_map<uint64_t, FifoView> to_itself_;                 // by packed key
  std::unordered_map<uint64_t, std::unique_ptr<Replica>> replicas_;  // by packed key
  std::unordered_map<uint64_t, SendState*> by_reader_;               // by packed key and reader: targets of credits
  std::vector<uint64_t> sent_, received_;
  std::vector<bool> has_data_for_;  // by rank: in this pass
};

}  // namespace rondo::net
