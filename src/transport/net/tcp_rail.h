// TcpRail: a rail over TCP sockets, made when ranks first talk.
//
//   connection:  greeting | frame, header, data | frame, header, data | ...      from the rank that connects
//                greeting | ...                                                  the answer
//
// A message is written from where it lies and read to where it belongs: of a long one the kernel copies each byte once
// on either side, and nobody else does. What is to be added there is read in blocks, which are added while they are in
// the core's cache and the rest is still to come. While a message is being read, the same call to the kernel also
// fetches the next one's header, so that a stream of long messages takes one call each, and they need not wait for one
// another.
//
// Each rank of a pair makes a connection when it first sends, so that there are two:
//
//   short messages    on the sender's own, where no short ones come the other way: while a call to the kernel writes
//                     there, it keeps what comes on the same connection waiting
//   long ones         on the lower rank's, once it is there: data that go both ways carry the acknowledgements, so that
//                     the kernel has fewer packets to see to
//
// Sealed ones all go on the sender's own, in order: what is too old counts as a copy (sealer.h).
//
// The greeting of the rank that connects says which communicator and which rank of it this is, and which rank it wants;
// who does not know that is turned away (TcpListener). The other rank answers with a greeting of its own. What
// is sent before the answer is kept: until then the connection may be closed for no fault of either rank. It is then made
// again, and all is sent again. Where data are sealed, so are greetings, and every frame carries a proof that its lengths
// were not altered. A message that cannot be opened fails the communicator: TCP delivers it no second time.
//
// Once all peers have connected, the rail listens no more.
//
// Thread safety: as Rail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transport/net/rail.h"
#include "transport/net/tcp_listener.h"

namespace rondo::net {

class TcpRail final : public Rail {
 public:
  /// Listens. `device`: a network interface by its name, whose address is used for all connections; empty: listens at
  /// the numeric `addresses`. Errors: kInvalidArgument (no such interface, or none with an address), kSystem.
  static Expected<std::unique_ptr<TcpRail>> create(Rank rank, int nranks, Sink& sink, const std::string& device,
                                                   const std::vector<std::string>& addresses);
  ~TcpRail() override;

  bool progress() override;
  void push() override;
  bool has_unread() const override;
  using Rail::pending;
  uint32_t pending(Rank to) const override;
  bool connected(Rank to) const override {
    const Peer& peer = peers_[static_cast<size_t>(to)];
    return peer.ours != nullptr || peer.theirs != nullptr;
  }
  bool lost(Rank r) const override { return peers_[static_cast<size_t>(r)].failed; }
  bool may_lend(Rank) const override { return true; }
  bool recall(uint64_t quiet_ns, uint64_t limit_ns) override;
  std::vector<PeerLoss> losses(uint64_t before_ns) const override;
  bool flush() override;
  bool close(uint64_t limit_ns) override;
  bool arm() override;

 private:
  /// Before every message; a line, as the header.
  struct Frame {
    uint32_t header_bytes = 0;
    uint32_t bytes = 0;  // of data
    std::byte proof[Sealer::kExtraBytes] = {};  // of the above, where data are sealed
    std::byte pad[32] = {};
  };
  static_assert(sizeof(Frame) == 64);
  static constexpr size_t kLengthsBytes = offsetof(Frame, proof);
  struct Outgoing {
    Frame frame;
    const void* header = nullptr;
    const std::byte* data = nullptr;
    std::unique_ptr<Copy> copy;
    Lent* lent = nullptr;
    size_t written = 0;  // of frame, header and data
    size_t total() const { return sizeof frame + frame.header_bytes + frame.bytes; }
  };
  struct Incoming {
    DataHeader header;
    uint32_t header_bytes = 0;
    size_t bytes = 0, got = 0;
    Place place;
    size_t added = 0;       // in pieces: of `got`, the rest waits in the block
    std::string elsewhere;  // where it has no place: it is read all the same
    bool wanted = true;     // by somebody
    bool in_pieces() const { return place.at == nullptr; }
  };
  struct Connection {
    int fd = -1;  // -1: broken, or to be made again
    Rank peer = -1;
    bool known = false;         // the peer's greeting has come
    std::string greeting;       // ours
    size_t greeted = 0;         // written of it
    uint64_t since_ns = 0;      // first connected
    uint64_t connect_ns = 0;    // when to connect again
    uint32_t times_closed = 0;  // before the peer's greeting came
    bool ignored = false;       // what comes was altered
    uint32_t last_pass = 0;     // in which something came
    bool reads_long = false;    // the last message was long: so may be the next
    bool watches_room = false;  // for writing
    bool is_full = false;       // the kernel did not take all of what was written last
    bool broken = false;
    std::deque<Outgoing> queue;
    size_t sent = 0;                // of the queue, kept while the peer has not answered
    std::vector<std::byte> buffer;  // what came and was not looked at: [begin, end)
    size_t begin = 0, end = 0;
    std::unique_ptr<std::byte[]> block;  // of a message that is taken in pieces
    bool in_message = false;
    Incoming message;
    uint32_t looks = 0;  // at the next message, while its reader does not ask for it
    bool waits = false;  // for that
  };
  struct Peer {
    Connection* ours = nullptr;    // made by this rank
    Connection* theirs = nullptr;  // made by the peer
    bool failed = false;
    uint64_t failed_ns = 0;
    std::string how;
  };

  TcpRail(Rank rank, int nranks, Sink& sink, std::string device)
      : Rail(rank, sink, std::move(device)), peers_(static_cast<size_t>(nranks)) {}
  Status open(const std::vector<std::string>& addresses);
  void post(Rank to, const void* header, size_t header_bytes, const void* data, size_t bytes,
            std::unique_ptr<Copy> copy, Lent* lent) override;
  Connection* connect(Rank to);
  void dial(Connection& c);
  void add(std::unique_ptr<Connection> c);
  void watch(Connection& c);
  size_t greeting_bytes() const;
  std::string greeting_to(Rank to);
  Rank who_greets(std::string_view greeting);
  bool admit(int fd, std::string_view greeting);
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
  void sweep();

  std::string local_;  // the interface's address, numeric
  TcpListener listener_;
  size_t num_admitted_ = 0;
  std::vector<Peer> peers_;  // by rank
  std::vector<std::unique_ptr<Connection>> connections_;
  uint32_t passes_ = 0;
  bool any_broken_ = false;
  bool told_of_stranger_ = false;
};

}  // namespace rondo::net
