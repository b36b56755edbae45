// Rail: one UCP worker of a Wire, over whatever devices UCX chooses or over one of them.
//
// Messages are UCX's active messages: eager over TCP, as UCX chooses where a device reads memory by itself. Messages
// between two ranks arrive once each, and intact; nothing here relies on their order. An endpoint is made when it is
// first needed. Its failure is kept as the loss of that rank, with UCX's words.
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

#include "rondo/types.h"
#include "transport/transport.h"
#include "transport/ucx/context.h"
#include "transport/ucx/message.h"
#include "transport/ucx/sealer.h"

namespace rondo::ucx {

class Rail {
 public:
  /// Makes the worker. `device`: as UCX names it; empty: UCX's choice. Errors: those of Context, kSystem.
  static Expected<std::unique_ptr<Rail>> create(Rank rank, int nranks, Sink& sink, const std::string& device);
  /// close() must have said true before, if anything was sent.
  ~Rail();
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;

  /// What the peers need to reach this rank.
  const std::string& address() const { return address_; }
  /// By rank. `session`: equal on all of them. `near`: ranks of this host, whose deaths others notice: UCX's shared
  /// memory cannot, and would not be used where it has to.
  void set_peers(std::vector<std::string> addresses, const std::vector<Rank>& near, uint64_t session);
  /// From now on all data are sealed, and what was not sealed with this key is dropped. Before the first message.
  void seal_with(std::shared_ptr<Sealer> sealer) { sealer_ = std::move(sealer); }

  /// Sends a header and data that stay as they are until the peer has answered for them: `line` and `data` are read
  /// whenever UCX gets to it. What is lent is given back when `data` are read no more.
  void send(Rank to, const DataHeader& header, const std::byte* data, size_t bytes, Lent* lent = nullptr);
  void send_lines(Rank to, const Header& header, const HeaderLine* lines, size_t bytes);
  /// Sends a copy.
  void send_copy(Rank to, Header header, const void* data, size_t bytes);
  /// Lets UCX work for a bounded while. True when a message has come; that UCX is busy says nothing, since over a dead
  /// link it never rests.
  bool progress();
  /// Messages that UCX has not taken off our hands.
  uint64_t pending() const { return pending_; }
  /// The same of one peer.
  uint32_t pending(Rank to) const { return endpoints_[static_cast<size_t>(to)].pending; }
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
  /// Closes all endpoints, those that have not failed after what they have under way, within `limit_ns`. False: UCX
  /// still reads or writes memory of ours, so neither this nor that may ever be freed. No message is told to the sink
  /// any more.
  bool close(uint64_t limit_ns);

  /// A descriptor that becomes readable when there is news, once arm() has said true; false: there is some already.
  int event_fd() const { return event_fd_; }
  bool arm();
  uint64_t session() const { return session_; }

 private:
  struct Endpoint {
    Rail* rail = nullptr;
    Rank rank = 0;
    ucp_ep_h handle = nullptr;
    bool failed = false;
    bool near = false;
    bool cut = false;      // by ourselves
    uint32_t pending = 0;  // messages
    uint32_t on_loan = 0;
    uint64_t failed_ns = 0;
    ucs_status_t why = UCS_OK;
  };
  struct Copy;
  struct Incoming;
  Rail(Rank rank, Sink& sink, std::string device, std::shared_ptr<Context> context)
      : rank_(rank), sink_(sink), device_(std::move(device)), context_(std::move(context)), lib_(context_->library()) {}
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
  const std::string device_;
  const std::shared_ptr<Context> context_;
  const Library& lib_;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::string address_;
  uint64_t session_ = 0;
  std::shared_ptr<Sealer> sealer_;  // of all rails
  std::string unsealed_;            // the data of the message at hand
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
