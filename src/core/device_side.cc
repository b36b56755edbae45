#include "core/device_side.h"

#include <fmt/format.h>

#include <algorithm>

namespace rondo {

Expected<std::optional<int>> device_of(const Config& config) {
  if (config.memory == Memory::kHost) return std::optional<int>();
  RONDO_TRY_ASSIGN(const cuda::Driver* d, cuda::need_driver());
  if (config.device >= 0) return std::optional<int>(config.device);
  cuda::Device device = 0;
  if (d->context_get_device(&device) != cuda::kSuccess) device = 0;  // no context yet: as CUDA's runtime has it
  return std::optional<int>(device);
}

Expected<std::vector<int>> devices_of(const Config& config, int nranks) {
  if (config.memory == Memory::kHost) return std::vector<int>();
  RONDO_TRY_ASSIGN(const cuda::Driver* d, cuda::need_driver());
  int count = 0;
  RONDO_TRY(cuda::check(d->device_count(&count), "cuDeviceGetCount"));
  std::vector<int> devices = config.devices;
  if (devices.empty())
    for (int r = 0; r < nranks; ++r) devices.push_back(r % std::max(1, count));
  if (devices.size() != static_cast<size_t>(nranks))
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("devices has {} entries for {} ranks", devices.size(), nranks));
  for (size_t r = 0; r < devices.size(); ++r)
    if (devices[r] < 0 || devices[r] >= count)
      return Status(StatusCode::kInvalidArgument, fmt::format("devices[{}] is {}: this process sees {} devices", r,
                                                              devices[r], count));
  return devices;
}

Expected<DeviceWorld> device_world(const std::vector<CudaTransport::DeviceOfRank>& devices, const DeviceLayout& layout,
                                   int engine_wish, bool through_host, bool wide_lines, double link_gigabytes_per_s) {
  DeviceWorld world;
  world.layout = layout;
  world.through_host = through_host;
  world.wide_lines = wide_lines && !through_host;
  if (link_gigabytes_per_s > 0) world.link_gigabytes_per_s = link_gigabytes_per_s;
  bool shared_by_processes = false;
  uint32_t least_multiprocessors = UINT32_MAX;
  for (const auto& a : devices) {
    uint32_t sharing = 0;
    for (const auto& b : devices) {
      if (!a.same_device(b)) continue;
      if (a.same_process(b)) ++sharing;
      else shared_by_processes = true;
    }
    world.ranks_per_device = std::max(world.ranks_per_device, sharing);
    least_multiprocessors = std::min(least_multiprocessors, static_cast<uint32_t>(std::max(1, a.multiprocessors)));
  }
  // A block of every launch must find its place while the others wait for it: one for each multiprocessor is certain.
  world.resident_blocks = std::max(1u, least_multiprocessors / world.ranks_per_device);
  if (engine_wish == 1 && shared_by_processes)
    return Status(StatusCode::kUnsupported,
                  "device_engine is interpreter, but processes share a device: kernels that wait for one another would take "
                  "turns of it; leave it auto, or use stream");
  const bool stream = engine_wish == 2 || shared_by_processes || (engine_wish == 0 && devices.size() == 1);
  world.engine = stream ? DeviceEngineKind::kStream : DeviceEngineKind::kInterpreter;
  return world;
}

Expected<std::unique_ptr<DeviceSide>> DeviceSide::create(Rank rank, int nranks, int ordinal, Transport& host,
                                                         const Settings& settings, const KernelTable& host_kernels,
                                                         const CudaTransport::Gather& gather) {
  std::unique_ptr<DeviceSide> side(new DeviceSide(ordinal));
  CudaTransport::Options options;
  options.ordinal = ordinal;
  options.may_peer = settings.device_peers != 0;
  options.wishes = {settings.device_channels, settings.device_engine};
  RONDO_TRY_ASSIGN(side->transport_, CudaTransport::create(rank, nranks, host, options, gather));
  CudaTransport& t = *side->transport_;
  // Rank 0's wishes count for all; all ranks see the same devices.
  RONDO_TRY_ASSIGN(const DeviceWorld world, device_world(t.devices(), t.layout(), t.devices()[0].wishes.engine,
                                                         t.through_host_somewhere(), t.wide_lines_everywhere(),
                                                         t.slowest_gigabytes_per_s()));
  if (world.engine == DeviceEngineKind::kStream) t.forbid_direct();
  auto engine = DeviceEngine::create(rank, nranks, world, settings.planner, t, host_kernels, settings.init_deadline_s);
  // Whoever has none says so, or the others would wait for it in their first call.
  std::vector<std::string> all;
  RONDO_TRY(gather(engine.ok() ? "" : engine.status().to_string(), &all));
  RONDO_TRY(engine.status());
  for (size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty()) return Status(StatusCode::kSystem, fmt::format("rank {}: {}", r, all[r]));
  side->engine_ = std::move(*engine);
  return side;
}

Expected<void*> DeviceSide::alloc(uint64_t bytes) {
  cuda::CurrentContext current(transport_->context());
  return transport_->alloc(bytes);
}

Status DeviceSide::free(void* ptr) {
  cuda::CurrentContext current(transport_->context());
  return transport_->free(ptr);
}

}  // namespace rondo
