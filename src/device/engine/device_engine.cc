#include "device/engine/device_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>

#include "base/error.h"
#include "base/no_cancel.h"
#include "base/round_up.h"
#include "device/driver/capture.h"
#include "device/engine/images.h"

namespace rondo {

DeviceEngine::DeviceEngine(const Options& o, std::unique_ptr<CudaTransport> transport)
    : Backend(o.rank),
      nranks_(o.hosts.nranks()),
      world_(o.world),
      connect_deadline_s_(o.connect_deadline_s),
      owned_(std::move(transport)),
      transport_(*owned_),
      ports_(o.rank, transport_),
      host_kernels_(o.host_kernels),
      planner_(o.rank, o.hosts, o.settings, ports_, o.host_kernels),
      device_planner_(nranks_, world_, planner_),
      kernels_(KernelLoader::of(transport_.context())),
      programs_(transport_) {}

Expected<std::unique_ptr<DeviceEngine>> DeviceEngine::create(const Options& options,
                                                             std::unique_ptr<CudaTransport> transport) {
  std::unique_ptr<DeviceEngine> e(new DeviceEngine(options, std::move(transport)));
  RONDO_TRY(e->start());
  return e;
}

// Streams that share a hardware queue wait for one another, also those of ranks that wait for each other.
void DeviceEngine::warn_of_few_queues() const {
  static std::atomic<bool> warned{false};
  const auto& devices = transport_.devices();
  const auto& own = devices[static_cast<size_t>(rank_)];
  const auto ranks = std::count_if(devices.begin(), devices.end(),
                                   [&](const auto& d) { return d.same_process(own) && d.same_device(own); });
  const uint32_t queues = cuda::num_hardware_queues();
  if (ranks < 2 || ranks < queues || warned.exchange(true)) return;  // a stream for each rank, and one for set-up
  std::fprintf(stderr,
               "rondo: %td ranks of this process use device %d, whose streams share %u hardware queues: a rank may "
               "stand behind another rank that waits for it, until the deadline. Set CUDA_DEVICE_MAX_CONNECTIONS=32 "
               "before CUDA is initialised, make each rank a process, or call all ranks in groups of one thread\n",
               ranks, transport_.device(), queues);
}

Status DeviceEngine::start() {
  cuda::CurrentContext current(transport_.context());
  RONDO_TRY(current.status());
  RONDO_TRY(kernels_->load(collective_images()));
  RONDO_TRY_ASSIGN(control_, cuda::PinnedMemory::make(sizeof(DeviceControl)));
  RONDO_TRY_ASSIGN(serial_, cuda::OwnedEvent::make());
  RONDO_TRY_ASSIGN(graph_serial_, cuda::OwnedEvent::make());
  if (world_.engine == EngineKind::kInterpreter) RONDO_TRY(make_tables());
  warn_of_few_queues();
  return watcher_.start("the thread that watches a device", [this] { watch(); });
}

// DeviceComm and its tables, in one allocation.
Status DeviceEngine::make_tables() {
  const uint64_t channels = world_.layout.max_channels;
  tables_.rank = static_cast<uint32_t>(rank_);
  tables_.num_ranks = static_cast<uint32_t>(nranks_);
  tables_.max_channels = world_.layout.max_channels;
  tables_.write_stride = tables_.read_stride = static_cast<uint32_t>(32 * nranks_ + 64);
  if (transport_.regions().reach() == SharedRegions::Reach::kAgreed) tables_.max_regions = SharedRegions::kMaxRegions;
  uint64_t total = 0;
  auto reserve = [&](uint64_t bytes) { return std::exchange(total, total + round_up(bytes, 256)); };
  reserve(sizeof(DeviceComm));
  const uint64_t writes = reserve(channels * tables_.write_stride * sizeof(DeviceWriteEnd));
  const uint64_t reads = reserve(channels * tables_.read_stride * sizeof(DeviceReadEnd));
  const uint64_t peers = reserve(channels * tables_.num_ranks * sizeof(PeerBuffers));
  const uint64_t lanes = reserve(channels * DeviceProgram::kMaxLanes * sizeof(LaneProgress));
  const uint64_t meetings = reserve(channels * 64);
  const uint64_t regions = reserve(uint64_t{tables_.max_regions} * tables_.num_ranks * sizeof(PeerRegion));
  RONDO_TRY_ASSIGN(comm_, cuda::DeviceMemory::make(total));
  std::byte* const at = comm_.as();
  tables_.writes = reinterpret_cast<DeviceWriteEnd*>(at + writes);
  tables_.reads = reinterpret_cast<DeviceReadEnd*>(at + reads);
  tables_.peers = reinterpret_cast<PeerBuffers*>(at + peers);
  tables_.lanes = reinterpret_cast<LaneProgress*>(at + lanes);
  tables_.meetings = reinterpret_cast<uint64_t*>(at + meetings);
  if (tables_.max_regions != 0) tables_.regions = reinterpret_cast<const PeerRegion*>(at + regions);
  RONDO_TRY(cuda::clear(transport_.setup_stream(), comm_.get(), total));
  return put(comm_.as<DeviceComm>(), {&tables_, 1});
}

DeviceEngine::~DeviceEngine() {
  (void)drain();
  {
    const std::lock_guard lock(watch_mutex_);
    stop_ = true;
  }
  watch_changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  cuda::CurrentContext current(transport_.context());
  {
    // Ends the operations that could not be waited for.
    const std::lock_guard lock(watch_mutex_);
    for (Outstanding& o : outstanding_)
      if (o.work != nullptr) o.work->end(Status(StatusCode::kAborted, "its communicator was destroyed"));
    outstanding_.clear();
  }
}

// Running calls do not read this entry: a new region has no buffers yet, and no call uses an ended one.
Status DeviceEngine::write_region(uint32_t region, std::span<const SharedRegions::View> views) {
  if (region >= tables_.max_regions) return {};
  std::vector<PeerRegion> entries;
  for (const SharedRegions::View& v : views)
    entries.push_back({reinterpret_cast<const std::byte*>(v.theirs), v.bytes, reinterpret_cast<std::byte*>(v.ours)});
  return put(tables_.regions + uint64_t{region} * tables_.num_ranks, std::span<const PeerRegion>(entries));
}

// Rank 0's status page has the id if the host's transport has none. A page without an id is identified by its address.
uint64_t DeviceEngine::communicator() const {
  if (const uint64_t agreed = transport_.agreed_id(); agreed != 0) return agreed;
  StatusPage* const first = transport_.page(0);
  const uint64_t id = std::atomic_ref(first->communicator).load(std::memory_order_relaxed);
  return id != 0 ? id : reinterpret_cast<uint64_t>(first);
}

Status DeviceEngine::check_buffer(std::string_view name, const void* ptr, Dtype dtype) const {
  if (ptr == nullptr) return {};
  if (reinterpret_cast<uintptr_t>(ptr) % dtype_bytes(dtype) != 0)  // a kernel would fault, which ends the context
    return invalid_argument("rank {}: {} is at {}, which is no multiple of the {} bytes of {}: align the buffer", rank_,
                            name, ptr, dtype_bytes(dtype), dtype_name(dtype));
  unsigned type = 0;
  const cuda::Result known =
      cuda::driver()->pointer_attribute(&type, cuda::kPointerMemoryType, reinterpret_cast<cuda::DevicePtr>(ptr));
  if (known == cuda::kSuccess) return {};  // device memory, or host memory that the device can access
  return invalid_argument("rank {}: {} is not CUDA memory: this communicator's buffers must be on device {}", rank_,
                          name, transport_.device());
}

Status DeviceEngine::reserve_scratch(uint64_t bytes) {
  if (bytes <= scratch_.size_bytes()) return {};
  RONDO_TRY_ASSIGN(auto larger,
                   cuda::DeviceMemory::make(round_up(std::max(bytes, 2 * scratch_.size_bytes()), 1 << 21)));
  std::swap(larger, scratch_);
  if (larger.size_bytes() != 0) old_scratch_.push_back(std::move(larger));
  return {};
}

// The calls of a launch may run concurrently, channel by channel. Each has its own scratch.
Status DeviceEngine::reserve_scratch(std::span<Item> items) {
  for (const Item& e : items) {
    uint64_t bytes = 0;
    for (Item& item : items) {
      if (item.engine != e.engine) continue;
      item.scratch_offset = bytes;
      bytes += round_up(item.plan->scratch_bytes(), 256);
    }
    cuda::CurrentContext current(e.engine->transport_.context());
    RONDO_TRY(e.engine->reserve_scratch(bytes));
  }
  return {};
}

Status DeviceEngine::check(Call& c) const {
  if (is_point_to_point(c.shape.collective)) c.shape.min_blocks = c.shape.max_blocks = 0;  // messages take what is left
  return {};
}

Status DeviceEngine::prepare(Item& item) {
  cuda::CurrentContext current(transport_.context());
  RONDO_TRY(error());
  const Call& call = *item.call;
  RONDO_TRY(check_buffer("in", call.in, call.shape.types().input));
  RONDO_TRY(check_buffer("out", call.out, call.shape.types().output));
  RONDO_TRY_ASSIGN(item.plan, plan(item.call->shape));
  return {};
}

Status DeviceEngine::submit(std::span<Call> calls) {
  const NoCancel no_cancel;
  std::vector<Item> items;
  std::vector<DeviceEngine*> engines;
  for (const Call& c : calls) {
    DeviceEngine* const engine = static_cast<DeviceEngine*>(c.backend);
    items.push_back({engine, &c, nullptr});
    if (c.work != nullptr) c.work->submitted.store(true, std::memory_order_release);
    if (std::find(engines.begin(), engines.end(), engine) == engines.end()) engines.push_back(engine);
  }
  std::sort(engines.begin(), engines.end());  // lock several engines always in the same order
  std::vector<std::unique_lock<std::mutex>> locks;
  for (DeviceEngine* e : engines) locks.emplace_back(e->mutex_);

  Status failed;
  {
    const cuda::OutsideCapture outside;
    const Item* at = items.data();  // whose fault it is
    for (Item& item : items)
      if (failed.ok()) at = &item, failed = item.engine->prepare(item);
    if (failed.ok()) {
      at = items.data();
      failed = reserve_scratch(items);
      if (failed.ok()) failed = connect_all(items);
    }
    if (!failed.ok()) failed = at->engine->not_started(at->call->shape, failed);
  }
  if (failed.ok()) {
    std::erase_if(items, [](const Item& item) {  // nothing to move, on any rank; of all_to_all_v only on this rank
      const bool empty = item.plan->main.program->num_loops == 0 && !item.plan->main.program->pairwise;
      if (empty) item.end({});
      return empty;
    });
    // All ranks of a communicator have the same engine, so this order is equal on all ranks.
    const auto streams = std::stable_partition(
        items.begin(), items.end(), [](const Item& item) { return item.engine->world_.engine != EngineKind::kStream; });
    if (streams != items.begin()) failed = launch_rounds(std::span(items.begin(), streams));
    if (failed.ok() && streams != items.end()) failed = run_streams(std::span(streams, items.end()));
  }
  // A caller's mistake changes nothing. After any other error the ranks no longer agree on the running calls.
  const StatusCode code = failed.code();
  if (!failed.ok() && code != StatusCode::kInvalidArgument && code != StatusCode::kUnsupported)
    for (DeviceEngine* e : engines) e->fail(failed);
  if (!failed.ok())
    for (const Item& item : items)
      if (item.call->work != nullptr && !item.call->work->done.load(std::memory_order_acquire)) item.end(failed);
  return failed;
}

Status DeviceEngine::finish(Status ended) {
  (void)set_trace(nullptr);
  set_failure_hook(nullptr);
  return ended;
}

SharedRegions::Install DeviceEngine::install() {
  return [this](uint32_t region, std::span<const SharedRegions::View> views) { return write_region(region, views); };
}

// Makes or ends a region: one exchange at a time, outside of captures. Before a region ends, this rank waits for its
// calls, which may use it. After them it touches no other rank's memory, and their exit credits ensure that no other
// rank touches its own. Errors of the calls go to the callers that wait for them.
struct DeviceEngine::SetUp {
  SetUp(DeviceEngine& e, const ControlGather& control, bool ends)
      : guard(control.mutex), current(e.transport_.context()) {
    if (ends && e.transport_.regions().reach() == SharedRegions::Reach::kAgreed) (void)e.drain();
  }
  const std::lock_guard<std::mutex> guard;
  const cuda::OutsideCapture outside;
  const cuda::CurrentContext current;
};

Expected<void*> DeviceEngine::alloc(uint64_t bytes, const ControlGather& control) {
  const SetUp set_up(*this, control, false);
  return transport_.alloc_shared(bytes, control.gather, install());
}

Status DeviceEngine::free(void* ptr, const ControlGather& control) {
  const SetUp set_up(*this, control, true);
  return transport_.free_shared(ptr, control.gather);
}

Status DeviceEngine::register_memory(void* ptr, uint64_t bytes, const ControlGather& control) {
  const SetUp set_up(*this, control, false);
  return transport_.register_memory(ptr, bytes, control.gather, install());
}

Status DeviceEngine::deregister_memory(void* ptr, const ControlGather& control) {
  const SetUp set_up(*this, control, true);
  return transport_.deregister_memory(ptr, control.gather);
}

Expected<double> DeviceEngine::forecast_us(const CallShape& request) {
  const std::lock_guard lock(mutex_);
  RONDO_TRY_ASSIGN(const auto found, device_planner_.candidates(request));
  return found[0].forecast_ns / 1e3;
}

Expected<std::string> DeviceEngine::explain(const CallShape& request) {
  const std::lock_guard lock(mutex_);
  RONDO_TRY_ASSIGN(const auto found, device_planner_.candidates(request));
  std::string text = device_planner_.describe(found[0]);
  if (found[0].algorithm->direct && nranks_ > 1 && !transport_.reaches_everything()) {
    RONDO_TRY_ASSIGN(const auto others, device_planner_.fallbacks(request, found[0]));
    DeviceCandidate direct = found[0];
    device_planner_.limit_channels(request, others[0].num_channels, direct);
    text = fmt::format("{}; {} when a rank's buffers cannot be reached", device_planner_.describe(direct),
                       device_planner_.describe(others[0]));
  }
  if (found.size() > 1) text += "; next best " + device_planner_.describe(found[1]);
  return text;
}

}  // namespace rondo
