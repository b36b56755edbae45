// DeviceEngine: runs one rank's calls on its device, in the order of the caller's streams.
//
// A call is planned and lowered once for its shape. Shapes that differ only in counts share a program in device memory
// (program_cache.h). Its connections are made at first use, which waits for the other ranks. After that a call puts one
// launch (with the stream engine: copies and flags) into the caller's stream and returns at once. Calls of one
// communicator run in the order of issue, whatever their streams. Calls that one thread issues on several communicators
// of a device run side by side if they fit, else in that order (driver/launch_order.h), so that ranks with equal orders
// cannot block one another.
//
// A watcher thread detects completed calls, failures in kernels, aborts and deaths. After the first error the
// communicator refuses work with that error. The watcher serves captured calls as long as the communicator lives.
// Thread safety: as Backend; the rest as stated.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/thread.h"
#include "device/driver/handles.h"
#include "device/driver/kernel_loader.h"
#include "device/engine/device_planner.h"
#include "device/engine/device_program.h"
#include "device/engine/device_tracing.h"
#include "device/engine/joined_streams.h"
#include "device/engine/launch_tables.h"
#include "device/engine/lower.h"
#include "device/engine/program_cache.h"
#include "device/engine/stream_order.h"
#include "device/p2p/cuda_transport.h"
#include "engine/backend.h"
#include "trace/flight_record.h"

namespace rondo {

/// A call's shape, compiled, lowered and connected.
struct DevicePlan {
  CallShape request;
  bool may_be_direct = false;  // the transport's answer at planning time
  DeviceCandidate how;
  LoweredProgram main;
  LoweredProgram fallback;  // for a direct program, if some buffers cannot be reached
  std::string reason;
  cuda::Function function = nullptr;
  uint32_t num_lanes = 1, num_channels = 1;  // maximum of both programs
  uint64_t scratch_bytes() const {
    return std::max(main.program->scratch_bytes, fallback.program != nullptr ? fallback.program->scratch_bytes : 0);
  }
  bool connected = false;
  std::vector<uint32_t> ends;  // in use, indices of DeviceEngine::ends_
  // Stream engine:
  std::vector<StreamStep> order;
  struct StepEnds {  // of a step: one for each port of a receive and each reader of a send
    std::vector<uint32_t> receives, sends;
  };
  std::vector<std::vector<StepEnds>> step_ends;  // by lane and pc
};

/// Parts: device_plans.cc (plans and connections), device_launch.cc and stream_engine.cc (the two ways into a stream),
/// device_watch.cc (completion of calls).
class DeviceEngine final : public Backend {
 public:
  struct Options {
    Rank rank;
    const HostLayout& hosts;
    const DeviceWorld& world;
    const PlannerSettings& settings;
    const KernelTable& host_kernels;
    double connect_deadline_s;
  };
  static Expected<std::unique_ptr<DeviceEngine>> create(const Options& options,
                                                        std::unique_ptr<CudaTransport> transport);
  ~DeviceEngine() override;

  Status check(Call& call) const override;
  /// Returns when all calls are in streams. Nothing is launched unless all could be planned and connected.
  Status submit(std::span<Call> calls) override;
  Status wait(WorkState& work, uint64_t end_ns) override;
  Status drain() override;
  /// True if all issued calls have ended.
  bool is_idle();
  Status finish(Status ended) override;
  Status error() override;
  Expected<std::string> explain(const CallShape& shape) override;
  Expected<double> forecast_us(const CallShape& shape) override;
  // Collective if the ranks are processes.
  Expected<void*> alloc(uint64_t bytes, const ControlGather& control) override;
  Status free(void* ptr, const ControlGather& control) override;
  Status register_memory(void* ptr, uint64_t bytes, const ControlGather& control) override;
  Status deregister_memory(void* ptr, const ControlGather& control) override;
  /// Errors: as DeviceTracing::start.
  Status set_trace(StepTrace* trace) override;
  void wake() override;
  int ordinal() const override { return transport_.device(); }
  CudaTransport& transport() { return transport_; }
  /// Number of programs that were copied to the device.
  uint64_t num_program_uploads() {
    const std::lock_guard lock(mutex_);
    return programs_.num_uploads();
  }
  /// Stores a region's local addresses for kernels, by rank. Call it before a buffer may be in the region.
  Status write_region(uint32_t region, std::span<const SharedRegions::View> views);
  /// Called first on a failure, with the error and the running calls. The watch lock is held.
  using FailureHook = std::function<void(const Status&, std::vector<FlightCurrent>)>;
  void set_failure_hook(FailureHook hook);
  /// The running calls, for a flight record.
  std::vector<FlightCurrent> look_at_calls();

 private:
  class Ports;
  struct End {  // one end of a connection: in all channels, or the slots of the stream engine
    DeviceKey key;
    Rank other;  // the rank that makes the other half; stream engine: the reader
    bool ready = false;
    // Interpreter:
    bool writes = false;
    uint32_t index = 0;             // in a channel's table of writing or of reading ends
    std::vector<uint32_t> readers;  // for a writer: counter indices
    // Stream engine:
    CudaTransport::StreamSlots slots;
  };
  struct Outstanding {
    uint64_t sequence = 0;        // 0 for sends and receives
    uint64_t message_number = 0;  // for sends and receives: counted per peer and direction
    cuda::OwnedEvent event;
    OperationShape shape;
    uint64_t tag = 0, issued_ns = 0, deadline_ns = 0;
    std::shared_ptr<WorkState> work;  // nullptr: nobody waits
    std::shared_ptr<DevicePlan> plan;
    cuda::PinnedMemory tables;  // of a large launch
    std::shared_ptr<LaunchTrace> trace;
    uint32_t call = 0;  // its index in the launch
    uint64_t number() const { return sequence != 0 ? sequence : message_number; }
    std::string name() const {
      return fmt::format("{} #{} of {} {}", collective_name(shape.collective), number(), shape.count_elems,
                         dtype_name(shape.dtype));
    }
  };
  /// A call on its way into a stream.
  struct Item {
    DeviceEngine* engine;
    const Call* call;
    std::shared_ptr<DevicePlan> plan;
    uint64_t scratch_offset = 0;  // calls of one group do not share scratch
    cuda::Stream stream() const { return static_cast<cuda::Stream>(call->stream); }
    cuda::Event launch_event() const { return static_cast<cuda::Event>(call->launch_event); }
    void end(const Status& s) const {
      if (call->work != nullptr) call->work->end(s);
    }
  };
  struct Launch;
  class Rounds;
  class StreamIssue;
  class StreamShare;
  struct SetUp;
  DeviceEngine(const Options& options, std::unique_ptr<CudaTransport> transport);
  Status start();
  void warn_of_few_queues() const;
  Status make_tables();
  Expected<std::shared_ptr<DevicePlan>> plan(const CallShape& request);
  Status compile_plan(DevicePlan& plan);
  Expected<std::unique_ptr<Program>> compile_program(const CallShape& request, const DeviceCandidate& how);
  Status add_fallback(DevicePlan& plan);
  Status lower_plan(DevicePlan& plan);
  Status lower_program(LoweredProgram& to, const DeviceCandidate& how, uint32_t num_channels, Ports& ports);
  /// Copies to device memory, and returns when every stream sees it.
  template <class T>
  Status put(const T* to, std::span<const T> from) const {
    return cuda::upload(transport_.setup_stream(), reinterpret_cast<cuda::DevicePtr>(to), from.data(),
                        from.size_bytes());
  }
  LaunchCall launch_call(const Item& item);
  Expected<cuda::PinnedMemory> take_tables(uint64_t bytes);
  Status order_plan(DevicePlan& plan);
  Status make_ready(End& end);
  Expected<bool> connect(DevicePlan& plan);
  static Status connect_all(std::span<const Item> items);
  /// Distance from a message's sender to its receiver on the ring of ranks. 0 for messages to itself and collectives.
  Rank distance_of(const CallShape& r) const {
    if (!is_point_to_point(r.collective)) return 0;
    return (r.collective == Collective::kSend ? r.root - rank_ + nranks_ : rank_ - r.root + nranks_) % nranks_;
  }
  static Status launch_rounds(std::span<const Item> items);
  static Status launch(Launch& launch);
  Status check_buffer(std::string_view name, const void* ptr, Dtype dtype) const;
  Status reserve_scratch(uint64_t bytes);
  static Status reserve_scratch(std::span<Item> items);
  /// Equal for the communicator's ranks in this process, and unique.
  uint64_t communicator() const;
  /// Orders the call after the communicator's earlier calls, and records the event for the next ones.
  /// deadline_ns: of a call whose issue may wait for another rank; 0: of none.
  Status begin_in(cuda::Stream stream, uint64_t deadline_ns = 0);
  /// `o`: the launch's data for this call.
  Status end_in(cuda::Stream stream, const Item& item, Outstanding o);
  struct StreamItem {
    const Item* item;
    StreamStep step;
  };
  static Status run_streams(std::span<const Item> items);
  uint32_t stream_end(DevicePlan& plan, const ConnectionKey& key, Rank reader);
  Status prepare(Item& item);
  SharedRegions::Install install();
  void watch();
  bool retire();
  void trace_call(Outstanding& o);
  void take_failure(Status status);
  std::vector<FlightCurrent> calls_under_way() const;
  Status look();
  void ask_for_pages() const;
  Status aborted() const;
  Status lost_peer() const;
  Status lost_peer_soon() const;
  void fail(Status status);
  Status report() const;
  std::string who_waits(const Outstanding& o, Rank peer) const;

  const int nranks_;
  const DeviceWorld world_;
  const double connect_deadline_s_;
  const std::unique_ptr<CudaTransport> owned_;
  CudaTransport& transport_;
  PortTable ports_;
  const KernelTable& host_kernels_;
  Planner planner_;
  DevicePlanner device_planner_;
  std::shared_ptr<KernelLoader> kernels_;

  std::mutex mutex_;                              // guards the following members: one call is issued at a time
  ProgramCache programs_;
  PlanCache<DevicePlan> plans_;
  std::vector<End> ends_;
  cuda::PinnedMemory control_;
  cuda::DeviceMemory comm_;  // DeviceComm and its tables
  DeviceComm tables_{};      // as on the device
  cuda::DeviceMemory scratch_;
  std::vector<cuda::DeviceMemory> old_scratch_;  // running launches may use it
  cuda::OwnedEvent serial_, graph_serial_;
  cuda::OwnedStream own_stream_;  // for groups with calls of several ranks
  bool captured_ = false;
  uint64_t next_sequence_ = 1;
  std::map<std::pair<Rank, bool>, uint64_t> message_numbers_;  // by peer and direction (true: receive)
  // The same without captured calls: the numbers that messages carry.
  uint64_t num_calls_ = 0;
  std::map<std::pair<Rank, bool>, uint64_t> num_messages_;
  std::set<ProgramCache::Shared> captured_programs_;  // replays use them as long as the communicator lives

  std::mutex watch_mutex_;  // guards the following members; locked after mutex_
  std::condition_variable watch_changed_;
  std::deque<Outstanding> outstanding_;
  std::vector<cuda::OwnedEvent> free_events_;
  std::vector<cuda::PinnedMemory> free_tables_;
  Status failure_;
  FailureHook failure_hook_;
  DeviceTracing tracing_{transport_};
  bool issuing_ = false;   // a call is being issued and is not in outstanding_ yet
  uint64_t issue_since_ns_ = 0, issue_deadline_ns_ = 0;
  bool replayed_ = false;  // calls were captured: they may run at any time, unannounced
  bool stop_ = false, look_now_ = false;
  std::atomic<bool> failed_{false};
  Thread watcher_;
};

}  // namespace rondo
