// UcxRail: a rail over one UCP worker, over UCX's choice of devices or over one of them.
//
// Messages are UCX's active messages. They are eager; only if a device has RDMA, UCX chooses the mode of messages that
// are not copied. An endpoint is made at its first use. Its failure is stored as the loss of that rank, with UCX's
// text. Thread safety: as Rail.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "transport/net/network.h"
#include "transport/ucx/ucx_library.h"

namespace rondo::net {

class UcxRail final : public Rail {
 public:
  /// Makes the worker. The device has UCX's name; without one, UCX chooses. Errors: those of UcxContext, kSystem.
  static Expected<std::unique_ptr<Rail>> create(Sink& sink, const RailOptions& options);
  /// close() must have returned true before, if anything was sent.
  ~UcxRail() override;

  bool progress() override;
  void push() override { (void)progress(); }
  bool connected(Rank to) const override { return endpoints_[static_cast<size_t>(to)].handle != nullptr; }
  /// Not among ranks of one host, whose connections cannot be cut to get the data back. RDMA sends from the ring, which
  /// is registered; registering callers' memory, possibly read-only, is slow or fails.
  bool may_zero_copy(Rank to) const override { return !near(to) && !context_->has_rdma(); }
  bool recall(uint64_t quiet_ns, uint64_t until_ns) override;
  bool flush() override;
  bool close(uint64_t until_ns) override;
  int event_fd() const override { return event_fd_; }
  bool arm() override;

 private:
  struct Endpoint {
    UcxRail* rail = nullptr;
    Rank rank = 0;
    ucp_ep_h handle = nullptr;
    uint32_t zero_copy = 0;  // sends not yet returned
  };
  struct Incoming;
  struct Request;
  UcxRail(Sink& sink, const RailOptions& o, std::shared_ptr<UcxContext> context)
      : Rail(o.rank, o.nranks, sink, o.device),
        context_(std::move(context)),
        lib_(context_->library()),
        endpoints_(static_cast<size_t>(o.nranks)) {}
  Status open();
  ucp_ep_h endpoint(Rank to);
  void close_endpoint(Endpoint& e);
  void post(Rank to, Outgoing what) override;
  /// UCX's shared memory cannot detect the death of a rank on this host (other transports can), and would not be used
  /// if error handling were requested.
  bool near(Rank r) const { return routes_[static_cast<size_t>(r)].near; }
  bool settled(uint64_t until_ns, const std::function<bool()>& is_settled);
  void sent(void* request, ucs_status_t s, Endpoint& to);
  void fail(Endpoint& e, ucs_status_t s);
  void fetch(const DataHeader& h, bool with_line, void* announced, size_t bytes);
  ucs_status_t receive(const void* header, size_t header_bytes, void* data, size_t bytes,
                       const ucp_am_recv_param_t& param);

  const std::shared_ptr<UcxContext> context_;
  const UcxLibrary& lib_;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;                // the worker's
  std::vector<Endpoint> endpoints_;  // by rank
  std::vector<Incoming*> incoming_;  // rendezvous in progress
  void* flushing_ = nullptr;
  std::vector<void*> closing_requests_;  // of endpoints
};

}  // namespace rondo::net
