// CommunicatorImpl: what a Communicator is made of. One per rank.
//
// Thread safety: submit() from any thread (the queue's driver role serialises); abort() and error() at any time.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "api/control_plane.h"
#include "base/forks.h"
#include "device/device_side.h"
#include "engine/engine.h"
#include "engine/progress.h"
#include "engine/tracing.h"
#include "plan/planner.h"
#include "plan/settings.h"
#include "rondo/communicator.h"
#include "transport/transport.h"

namespace rondo {

/// An operation with what keeps it alive: shared by the caller's Work and, until it is done, by the communicator.
struct WorkState {
  CommunicatorImpl* comm = nullptr;
  std::shared_ptr<Plan> plan;
  Operation op;
  std::atomic<bool> submitted{false};  // false while it waits in an open group
};

/// One call's arguments as the caller gave them.
struct Call {
  Collective collective;
  const void* in = nullptr;
  void* out = nullptr;
  uint64_t count_elems = 0;
  Dtype dtype = Dtype::kFloat32;
  Op op = Op::kSum;
  Rank root = 0;  // send, recv: the peer
  std::shared_ptr<const VariableCounts> counts = nullptr;
};

/// The same, checked.
struct CallArguments {
  PlanRequest request;
  const void* in;
  void* out;
  double deadline_s;
  uint64_t in_bytes = 0, out_bytes = 0;  // of the buffers that this rank holds
  uint64_t tag = 0;
  std::shared_ptr<const VariableCounts> counts = nullptr;  // what request.counts points to
  void* stream = nullptr;                                  // of device memory
  void* launch_event = nullptr;                            // likewise
  const void* premul_at = nullptr;                         // in device memory; nullptr: premul
  alignas(8) std::byte premul[8] = {};  // copied: a grouped call runs when the caller's scale may be gone
};

class CommunicatorImpl {
 public:
  CommunicatorImpl(Rank rank, const HostLayout& hosts, const Settings& settings, const SpinSettings& spin,
                   std::unique_ptr<Transport> transport);
  ~CommunicatorImpl();

  /// Checks, plans and runs (work == nullptr) or starts (work != nullptr) one call; inside a group it is put off.
  Status submit(const Call& call, const CallOptions* options, Work* work);
  /// Plans and admits a call; the caller does not hold the driver role.
  Status admit(const CallArguments& call, const std::shared_ptr<WorkState>& state);
  static Work make_work(std::shared_ptr<WorkState> state) {
    Work w;
    w.state_ = std::move(state);
    return w;
  }
  /// Gives the communicator its device side: its buffers lie on device `ordinal` from now on. Collective, once, before
  /// the first call. Errors: of any rank, naming it.
  Status take_device(int ordinal);
  DeviceSide* device() { return device_.get(); }
  std::optional<int> device_ordinal() const {
    return device_ != nullptr ? std::optional<int>(device_->ordinal()) : std::nullopt;
  }
  /// What a call is to the device engine. `state` may be null.
  DeviceRequest device_request(const CallArguments& call, const std::shared_ptr<WorkState>& state) const;
  /// Before an asynchronous call is admitted. Errors: those of Thread::start.
  Status make_progress_thread();
  /// Lets the progress thread take care of what has been admitted.
  void kick_progress();

  /// False in a forked child: nothing but rank() and nranks() may be called there, and the destructor must not run.
  bool is_of_this_process() const { return static_cast<bool>(made_here_); }
  Status check_process() const;
  Rank rank() const { return rank_; }
  int nranks() const { return nranks_; }
  /// Equal on all ranks.
  const HostLayout& hosts() const { return planner_.hosts(); }
  OperationQueue& queue() { return queue_; }
  /// Belongs to the driver: between lock() and unlock().
  Planner& planner() { return planner_; }
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
  Status check_planned(const PlanRequest& request) const;
  std::string explain_plan(const PlanRequest& request);
  Expected<double> forecast_us(const PlanRequest& request, const CallOptions* options);
  /// Takes the driver role, waiting for it: whoever has it waits with a deadline, so this ends too.
  void lock();
  void unlock() { queue_.leave(); }

  // Other communicators of these ranks, and the end of this one: split.cc, shrink.cc, grow.cc, finalize.cc.
  /// How this rank reaches the others outside of the data path; the transport may use it. Called once, at the start.
  void take_control(std::unique_ptr<ControlPlane> control, const ChildOptions& options);
  /// The handle that owns it: for those who make communicators by other ways than the public ones.
  static std::unique_ptr<Communicator> handle(std::unique_ptr<CommunicatorImpl> impl) {
    return Communicator::wrap(std::move(impl));
  }
  Expected<std::unique_ptr<CommunicatorImpl>> split(int colour, int key, const Config& config);
  Expected<std::unique_ptr<CommunicatorImpl>> shrink(const std::vector<Rank>& excluded, const Config& config);
  Expected<std::unique_ptr<CommunicatorImpl>> grow(int new_nranks, const UniqueId* id, const Config& config);
  Status finalize();

 private:
  Status submit_to_device(const CallArguments& c, Work* work);
  struct Wish;  // what a rank asks for, as it tells the others
  /// `abort`: that the call under way was given, which need not be this communicator's own.
  Expected<std::vector<Wish>> gather_wishes(const Wish& mine, const std::optional<AbortToken>& abort);
  Expected<ChildOptions> child_options(const Config& config) const;
  /// It will not be used: its peers hear why when it is destroyed.
  void give_up(const Status& why);
  Status interrupted() const;
  /// Of the control plane, for one call of the caller's; under control_mutex_.
  CudaTransport::Gather gather_for(std::string_view call);
  Status ready();
  Status drain();
  Status check(CallArguments& call, const CallOptions* options) const;
  Status check_type(const PlanRequest& request) const;
  Status check_count(const PlanRequest& request) const;
  /// Also notes the buffers' sizes in the call.
  Status check_buffers(CallArguments& call, const TypeRow& types) const;
  Status read_options(const CallOptions& options, CallArguments& call) const;
  Status bad(std::string_view argument, std::string_view why) const;
  Status not_started(const CallArguments& call, const Status& why) const;
  void fill(const CallArguments& call, const Plan& plan, Operation& op) const;
  void forget_finished();

  const Rank rank_;
  const int nranks_;
  const MadeHere made_here_;
  const Settings settings_;
  std::mutex control_mutex_;  // one call at a time that makes a communicator
  std::unique_ptr<ControlPlane> control_;  // outlives the transport
  std::optional<AbortToken> abort_, wish_abort_;  // its own; of gather_wishes under way
  TransportDecorator decorate_;
  std::optional<Binding> binding_;  // of its threads
  std::atomic<bool> finalized_{false};
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<DeviceSide> device_;  // of communicators of device memory
  OperationQueue queue_;
  Planner planner_;
  Operation blocking_;  // serves all blocking calls on an idle queue; the driver's
  std::vector<std::shared_ptr<WorkState>> under_way_;  // the driver's
  std::mutex progress_mutex_;
  std::unique_ptr<ProgressThread> progress_;
  std::unique_ptr<Tracing> tracing_;
};

inline CommunicatorImpl& impl_of(Communicator& comm) { return *comm.impl_; }

/// The thread's open group, if any: calls are collected instead of run.
bool group_open();
void add_to_group(CommunicatorImpl& comm, const CallArguments& call, Work* work);

}  // namespace rondo
