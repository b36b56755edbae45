// UcxRail: a rail over one UCP worker, over UCX's choice of devices or over one of them.
//
// Messages are UCX's active messages: eager over TCP, and in UCX's mode if a device reads memory by itself. An endpoint
// is made at its first use. Its failure is stored as the loss of that rank, with UCX's text. Thread safety: as Rail.
#pragma once

#ifdef RONDO_HAVE_UCX

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/net/rail.h"
#include "transport/net/ucx_context.h"

namespace rondo::net {

class UcxRail final : public Rail {
 public:
  /// Makes the worker. `device`: UCX's name; empty: UCX's choice. Errors: those of Context, kSystem.
  static Expected<std::unique_ptr<UcxRail>> create(Rank rank, int nranks, Sink& sink, const std::string& device);
  /// close() must have returned true before, if anything was sent.
  ~UcxRail() override;

  bool progress() override;
  void push() override { (void)progress(); }
  using Rail::pending;
  uint32_t pending(Rank to) const override { return endpoints_[static_cast<size_t>(to)].pending; }
  bool connected(Rank to) const override { return endpoints_[static_cast<size_t>(to)].handle != nullptr; }
  bool lost(Rank r) const override {
    return endpoints_[static_cast<size_t>(r)].failed || endpoints_[static_cast<size_t>(r)].cut;
  }
  /// Not among ranks of one host, whose connections cannot be cut to get the data back. RDMA sends from the ring, which
  /// is registered; registering callers' memory, possibly read-only, is slow or fails.
  bool may_zero_copy(Rank to) const override { return !near(to) && !context_->has_rdma(); }
  bool recall(uint64_t quiet_ns, uint64_t limit_ns) override;
  std::vector<PeerLoss> losses(uint64_t before_ns) const override;
  bool flush() override;
  bool close(uint64_t limit_ns) override;
  bool arm() override;

 private:
  struct Endpoint {
    UcxRail* rail = nullptr;
    Rank rank = 0;
    ucp_ep_h handle = nullptr;
    bool failed = false;
    bool cut = false;      // by this rank
    uint32_t pending = 0;  // messages
    uint32_t zero_copy = 0;
    uint64_t failed_ns = 0;
    ucs_status_t why = UCS_OK;
  };
  struct Incoming;
  UcxRail(Rank rank, Sink& sink, std::string device, std::shared_ptr<Context> context)
      : Rail(rank, sink, std::move(device)), context_(std::move(context)), lib_(context_->library()) {}
  Status open(int nranks);
  ucp_ep_h endpoint(Rank to);
  void close_endpoint(Endpoint& e);
  void post(Rank to, const void* header, size_t header_bytes, const void* data, size_t bytes,
            std::unique_ptr<Copy> copy, ZeroCopy* zero_copy) override;
  /// UCX's shared memory cannot detect the death of a rank on this host (other transports can), and would not be used
  /// if error handling were requested.
  bool near(Rank r) const { return routes_[static_cast<size_t>(r)].near; }
  bool settled(uint64_t limit_ns, const std::function<bool()>& is_settled);
  void sent(void* request, ucs_status_t s, Endpoint& to);
  void fail(Endpoint& e, ucs_status_t s);
  void fetch(const DataHeader& h, bool with_line, void* announced, size_t bytes);
  ucs_status_t receive(const void* header, size_t header_bytes, void* data, size_t bytes,
                       const ucp_am_recv_param_t& param);

  const std::shared_ptr<Context> context_;
  const Library& lib_;
  ucp_worker_h worker_ = nullptr;
  std::vector<Endpoint> endpoints_;  // by rank
  std::vector<Incoming*> incoming_;  // rendezvous in progress
  void* flushing_ = nullptr;
  std::vector<void*> closing_requests_;  // of endpoints
};

}  // namespace rondo::net

#endif
