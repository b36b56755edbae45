// DeviceEngine: runs one rank's calls on its device, in the order of the caller's streams.
//
// A call is planned and lowered once for its shape and kept in device memory. Its connections are made at first use,
// which waits for the other ranks. After that a call is one launch (for the stream engine a row of copies and flags) in
// the caller's stream and returns at once. Calls of one communicator run in the order of issue, whatever their streams.
// Calls that one thread issues on several communicators of a device begin in that order, so that ranks with equal
// orders cannot block one another.
//
// A watcher thread detects completed calls, failures in kernels, aborts and deaths. After the first error the
// communicator refuses work with that error. The watcher serves captured calls as long as the communicator lives.
// Thread safety: run() from any thread; the rest as stated.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
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
#include "device/engine/lower.h"
#include "device/engine/stream_order.h"
#include "device/p2p/cuda_transport.h"
#include "engine/operation.h"
#include "trace/flight_record.h"

namespace rondo {

/// One call of one rank.
struct DeviceRequest {
  PlanRequest request;
  const void* in = nullptr;
  void* out = nullptr;
  alignas(8) std::byte premul[8] = {};
  const void* premul_at = nullptr;  // device address, read when the call runs; nullptr: `premul`
  uint64_t in_bytes = 0, out_bytes = 0;  // of this rank's buffers; 0: no buffer
  double deadline_s = 0;            // for each wait; 0: none
  uint64_t tag = 0;
  cuda::Stream stream = nullptr;
  cuda::Event launch_event = nullptr;   // the caller's; recorded when the kernel has begun
  std::shared_ptr<Operation> op;        // receives the result; may be null
  mutable uint64_t scratch_offset = 0;  // set by the engine, so that calls of a group do not share scratch
};

/// A call's shape, compiled, lowered and connected.
struct DevicePlan {
  PlanRequest request;
  std::unique_ptr<VariableCounts> counts;  // storage for request.counts
  bool may_be_direct = false;              // the transport's answer at planning time
  std::unique_ptr<Program> program;
  std::unique_ptr<Program> fallback;  // for a direct program, if some buffers cannot be reached
  DeviceCandidate how;
  std::string kernel, reason;
  cuda::Function function = nullptr;
  std::byte *lowered = nullptr, *lowered_fallback = nullptr;  // DeviceProgram in device memory
  DeviceProgram header{}, header_fallback{};                  // host copies of them
  uint32_t num_lanes = 1, num_channels = 1;                   // maximum of both programs
  uint64_t scratch_bytes() const {
    return std::max(program->scratch_bytes, fallback != nullptr ? fallback->scratch_bytes : 0);
  }
  bool connected = false;
  std::vector<uint32_t> reads, writes;  // table indices of the ends in use
  std::vector<StreamStep> order;        // stream engine
  std::vector<uint32_t> slots;          // stream engine: table indices of the connections in use
  /// Stream engine: the connections of a step, one for each port of a receive and each reader of a send.
  struct StepSlots {
    std::vector<uint32_t> receives, sends;
  };
  std::vector<std::vector<StepSlots>> step_slots;  // by lane and pc
};

/// Reports the result of a call to its waiters. `op` may be null.
inline void end_operation(const std::shared_ptr<Operation>& op, const Status& status) {
  if (op == nullptr) return;
  op->status = status;
  op->done.store(true, std::memory_order_release);
}

/// Parts: device_plans.cc (plans and connections), device_launch.cc and stream_engine.cc (the two ways into a stream),
/// device_watch.cc (completion of calls).
class DeviceEngine {
 public:
  struct Entry {
    DeviceEngine* engine;
    const DeviceRequest* request;
  };
  static Expected<std::unique_ptr<DeviceEngine>> create(Rank rank, const HostLayout& hosts, const DeviceWorld& world,
                                                        const PlannerSettings& settings, CudaTransport& transport,
                                                        const KernelTable& host_kernels, double connect_deadline_s);
  ~DeviceEngine();

  /// Issues the calls of a group, which may belong to several ranks and communicators. Returns when all are in streams.
  /// Nothing is launched unless all could be planned and connected. Returns the first error.
  static Status run(std::span<const Entry> entries);
  /// Waits until a call has ended.
  Status wait(const Operation& op);
  /// Waits until all calls have ended. Returns the first error.
  Status drain();
  /// Ok, or the error after which the communicator refuses work. Never blocks.
  Status error();
  Expected<std::string> explain(const PlanRequest& request);
  Expected<double> forecast_us(const PlanRequest& request);
  DeviceEngineKind kind() const { return world_.engine; }
  const DeviceWorld& world() const { return world_; }
  CudaTransport& transport() { return transport_; }
  /// Stores a region's local addresses for kernels, by rank. Call it before a buffer may be in the region.
  Status write_region(uint32_t region, std::span<const SharedRegions::View> views);
  /// Wakes the watcher, after an abort was raised.
  void wake();

  /// Traces the calls from now on to `trace`, but not running calls. After a call with nullptr none is traced. No other
  /// thread may touch the trace meanwhile. Errors: as DeviceTracing::start.
  Status set_trace(StepTrace* trace);
  /// Called first on a failure, with the error and the running calls. The watch lock is held.
  using FailureHook = std::function<void(const Status&, std::vector<FlightCurrent>)>;
  void set_failure_hook(FailureHook hook);
  /// The running calls, for a flight record.
  std::vector<FlightCurrent> look_at_calls();

 private:
  class Ports;
  struct End {  // one end of a connection, in all channels
    DeviceKey key;
    std::vector<uint32_t> readers;  // for a writer: counter indices
    bool ready = false;
  };
  struct SlotUse {  // a connection of the stream engine
    ConnectionKey key;
    Rank reader;
    bool ready = false;
    CudaTransport::StreamSlots slots;
  };
  struct Outstanding {
    uint64_t sequence;
    cuda::OwnedEvent event;
    OperationShape shape;
    uint64_t tag, issued_ns, deadline_ns;
    std::shared_ptr<Operation> op;
    std::shared_ptr<DevicePlan> plan;
    cuda::PinnedMemory tables;  // of a large launch
    std::shared_ptr<LaunchTrace> trace;
    uint32_t call = 0;            // its index in the launch
    uint64_t message_number = 0;  // for sends and receives: counted per peer and direction
  };
  /// Resources of a launch that stay with one of its calls.
  struct Left {
    cuda::PinnedMemory tables;
    std::shared_ptr<LaunchTrace> trace;
    uint32_t call = 0;
  };
  struct Launch;
  class Rounds;
  class StreamIssue;
  DeviceEngine(Rank rank, const HostLayout& hosts, const DeviceWorld& world, const PlannerSettings& settings,
               CudaTransport& transport, const KernelTable& host_kernels, double connect_deadline_s);
  Status start();
  Expected<std::shared_ptr<DevicePlan>> plan(const PlanRequest& request);
  Status compile_plan(DevicePlan& plan);
  Expected<std::unique_ptr<Program>> compile_program(const PlanRequest& request, const DeviceCandidate& how);
  Status add_fallback(DevicePlan& plan);
  Status lower_plan(DevicePlan& plan);
  Expected<std::byte*> lower_program(const Program& program, const DeviceCandidate& how, uint32_t num_channels,
                                     Ports& ports, DeviceProgram& header);
  DeviceCall device_call(const DeviceRequest& request, const DevicePlan& plan);
  Status order_plan(DevicePlan& plan);
  Status write_end(bool writer, uint32_t index);
  Expected<bool> connect(DevicePlan& plan);
  static Status connect_all(std::span<const Entry> entries, std::span<const std::shared_ptr<DevicePlan>> plans);
  /// Distance from a message's sender to its receiver on the ring of ranks. 0 for messages to itself and collectives.
  Rank distance_of(const PlanRequest& r) const {
    if (!is_point_to_point(r.collective)) return 0;
    return (r.collective == Collective::kSend ? r.root - rank_ + nranks_ : rank_ - r.root + nranks_) % nranks_;
  }
  static Status launch_rounds(std::span<const Entry> entries, std::span<const std::shared_ptr<DevicePlan>> plans);
  static Status launch(Launch& launch);
  Status check_buffer(std::string_view name, const void* ptr) const;
  Status reserve_scratch(uint64_t bytes);
  static Status reserve_scratch(std::span<const Entry> entries, std::span<const std::shared_ptr<DevicePlan>> plans);
  /// Equal for the communicator's ranks in this process, and unique.
  uint64_t communicator() const;
  /// Orders the call after the communicator's earlier calls, and records the event for the next ones.
  Status begin_in(cuda::Stream stream);
  Status end_in(cuda::Stream stream, const DeviceRequest& request, const std::shared_ptr<DevicePlan>& plan, Left left);
  struct StreamItem {
    const DevicePlan* plan;
    const DeviceRequest* request;
    StreamStep step;
  };
  static Status run_streams(std::span<const Entry> entries, std::span<const std::shared_ptr<DevicePlan>> plans);
  Status issue_calls(std::span<const Entry> entries, std::span<const std::shared_ptr<DevicePlan>> plans,
                     cuda::Stream stream);
  Status issue(std::span<const StreamItem> items, cuda::Stream stream);
  uint32_t slot_index(const ConnectionKey& key, Rank reader);
  Status not_this(const DeviceRequest& request, const Status& why) const;
  void watch();
  bool retire();
  void trace_call(Outstanding& o);
  void take_failure(Status status);
  std::vector<FlightCurrent> calls_under_way() const;
  Status look();
  void ask_for_boards() const;
  Status lost_peer() const;
  Status lost_peer_soon() const;
  void fail(Status status);
  Status report() const;
  std::string who_waits(const Outstanding& o, Rank peer) const;

  const Rank rank_;
  const int nranks_;
  const DeviceWorld world_;
  const double connect_deadline_s_;
  CudaTransport& transport_;
  PortTable ports_;
  const KernelTable& host_kernels_;
  Planner planner_;
  DevicePlanner device_planner_;
  std::shared_ptr<KernelLoader> kernels_;

  std::mutex mutex_;                              // guards the following members: one call is issued at a time
  std::list<std::shared_ptr<DevicePlan>> plans_;  // newest first
  std::vector<End> reads_, writes_;
  std::vector<SlotUse> slots_;
  cuda::PinnedMemory control_;
  cuda::DeviceMemory comm_;  // DeviceComm and its tables
  DeviceComm tables_{};      // as on the device
  cuda::DeviceMemory scratch_;
  std::vector<cuda::DeviceMemory> old_scratch_;  // running launches may use it
  cuda::OwnedEvent serial_, graph_serial_;
  cuda::OwnedStream own_stream_;  // for groups with calls of several ranks
  cuda::Stream last_stream_ = nullptr;
  bool any_ = false, captured_ = false;
  uint64_t next_sequence_ = 1;
  std::map<std::pair<Rank, bool>, uint64_t> message_numbers_;  // by peer and direction (true: receive)
  // The same without captured calls: the numbers that messages carry.
  uint64_t num_calls_ = 0;
  std::map<std::pair<Rank, bool>, uint64_t> num_messages_;
  std::vector<cuda::OwnedEvent> free_events_;

  std::mutex watch_mutex_;  // guards the following members; locked after mutex_
  std::condition_variable watch_changed_;
  std::deque<Outstanding> outstanding_;
  Status failure_;
  FailureHook failure_hook_;
  DeviceTracing tracing_;
  bool issuing_ = false;   // a call is being issued and is not in outstanding_ yet
  bool replayed_ = false;  // calls were captured: they may run at any time, unannounced
  bool stop_ = false, look_now_ = false;
  std::atomic<bool> failed_{false};
  Thread watcher_;
};

}  // namespace rondo
