// TcpRail: a rail over TCP sockets, connected at the first message between two ranks.
//
//   connection:  greeting | frame, header, data | frame, header, data | ...      from the rank that connects
//                greeting | ...                                                  the answer
//
// A message is written from its source and read to its destination: the kernel copies each byte of a long message once
// on either side, without further copies. Data to be added are read in blocks, which are added while they are in the
// core's cache and the rest is still arriving. The kernel call that reads a message also fetches the next one's header:
// a stream of long messages takes one call each, without waits in between.
//
// Each rank of a pair connects when it first sends, which makes two connections:
//
//   short messages    on the sender's own, which has no short messages in the other direction: while a kernel call
//                     writes to a connection, received data on it have to wait
//   long ones         on the lower rank's, once it exists: data in both directions carry the acknowledgements, and the
//                     kernel processes fewer packets
//
// Sealed messages all use the sender's own, in order: an old one would count as repeated (sealer.h).
//
// The connecting rank's greeting contains the communicator, its rank and the peer's rank; connections without it are
// refused (Acceptor). The peer answers with its own greeting. Until then sent messages are kept: the connection may
// be closed through neither rank's fault, and is then made again with all messages. If data are sealed, greetings are
// too, and every frame has a proof of its lengths. A message that cannot be opened fails the communicator, because TCP
// does not deliver it again.
//
// Once all peers have connected, the rail stops listening. Thread safety: as Rail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/acceptor.h"
#include "transport/net/network.h"

namespace rondo::net {

class TcpRail final : public Rail {
 public:
  /// Listens. A device is a network interface, whose address all connections use; without one the rail listens at the
  /// options' addresses. Errors: kInvalidArgument (no such interface, or no address), kSystem.
  static Expected<std::unique_ptr<Rail>> create(Sink& sink, const RailOptions& options);
  ~TcpRail() override { acceptor_.close(); }

  bool progress() override;
  void push() override;
  bool has_unread() const override;
  bool connected(Rank to) const override {
    const Pair& pair = pairs_[static_cast<size_t>(to)];
    return pair.ours != nullptr || pair.theirs != nullptr;
  }
  bool may_zero_copy(Rank) const override { return true; }
  bool recall(uint64_t quiet_ns, uint64_t until_ns) override;
  bool flush() override;
  bool close(uint64_t until_ns) override;
  int event_fd() const override { return events_.get(); }
  bool arm() override;

 private:
  /// Precedes every message; fills a line, like the header.
  struct Frame {
    uint32_t header_bytes = 0;
    uint32_t bytes = 0;  // of data
    std::byte proof[Sealer::kExtraBytes] = {};  // of the above, if data are sealed
    std::byte pad[32] = {};
  };
  static_assert(sizeof(Frame) == 64);
  static constexpr size_t kLengthsBytes = offsetof(Frame, proof);
  struct QueuedMessage {
    Frame frame;
    Outgoing what;
    size_t written = 0;  // of frame, header and data
    size_t total() const { return sizeof frame + frame.header_bytes + frame.bytes; }
  };
  struct Incoming {
    DataHeader header;
    uint32_t header_bytes = 0;
    size_t bytes = 0, got = 0;
    ReceiveTarget place;
    size_t added = 0;       // in pieces: bytes of `got` that are added; the others are in the block
    std::string elsewhere;  // for messages without destination, which are read too
    bool wanted = true;     // it has a destination
    bool in_pieces() const { return place.at == nullptr; }
  };
  struct Connection {
    Fd fd;  // none: broken, or to be made again
    Rank peer = -1;
    bool known = false;         // the peer's greeting has arrived
    std::string greeting;       // ours
    size_t greeted = 0;         // bytes of it written
    uint64_t since_ns = 0;      // first connected
    uint64_t connect_ns = 0;    // when to connect again
    uint32_t times_closed = 0;  // before the peer's greeting came
    bool ignored = false;       // received data were altered
    uint32_t last_pass = 0;     // the last pass with received data
    bool reads_long = false;    // the last message was long; the next may be too
    bool watches_room = false;  // for writing
    bool is_full = false;       // the kernel did not take all of the last write
    bool broken = false;
    std::deque<QueuedMessage> queue;
    size_t sent = 0;                // sent messages at the front of the queue, kept until the peer's answer
    std::vector<std::byte> buffer;  // received bytes, not yet processed: [begin, end)
    size_t begin = 0, end = 0;
    std::unique_ptr<std::byte[]> block;  // for a message that is taken in pieces
    bool in_message = false;
    Incoming message;
    uint32_t looks = 0;  // at the next message, while its reader has not posted a receive
    bool waits = false;  // waits for that
  };
  struct Pair {
    Connection* ours = nullptr;    // made by this rank
    Connection* theirs = nullptr;  // made by the peer
  };

  TcpRail(Sink& sink, const RailOptions& o)
      : Rail(o.rank, o.nranks, sink, o.device), pairs_(static_cast<size_t>(o.nranks)) {}
  Status open(const std::vector<std::string>& addresses);
  void post(Rank to, Outgoing what) override;
  Connection* connect(Rank to);
  void dial(Connection& c);
  Connection& add(Rank peer);
  void watch(Connection& c);
  size_t greeting_bytes() const;
  std::string greeting_to(Rank to);
  Rank who_greets(std::string_view greeting);
  void admit(Fd* fd, std::string_view greeting);
  bool take_answer(Connection& c);
  void answered(Connection& c);
  static bool has_to_write(const Connection& c) { return c.greeted < c.greeting.size() || c.sent < c.queue.size(); }
  void write(Connection& c);
  bool write_greeting(Connection& c);
  bool is_stalled(Connection& c, int error);
  void finish_front(Connection& c);
  void read(Connection& c);
  ptrdiff_t fill(Connection& c);
  bool more(Connection& c);
  bool read_header(Connection& c);
  bool begin_message(Connection& c);
  static void take(Connection& c, size_t bytes);
  void end_message(Connection& c);
  void ignore(Connection& c);
  void nonsense(Connection& c);
  void hang_up(Connection& c);
  void ended(Connection& c, int error);
  void fail(Connection& c, std::string_view how);
  void drop(Connection& c);
  void keep_out_of_buffers(Connection& c);

  std::optional<IpAddress> local_;    // the interface's
  Acceptor<FixedGreeting> acceptor_;  // of connections whose rank is not known yet
  size_t num_admitted_ = 0;
  std::vector<Pair> pairs_;  // by rank of the peer
  std::vector<std::unique_ptr<Connection>> connections_;
  Fd events_;  // epoll of the acceptor and the connections
  uint32_t passes_ = 0;
  bool any_broken_ = false;
  bool told_of_unauthenticated_ = false;
};

}  // namespace rondo::net
