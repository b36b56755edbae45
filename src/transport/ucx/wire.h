// Wire: the messages of one rank to and from the ranks that share no memory with it, over one UCP worker.
//
// A message is a header of up to 96 bytes and data, carried by UCX's active messages: eagerly over TCP, as UCX chooses
// where a device reads memory by itself. Messages between two ranks arrive once each, and intact; nothing here relies on
// their order. An endpoint is made when it is first needed. Its failure is kept as the loss of that rank, with UCX's
// words.
//
// Thread safety: none; RemoteTransport holds one lock around all calls. The sink is called from progress().
#pragma once

#ifdef RONDO_HAVE_UCX

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/fifo.h"
#include "protocol/lending.h"
#include "rondo/types.h"
#include "transport/transport.h"
#include "transport/ucx/context.h"
#include "transport/ucx/sealer.h"

namespace rondo::ucx {

enum class Kind : uint8_t {
  kLines,    // header lines of an Inline connection; data: the lines
  kData,     // a message of a Simple connection: its line, and data for the ring
  kCredit,   // a read counter
  kAbort,    // data: the reason
  kLeaving,  // step: how many messages of kLines, kData and kSlot the sender has sent to the receiver
  kLeft,     // the answer when they have all come
  kBoardsAsked,
  kBoards,  // data: an OperationBoard and a PairBoard
  kOpened,  // of a relayed connection: its reader has named its memory
  kSlot,    // step: a relayed slot's number; data: what it holds
  kSlotEmpty,
};
/// Whose data are too long for one copy too many: with a line, whether it says anything or not.
constexpr bool has_line(Kind k) { return k == Kind::kData || k == Kind::kSlot; }

/// Stands before every message. One layout on all hosts: ranks are of one build, which Settings::abi checks.
struct Header {
  uint64_t session = 0;  // of the communicator: what strays in is dropped
  uint64_t step = 0;
  int32_t from = 0;
  uint16_t tag = 0, group = 0;  // of the connection
  Kind kind = Kind::kLines;
  uint8_t inline_only = 0;
  uint16_t num_lines = 0;
  uint16_t channel = 0;  // of a relayed connection
  uint16_t pad = 0;
};
struct DataHeader {
  Header header;
  HeaderLine line;
};
static_assert(sizeof(DataHeader) == 128 && offsetof(DataHeader, line) == 64);

/// A loan on its way to one reader; stays until the loan is given back.
struct Lent {
  Loan* loan = nullptr;
  void* endpoint = nullptr;  // the wire's
};

class Sink {
 public:
  /// Where `bytes` of data of a kData or kSlot message, still to be fetched, belong; nullptr: nowhere, the message is dropped,
  /// and the sink knows why.
  virtual std::byte* place(const Header& header, const HeaderLine& line, size_t bytes) = 0;
  /// The data of a kData or kSlot message, which are here: takes them where they belong. False: nowhere, likewise.
  virtual bool put(const Header& header, const HeaderLine& line, const std::byte* data, size_t bytes) = 0;
  /// A whole message. kData, kSlot: its data are where they belong.
  virtual void arrived(const Header& header, const HeaderLine* line, const std::byte* data, size_t bytes) = 0;

 protected:
  ~Sink() = default;
};

class Wire {
 public:
  /// Makes the worker. Errors: those of Context, kSystem.
  static Expected<std::unique_ptr<Wire>> create(Rank rank, int nranks, Sink& sink);
  /// close() must have said true before, if anything was sent.
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// What the peers need to reach this rank.
  const std::string& address() const { return address_; }
  /// By rank. `session`: equal on all of them. `near`: ranks of this host, whose deaths others notice: UCX's shared memory
  /// cannot, and would not be used where it has to.
  void set_peers(std::vector<std::string> addresses, const std::vector<Rank>& near, uint64_t session);
  /// From now on all data are sealed, and what was not sealed with this key is dropped. Before the first message.
  void seal_with(std::unique_ptr<Sealer> sealer) { sealer_ = std::move(sealer); }

  /// Sends a header and data that stay as they are until the peer has answered for them: `line` and `data` are read
  /// whenever UCX gets to it. What is lent is given back when `data` are read no more.
  void send(Rank to, const DataHeader& header, const std::byte* data, size_t bytes, Lent* lent = nullptr);
  void send_lines(Rank to, const Header& header, const HeaderLine* lines, size_t bytes);
  /// Sends a copy.
  void send_copy(Rank to, Header header, const void* data, size_t bytes);
  /// Lets UCX work for a bounded while. True when a message has come; that UCX is busy says nothing, since over a dead link
  /// it never rests.
  bool progress();
  /// Messages that UCX has not taken off our hands.
  uint64_t pending() const { return pending_; }
  bool connected(Rank to) const { return endpoints_[static_cast<size_t>(to)].handle != nullptr; }
  /// Nothing that is sent there arrives.
  bool lost(Rank r) const {
    return endpoints_[static_cast<size_t>(r)].failed || endpoints_[static_cast<size_t>(r)].cut;
  }
  /// True for ranks to which data may be lent: their connections can be cut, if the data are wanted back. RDMA takes
  /// them from the ring, which is registered; to register what callers have, perhaps memory that is only read, is slow
  /// or fails.
  bool may_lend(Rank to) const { return !endpoints_[static_cast<size_t>(to)].near && !context_->has_rdma(); }
  /// All loans come back. Connections whose loans stay out are cut: when none comes back for `quiet_ns`, or not all
  /// within `limit_ns`. False: UCX keeps some in spite of that.
  bool recall(uint64_t quiet_ns, uint64_t limit_ns);
  /// The ranks whose endpoints have failed before `before_ns` of monotonic_ns(), with UCX's words.
  std::vector<PeerLoss> losses(uint64_t before_ns) const;
  /// True when the kernel, or a device, has all that was sent. Ask again until then.
  bool flush();
  /// Closes all endpoints, those that have not failed after what they have under way, within `limit_ns`. False: UCX still
  /// reads or writes memory of ours, so neither this nor that may ever be freed. No message is told to the sink any more.
  bool close(uint64_t limit_ns);

  /// A descriptor that becomes readable when there is news, once arm() has said true; false: there is some already.
  int event_fd() const { return event_fd_; }
  bool arm();
  uint64_t session() const { return session_; }

 private:
  struct Endpoint {
    Wire* wire = nullptr;
    Rank rank = 0;
    ucp_ep_h handle = nullptr;
    bool failed = false;
    bool near = false;
    bool cut = false;      // by ourselves
    uint32_t on_loan = 0;  // messages
    uint64_t failed_ns = 0;
    ucs_status_t why = UCS_OK;
  };
  struct Copy;
  struct Incoming;
  Wire(Rank rank, Sink& sink, std::shared_ptr<Context> context)
      : rank_(rank), sink_(sink), context_(std::move(context)), lib_(context_->library()) {}
  Status open(int nranks);
  ucp_ep_h endpoint(Rank to);
  void close_endpoint(Endpoint& e);
  void post(Rank to, const void* header, size_t header_bytes, const void* data, size_t bytes, Copy* copy, Lent* lent);
  bool settled(uint64_t limit_ns, const std::function<bool()>& is_settled);
  void post_copy(Rank to, const DataHeader& header, size_t header_bytes, const void* data, size_t bytes);
  bool unseal(Rank from, std::string_view header, const void* data, size_t bytes);
  void sent(void* request, ucs_status_t s, Endpoint& to);
  void fail(Endpoint& e, ucs_status_t s);
  ucs_status_t receive(const void* header, size_t header_bytes, void* data, size_t bytes,
                       const ucp_am_recv_param_t& param);

  const Rank rank_;
  Sink& sink_;
  const std::shared_ptr<Context> context_;
  const Library& lib_;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::string address_;
  uint64_t session_ = 0;
  std::unique_ptr<Sealer> sealer_;
  std::string unsealed_;  // the data of the message at hand
  bool told_of_forgery_ = false;
  std::vector<std::string> addresses_;  // by rank
  std::vector<Endpoint> endpoints_;     // by rank
  std::vector<Incoming*> incoming_;     // rendezvous under way
  uint64_t pending_ = 0;
  uint64_t moves_ = 0;  // messages that came, and loans that came back
  void* flushing_ = nullptr;
  std::vector<void*> closing_requests_;  // of endpoints
  bool closing_ = false;
};

}  // namespace rondo::ucx

#endif
