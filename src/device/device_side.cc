#include "device/device_side.h"

#include <algorithm>

#include "base/error.h"
#include "base/outcome.h"
#include "device/engine/grid_reduce.h"
#include "device/engine/images.h"
#include "device/topology/probe.h"
#include "topology/select.h"

namespace rondo {

Expected<std::optional<int>> device_of(const Config& config) {
  if (config.memory == Memory::kHost) return std::optional<int>();
  RONDO_TRY_ASSIGN(const cuda::Driver* d, cuda::need_driver());
  if (config.device >= 0) return std::optional<int>(config.device);
  cuda::Device device = 0;
  if (d->context_get_device(&device) != cuda::kSuccess) device = 0;  // no context yet: the default of CUDA's runtime
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
    return invalid_argument("devices has {} entries for {} ranks", devices.size(), nranks);
  for (size_t r = 0; r < devices.size(); ++r)
    if (devices[r] < 0 || devices[r] >= count)
      return invalid_argument("devices[{}] is {}: this process sees {} devices", r, devices[r], count);
  return devices;
}

namespace {

// The properties of the devices and links, equal on all ranks. Errors: kUnsupported (the interpreter cannot serve
// these ranks).
Expected<DeviceWorld> describe_world(const CudaTransport& t, std::string_view engine) {
  DeviceWorld world;
  world.layout = t.layout();
  world.proxied = t.has_proxy();
  world.all_cross = t.all_cross();
  world.through_host = t.through_host_inside();
  if (t.through_host_somewhere()) world.stream_slot_bytes = 256 * 1024;  // pinned memory is scarce
  world.wide_lines = t.wide_lines_inside();
  if (t.slowest_gigabytes_per_s() > 0) world.link_gigabytes_per_s = t.slowest_gigabytes_per_s();
  GpuMachine machine;  // only the devices in use
  std::vector<RankPlace> places;
  std::vector<const CudaTransport::DeviceOfRank*> known, processes;
  auto index_of = [](auto& list, const auto& same) {
    return static_cast<size_t>(std::find_if(list.begin(), list.end(), same) - list.begin());
  };
  for (const auto& d : t.devices()) {
    const size_t device = index_of(known, [&](const auto* o) { return o->same_device(d); });
    if (device == known.size()) {
      known.push_back(&d);
      machine.devices.emplace_back().multiprocessors = std::max(1, d.multiprocessors);
    }
    const size_t process = index_of(processes, [&](const auto* o) { return o->same_process(d); });
    if (process == processes.size()) processes.push_back(&d);
    places.push_back({0, process, static_cast<uint32_t>(device), 0});
  }
  const LinkPreferences preferences = parse_preferences("", engine);
  // One block per multiprocessor always fits next to the blocks of other ranks. A ring has three lanes.
  const EngineChoice choice = select_engine(machine, places, 3, 1, preferences);
  if (engine == "interpreter" && choice.kind == EngineKind::kStream)
    return unsupported("device_engine is interpreter, but {}: leave it auto, or use stream", choice.reason);
  world.resident_blocks = choice.most_blocks;
  const bool alone = engine == "auto" && t.devices().size() == 1;  // copies need no waiting kernel
  world.engine = alone ? EngineKind::kStream : choice.kind;
  return world;
}

// The index of a rank's device in the description. Adds the device if it is missing.
uint32_t place_of(GpuMachine& machine, const CudaTransport::DeviceOfRank& d) {
  const std::string uuid = uuid_text(d.uuid);
  const auto known = std::find_if(machine.devices.begin(), machine.devices.end(),
                                  [&](const GpuDevice& g) { return g.uuid.ends_with(uuid); });  // after GPU- or MIG-
  const auto place = static_cast<uint32_t>(known - machine.devices.begin());
  if (known != machine.devices.end()) return place;
  GpuDevice hidden;
  hidden.name = d.name;
  hidden.uuid = uuid;
  hidden.pci = d.pci_bus_id;
  hidden.capability_major = d.capability / 10;
  hidden.capability_minor = d.capability % 10;
  hidden.multiprocessors = d.multiprocessors;
  add_hidden_device(machine, std::move(hidden));
  return place;
}

Status copy_by_kernel(cuda::Context context, cuda::Stream stream, std::byte* to, const std::byte* from,
                      uint64_t bytes) {
  RONDO_TRY_ASSIGN(const auto kernel, KernelLoader::of(context)->find(collective_images(), kGridCopyName));
  ReduceArgs args{};
  args.src[0] = from;
  args.dst[0] = to;
  args.step.num_src = args.step.num_dst = 1;
  args.step.own = args.step.kNoOwn;
  args.step.num_elems = bytes;
  void* params[] = {&args};
  cuda::LaunchConfig config{16, 1, 1, kBlockThreads, 1, 1, 0, stream, nullptr, 0};
  return cuda::check(cuda::driver()->launch_kernel(&config, kernel, params, nullptr), "cuLaunchKernelEx");
}

}  // namespace

DeviceLink choose_link(GpuMachine& machine, const LinkPreferences& preferences, const CudaTransport::DeviceOfRank& a,
                       const CudaTransport::DeviceOfRank& b) {
  const RankPlace x{0, 0, place_of(machine, a), a.container},
      y{0, a.same_process(b) ? uint64_t{0} : uint64_t{1}, place_of(machine, b), b.container};
  const LinkChoice c = select_link(machine, x, y, preferences);
  DeviceLink link;
  link.way = c.kind == LinkKind::kLocal || c.kind == LinkKind::kSharedDevice ? DeviceLink::Way::kSameDevice
             : c.kind == LinkKind::kHost || c.kind == LinkKind::kNone        ? DeviceLink::Way::kHost
                                                                             : DeviceLink::Way::kPeer;
  link.whole_lines = c.ll128;
  link.gigabytes_per_s = c.expected_gbps;
  return link;
}

Expected<std::unique_ptr<DeviceEngine>> make_device_engine(Rank rank, const HostLayout& hosts, int ordinal,
                                                           Transport& host, const Settings& settings,
                                                           const KernelTable& host_kernels,
                                                           const CudaTransport::Gather& gather) {
  CudaTransport::Options options;
  options.ordinal = ordinal;
  options.host_number = hosts.host(rank);
  const LinkPreferences preferences = parse_preferences(settings.p2p_level, settings.device_engine);
  options.most_channels = settings.device_blocks.most;
  options.may_be_direct = settings.device_direct;
  auto probed = probe_machine();  // after an error, the ranks' own descriptions must suffice
  GpuMachine machine = probed.ok() ? std::move(*probed) : GpuMachine();
  RONDO_TRY_ASSIGN(
      auto transport,
      CudaTransport::create(
          rank, hosts.nranks(), host, options, gather,
          [&](const auto& a, const auto& b) { return choose_link(machine, preferences, a, b); }, copy_by_kernel));
  CudaTransport& t = *transport;
  // These settings are rank 0's on all ranks. All ranks see the same devices.
  RONDO_TRY_ASSIGN(const DeviceWorld world, describe_world(t, settings.device_engine));
  if (world.engine == EngineKind::kStream) t.regions().forbid();
  const PlannerSettings planning = settings.for_planner();
  auto engine =
      DeviceEngine::create({rank, hosts, world, planning, host_kernels, settings.init_timeout_s}, std::move(transport));
  // A rank without an engine reports it. Otherwise the others would wait for it in their first call.
  RONDO_TRY(exchange_outcomes(engine.ok() ? Expected<bool>(true) : engine.status(), gather).status());
  return engine;
}

}  // namespace rondo
