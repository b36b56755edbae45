// The connections that cross between ranks without common memory: private FIFOs on both sides, kept alike by messages.
//
//   writer's FIFO (here)  --kLines, kData-->  replica (there)       lines, flags, data at the same offsets of the ring
//   read counter  (here)  <-----kCredit-----  read counter (there)
//
// The engine speaks the FIFO protocol with memory of its own process on either side; carry() sees what was posted and
// sends it, receive() stores what came, the flag or the counter last. A message names its step, so the order of
// arrival does not matter, and its connection by the ConnectionKey, so a replica is made by whoever asks first: its
// reader, or its first message.
//
// A message is sent from the ring, and stays there until its credit has come. Credits are told every quarter of the
// lines (half, where messages are short and nothing goes the same way; at once behind a message of kRestartBytes that
// lay in the ring), and all of them when nothing else moves: a
// writer may wait for any of them, since it is they that say where in the ring there is room.
//
// A message that was lent is sent from where it lies, and one whose reader has said where it belongs goes there; the
// others pass through the ring (protocol/lending.h). A multicast FIFO has a replica for each reader.
//
// A relayed connection (transport/relay.h) is one whose memory both ends have brought.
//
// Thread safety: open_*, carry, receive under the owner's lock. The FIFOs' own memory: as the protocol says.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/net/wire.h"
#include "transport/pool.h"
#include "transport/segment.h"
#include "transport/transport.h"

namespace rondo::net {

/// Of one rank's connections `other` is the one at the far end: reader or writer.
constexpr uint64_t pack(const ConnectionKey& k, Rank other) {
  return static_cast<uint64_t>(other) << 40 | static_cast<uint64_t>(k.tag) << 24 | static_cast<uint64_t>(k.group) << 8 |
         static_cast<uint64_t>(k.channel) << 1 | static_cast<uint64_t>(k.inline_only);
}
/// What a message says of its connection.
Header header_of(Kind kind, const ConnectionKey& k, uint64_t step);

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
  /// The wire must be at rest: its messages point here.
  ~RemoteFifos() { pool_->give_back(taken_); }
  RemoteFifos(const RemoteFifos&) = delete;
  RemoteFifos& operator=(const RemoteFifos&) = delete;

  uint32_t longest_message_bytes() const { return longest_message_bytes_; }
  /// Equal on all ranks; before the first connection.
  void set_longest_message(uint32_t bytes) { longest_message_bytes_ = bytes; }
  /// A connection that this rank writes to `readers`. Errors: those of the pool.
  Expected<FifoView> open_writer(const ConnectionKey& key, const std::vector<Rank>& readers);
  /// The replica of a connection that this rank reads. To itself: what it writes; nothing before that.
  Expected<std::optional<FifoView>> open_reader(const ConnectionKey& key);

  /// Relayed connections: `view` is sent from, or stored into, from now on.
  void adopt_writer(const ConnectionKey& key, const FifoView& view, std::span<const Rank> readers);
  void adopt_reader(const ConnectionKey& key, const FifoView& view);

  /// Of connections that are open: what their ends lend, and where they want their messages; nullptr where they are to
  /// use the ring.
  Loan* loans(const ConnectionKey& key);
  Landing* landing(const ConnectionKey& key);
  /// Nothing lands any more.
  void let_go() { let_go_ = true; }

  /// Sends what was posted and read since; true when there was something.
  bool carry(Wire& wire);
  /// Tells the writers all that was read; true when there was something.
  bool tell(Wire& wire);
  /// True when carry() would send.
  bool has_unsent() const;

  /// Where the data of a kData message are to be received. Errors: as arrived().
  Expected<Place> place(const Header& header, const HeaderLine& line, size_t bytes, MayLand may_land);
  /// Takes them there, or to where their reader wants them.
  Status put(const Header& header, const HeaderLine& line, const std::byte* data, size_t bytes);
  /// Of kLines, kData, kCredit. Errors: the pool's, when a replica could not be made; kInternal, a message that cannot
  /// be.
  Status arrived(const Header& header, const HeaderLine* line, const std::byte* data, size_t bytes);

  /// Messages sent to a rank, and received from it.
  uint64_t sent(Rank to) const { return sent_[static_cast<size_t>(to)]; }
  void count_sent(Rank to) { ++sent_[static_cast<size_t>(to)]; }
  void count_received(Rank from) { ++received_[static_cast<size_t>(from)]; }
  uint64_t received(Rank from) const { return received_[static_cast<size_t>(from)]; }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Outgoing {  // to one reader
    ConnectionKey key;
    Rank reader;
    FifoView view;
    uint64_t step = 0;                // the next to be sent
    std::vector<DataHeader> headers;  // by line: they are read until they are out
    Loan* loans = nullptr;            // by line; shared by a multicast's readers. nullptr: the ring alone
    std::vector<Lent> lent;           // by line
    uint32_t counter() const { return key.group == 0 ? 0 : static_cast<uint32_t>(reader); }
  };
  struct Replica {
    ConnectionKey key;
    FifoView view;
    uint64_t told = 0;        // the writer knows that so many steps were read
    uint64_t last_bytes = 0;  // of data
    bool lands = false;       // the last message that was to be placed did
    Landing landing;
  };
  struct Rest {
    uint64_t offset = 0, bytes = 0;
  };
  void add_outgoing(const ConnectionKey& key, Rank reader, const FifoView& view, Loan* loans);
  Expected<FifoView> make(const ConnectionKey& key, uint32_t num_counters);
  Expected<std::byte*> carve(StagingPool::Use use, uint64_t bytes);
  Expected<Replica*> replica(const ConnectionKey& key);
  Status impossible(const Header& h, size_t bytes) const;
  ConnectionKey key_from(const Header& h) const {
    return {h.from, h.group == 0 ? rank_ : -1, h.tag, h.group, h.inline_only != 0, static_cast<uint8_t>(h.channel)};
  }
  Expected<std::byte*> place_in(const Replica& r, const Header& header, const HeaderLine& line, size_t bytes) const;
  bool tell_in_time(Wire& wire);
  void tell(Replica& r, uint64_t read, Wire& wire);
  bool carry_lines(Outgoing& o, Wire& wire);
  bool carry_data(Outgoing& o, Wire& wire);

  const Rank rank_;
  const int nranks_;
  const SegmentLayout layout_;
  uint32_t longest_message_bytes_ = SegmentLayout::kMostMessageBytes;
  const std::shared_ptr<StagingPool> pool_;
  std::vector<StagingPool::Range> taken_;
  Rest small_, data_;
  uint64_t bytes_ = 0;
  bool let_go_ = false;
  std::vector<std::unique_ptr<Outgoing>> outgoing_;
  std::unordered_map<uint64_t, std::vector<Loan>> loans_;            // by packed key
  std::unordered_map<uint64_t, FifoView> to_itself_;                 // by packed key
  std::unordered_map<uint64_t, std::unique_ptr<Replica>> replicas_;  // by packed key
  std::unordered_map<uint64_t, Outgoing*> by_reader_;                // by packed key and reader: where credits go
  std::vector<uint64_t> sent_, received_;
  std::vector<bool> has_data_for_;  // by rank: in this pass
};

}  // namespace rondo::net
