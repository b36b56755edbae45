// CommunicatorImpl: the implementation of a Communicator. There is one for each rank.
//
// Thread safety: submit() from any thread (only the thread with the queue's driver role runs operations). abort() and
// error() at any time.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "api/control_plane.h"
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

  /// Everything that can be wrong with a call, whose options have been read; completes it. Errors: also why the
  /// communicator refuses work.
  Status check(Call& call);
  /// The call's own types. Errors: kUnsupported, naming them.
  Status read_types(const TypeRow& types, CallShape& shape) const;
  /// Reads and checks a call that is to run (work == nullptr) or start. It is ready for its backend unless that is null
  /// afterwards: then an open group has it, or a check was all that was asked for.
  Status prepare(Call& call, const CallOptions* options, Work* work);
  Status submit(Call&& call, const CallOptions* options, Work* work) {
    RONDO_TRY(prepare(call, options, work));
    return call.backend != nullptr ? call.backend->submit(std::span(&call, 1)) : Status();
  }
  /// Gives the communicator a device: its buffers lie there from now on. Collective, once, before the first call.
  /// Errors: of any rank, naming it.
  Status take_device(int ordinal);
  /// nullptr: host memory.
  DeviceEngine* device() { return device_.get(); }
  Backend& backend() { return *backend_; }
  HostBackend& host() { return host_; }

  /// False in a forked child: nothing but rank() and nranks() may be called there, and the destructor must not run.
  bool is_of_this_process() const { return host_.is_of_this_process(); }
  Status check_process() const { return host_.check_process(); }
  Rank rank() const { return rank_; }
  int nranks() const { return nranks_; }
  /// Equal on all ranks.
  const HostLayout& hosts() const { return host_.planner().hosts(); }
  OperationQueue& queue() { return queue_; }
  /// As HostBackend's.
  Planner& planner() { return host_.planner(); }
  void lock() { host_.lock(); }
  void unlock() { host_.unlock(); }
  Transport& transport() { return *transport_; }
  void abort();
  Status error();
  Status start_trace(const std::string& directory, uint64_t num_records);
  Status stop_trace();
  Tracing& tracing() { return *tracing_; }
  Expected<void*> alloc(uint64_t bytes);
  Status free(void* ptr);
  Status register_memory(void* ptr, uint64_t bytes);
  Status deregister_memory(void* ptr);
  /// What explain_plan and forecast_us can be asked. Errors: kInvalidArgument, kUnsupported.
  Status check_planned(const CallShape& shape) const;
  Expected<std::string> explain_plan(const CallShape& shape);
  Expected<double> forecast_us(const CallShape& shape, const CallOptions* options = nullptr);

  // Making other communicators of these ranks, and the end of this one: split.cc, shrink.cc, grow.cc, finalize.cc.
  /// Sets the control plane, which the transport may use. Call it once, before other calls.
  void take_control(std::unique_ptr<ControlPlane> control, const ChildOptions& options);
  /// Makes the public handle that owns `impl`, for code that makes communicators without the public functions.
  static std::unique_ptr<Communicator> handle(std::unique_ptr<CommunicatorImpl> impl) {
    return Communicator::wrap(std::move(impl));
  }
  Expected<std::unique_ptr<CommunicatorImpl>> split(int colour, int key, const Config& config);
  Expected<std::unique_ptr<CommunicatorImpl>> shrink(const std::vector<Rank>& excluded, const Config& config);
  Expected<std::unique_ptr<CommunicatorImpl>> grow(int new_nranks, const UniqueId* id, const Config& config);
  Status finalize();

 private:
  struct Wish;  // what a rank asks for, as it tells the others
  /// `abort`: that the call under way was given, which need not be this communicator's own.
  Expected<std::vector<Wish>> gather_wishes(const Wish& mine, const std::optional<AbortToken>& abort);
  Expected<ChildOptions> child_options(const Config& config) const;
  /// Marks this new communicator as unusable. Peers get `why` when it is destroyed.
  void give_up(const Status& why);
  Status interrupted() const;
  /// Of the control plane, for one call of the caller's.
  ControlGather control_for(std::string_view call);
  Status ready();
  Status check_type(const CallShape& shape) const;
  Status check_count(const CallShape& shape) const;
  /// Also notes the buffers' sizes in the call.
  Status check_buffers(Call& call) const;
  Status check_options(const CallOptions& options, const CallShape& shape) const;
  Status read_options(const CallOptions& options, Call& call) const;
  Status bad(std::string_view argument, std::string_view why) const { return host_.bad(argument, why); }

  const Rank rank_;
  const int nranks_;
  const Settings settings_;
  const uint64_t deadline_ns_;
  std::mutex control_mutex_;  // one call at a time that makes a communicator
  std::unique_ptr<ControlPlane> control_;  // outlives the transport
  std::optional<AbortToken> abort_, wish_abort_;  // this communicator's; that of a running gather_wishes()
  TransportDecorator decorate_;
  std::optional<Binding> binding_;  // of its threads
  std::atomic<bool> finalized_{false};
  std::unique_ptr<Transport> transport_;
  HostBackend host_;
  std::unique_ptr<DeviceEngine> device_;  // of communicators of device memory
  Backend* backend_ = &host_;
  OperationQueue& queue_ = host_.queue();
  std::unique_ptr<Tracing> tracing_;
};

inline CommunicatorImpl& impl_of(Communicator& comm) { return *comm.impl_; }

/// Runs calls that have been checked as one batch: collectives before messages, devices before hosts. Errors: the
/// first; the others run.
Status run_batch(std::vector<Call> calls);
/// The thread's open group, if any: calls are collected instead of run.
bool group_open();
void add_to_group(const Call& call);

}  // namespace rondo
