// CommunicatorImpl: the implementation of a Communicator. There is one for each rank.
//
// Thread safety: submit() from any thread (it takes the queue's driver role, or the device engine's lock). abort() and
// error() at any time.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "api/control_plane.h"
#include "base/no_cancel.h"
#include "device/engine/device_engine.h"
#include "engine/host_backend.h"
#include "engine/tracing.h"
#include "plan/settings.h"
#include "rondo/communicator.h"
#include "transport/transport.h"

namespace rondo {

class CommunicatorImpl {
 public:
  CommunicatorImpl(Rank rank, const HostLayout& hosts, const Settings& settings, const SpinSettings& spin,
                   std::unique_ptr<Transport> transport);
  ~CommunicatorImpl();

  /// Checks a call whose options have been read. Sets its backend, deadline and buffer sizes. Errors: those of the
  /// arguments, and the error after which the communicator refuses work.
  Status check(Call& call);
  /// Reads the types of one call. Errors: kUnsupported, naming them.
  Status read_types(const TypeRow& types, CallShape& shape) const;
  /// Reads and checks a call to run (work == nullptr) or start (work != nullptr). If call.backend is nullptr
  /// afterwards, there is nothing to submit: an open group has stored the call, or only a check was requested.
  Status prepare(Call& call, const CallOptions* options, Work* work);
  Status submit(Call&& call, const CallOptions* options, Work* work) {
    RONDO_TRY(prepare(call, options, work));
    return call.backend != nullptr ? call.backend->submit(std::span(&call, 1)) : Status();
  }
  /// Gives the communicator a device: all buffers are then in its memory. Collective. Call it once, before the first
  /// call. If a rank fails, all ranks get its error, which names it.
  Status take_device(int ordinal);
  /// Returns nullptr for host memory.
  DeviceEngine* device() { return device_.get(); }
  Backend& backend() { return *backend_; }
  HostBackend& host() { return host_; }

  /// Returns false in a forked child. There only rank() and nranks() may be called, and the destructor must not run.
  bool is_of_this_process() const { return host_.is_of_this_process(); }
  Status check_process() const { return host_.check_process(); }
  Rank rank() const { return rank_; }
  int nranks() const { return nranks_; }
  /// Equal on all ranks.
  const HostLayout& hosts() const { return host_.planner().hosts(); }
  OperationQueue& queue() { return queue_; }
  /// See HostBackend.
  Planner& planner() { return host_.planner(); }
  void lock() { host_.lock(); }
  void unlock() { host_.unlock(); }
  Transport& transport() { return *transport_; }
  void abort();
  /// True after abort().
  bool is_aborted() const { return aborted_; }
  Status error();
  Status start_trace(const std::string& directory, uint64_t num_records);
  Status stop_trace();
  Tracing& tracing() { return *tracing_; }
  Expected<void*> alloc(uint64_t bytes);
  Status free(void* ptr);
  Status register_memory(void* ptr, uint64_t bytes);
  Status deregister_memory(void* ptr);
  /// Checks a request of explain_plan and forecast_us. Errors: kInvalidArgument, kUnsupported.
  Status check_planned(const CallShape& shape) const;
  Expected<std::string> explain_plan(const CallShape& shape);
  Expected<double> forecast_us(const CallShape& shape, const CallOptions* options = nullptr);

  // Making other communicators of these ranks, and the end of this one: resize.cc.
  /// Sets the control plane, which the transport may use. Call it once, before other calls.
  void take_control(std::unique_ptr<ControlPlane> control, const ChildOptions& options);
  /// Makes the public handle that owns `impl`, for code that makes communicators without the public functions.
  static std::unique_ptr<Communicator> handle(std::unique_ptr<CommunicatorImpl> impl) {
    return std::move(*Communicator::wrap(std::move(impl)));
  }
  Expected<std::unique_ptr<CommunicatorImpl>> split(int colour, int key, const Config& config);
  Expected<std::unique_ptr<CommunicatorImpl>> shrink(const std::vector<Rank>& excluded, const Config& config);
  /// The ranks use the id of the first rank that has one. *common gets it.
  Expected<std::unique_ptr<CommunicatorImpl>> grow(int new_nranks, const UniqueId* id, const Config& config,
                                                   UniqueId* common);
  Status finalize();

 private:
  struct ResizeRequest;  // a rank's request for a new communicator (resize.cc)
  /// Exchanges the requests. `abort` is the token of the current call, which may differ from this communicator's.
  Expected<std::vector<ResizeRequest>> gather_requests(const ResizeRequest& mine,
                                                       const std::optional<AbortToken>& abort);
  Expected<ChildOptions> child_options(const Config& config) const;
  /// Marks this new communicator as unusable. Peers get `why` when it is destroyed.
  void give_up(const Status& why);
  Status interrupted() const;
  /// Returns the control plane's gather for one call.
  ControlGather control_for(std::string_view call);
  Status ready();
  Status check_bitwise(const CallShape& shape) const;
  Status check_any_rank(const CallShape& shape) const;
  Status check_type(const CallShape& shape) const;
  Status check_count(const CallShape& shape) const;
  /// Also sets the buffers' sizes in the call.
  Status check_buffers(Call& call) const;
  Status check_options(const CallOptions& options, const CallShape& shape) const;
  Status read_options(const CallOptions& options, Call& call) const;
  Status bad(std::string_view argument, std::string_view why) const { return host_.bad(argument, why); }

  const Rank rank_;
  const int nranks_;
  const Settings settings_;
  const uint64_t deadline_ns_;
  std::mutex control_mutex_;  // held by a call that uses the control plane
  std::unique_ptr<ControlPlane> control_;  // outlives the transport
  std::optional<AbortToken> abort_, request_abort_;  // this communicator's; that of a running gather_requests()
  TransportDecorator decorate_;
  std::optional<Binding> binding_;  // of its threads
  std::shared_ptr<Callbacks> callbacks_;
  std::atomic<bool> aborted_{false};
  std::unique_ptr<Transport> transport_;
  HostBackend host_;
  std::unique_ptr<DeviceEngine> device_;  // only for device memory
  Backend* backend_ = &host_;
  OperationQueue& queue_ = host_.queue();
  std::unique_ptr<Tracing> tracing_;
};

inline CommunicatorImpl& impl_of(Communicator& comm) { return *comm.impl_; }

/// Makes a public call, except in a forked child. pthread_cancel takes effect after the call.
template <class F>
auto guarded(const CommunicatorImpl& impl, F call) -> decltype(call()) {
  RONDO_TRY(impl.check_process());
  const NoCancel no_cancel;
  return call();
}

/// Runs checked calls as one batch: collectives before messages, devices before hosts. Returns the first error.
Status run_batch(std::vector<Call> calls);
/// Returns true if the calling thread has an open group, which collects calls.
bool group_open();
void add_to_group(const Call& call);

}  // namespace rondo
