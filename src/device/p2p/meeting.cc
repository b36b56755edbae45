// Connects the devices of a communicator: every rank announces its device and its DevicePage and tests its links. Then
// all ranks agree on the links by the results of both ends.
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/error.h"
#include "base/outcome.h"
#include "base/round_up.h"
#include "device/p2p/cuda_transport.h"

namespace rondo {

template <class C>
void fields(C& c, RemoteAddress& a) {
  c(a.region, a.offset_bytes);
}

struct CudaTransport::Hello {
  DeviceOfRank device;
  RemoteAddress page;

  template <class C>
  friend void fields(C& c, Hello& h) {
    DeviceOfRank& d = h.device;
    c(d.pci_bus_id, d.name, d.process_mark, d.container, d.host_number, d.ordinal, d.multiprocessors, d.capability);
    c.packed(d.process);
    c.packed(d.uuid);
    c(h.page);
  }
};

struct CudaTransport::Tested {
  double slowest = 0;  // GB/s, of this rank's links
  bool wide_lines = true;
  bool crosses = true;  // this rank has no link inside its host
  std::string works;  // a byte for each rank: 1 if the link to it works

  template <class C>
  friend void fields(C& c, Tested& t) {
    c(t.slowest, t.wide_lines, t.crosses, t.works);
  }
};

namespace {

constexpr uint64_t kHostBytesPerLink = uint64_t{32} << 20;  // pinned, for each peer reached through the host

constexpr uint64_t kMulticasts = 4;  // multicasts per rank for which that memory is always sufficient

// A random number that identifies the process, even if hosts have equal process ids.
uint64_t process_mark() {
  static const uint64_t mark = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return mark;
}

// The test pattern that rank `from` writes to rank `to`'s memory.
std::vector<uint64_t> test_pattern(Rank from, Rank to, uint64_t bytes) {
  std::vector<uint64_t> words(bytes / sizeof(uint64_t));
  std::mt19937_64 random(static_cast<uint64_t>(from) << 32 | static_cast<uint64_t>(to));
  for (uint64_t& w : words) w = random();
  return words;
}

}  // namespace

bool CudaTransport::DeviceOfRank::same_device(const DeviceOfRank& o) const {
  return std::memcmp(uuid.bytes, o.uuid.bytes, sizeof uuid.bytes) == 0;
}

CudaTransport::CudaTransport(Rank rank, int nranks, Transport& host, const Options& options)
    : rank_(rank),
      nranks_(nranks),
      host_(host),
      options_(options),
      kept_(std::make_shared<Kept>()),
      local_peers_(host.local_peers().value_or(PeersOnHost())),
      shared_(local_peers_.index.empty() ? &host : local_peers_.transport),
      reached_(static_cast<size_t>(nranks)) {}

Expected<std::unique_ptr<CudaTransport>> CudaTransport::create(Rank rank, int nranks, Transport& host,
                                                               const Options& options, const Gather& gather,
                                                               const ChooseLink& choose, const CopyByKernel& copy) {
  std::unique_ptr<CudaTransport> t(new CudaTransport(rank, nranks, host, options));
  // A rank with an error still takes part, so that all ranks learn of it at once.
  const Status opened = t->open_device();
  RONDO_TRY_ASSIGN(const auto hellos, exchange_outcomes(opened.ok() ? t->make_page() : opened, gather));
  RONDO_TRY(t->read_pages(hellos));
  cuda::CurrentContext current(t->context());
  t->choose_links(choose);
  for (Rank r = 0; r < nranks; ++r)
    if (t->is_tested(r) && !t->write_pattern(r, copy).ok()) t->links_[r].way = DeviceLink::Way::kHost;
  RONDO_TRY(exchange_outcomes(Expected<bool>(true), gather).status());  // all patterns are written
  RONDO_TRY_ASSIGN(const auto tested, exchange_outcomes(Expected<Tested>(t->test_links(copy)), gather));
  RONDO_TRY(t->settle_links(tested));
  if (t->through_host_somewhere()) RONDO_TRY(t->share_host_memory(gather));
  return t;
}

// If any link needs the host, all ranks make host memory: alloc is collective between processes. Between hosts only
// multicasts use it. It is slab 1 of every rank.
Status CudaTransport::share_host_memory(const Gather& gather) {
  const uint64_t bytes = std::max(kHostBytesPerLink * static_cast<uint64_t>(through_host_ ? nranks_ : 1),
                                  kMulticasts * layout_.inbox_bytes(ConnectionForm::kRing));
  RemoteAddress region;
  const auto own = share_on_host(bytes, &region);
  RONDO_TRY_ASSIGN(const auto regions,
                   exchange_outcomes(own.ok() ? Expected<RemoteAddress>(region) : own.status(), gather));
  host_rest_ = {{num_slabs_++, 0, *own}, bytes};
  for (Rank r = 0; r < nranks_; ++r) {
    if (!is_here(r)) continue;
    auto& slabs = reached_[static_cast<size_t>(r)];
    slabs.resize(2);
    slabs[1] = resolve_here(r, regions[static_cast<size_t>(r)]);
    if (!shares_with_processes()) continue;
    RONDO_TRY_ASSIGN(auto pinned, cuda::RegisteredMemory::make({slabs[1], bytes}));
    registered_.push_back(std::move(pinned));
  }
  return {};
}

CudaTransport::~CudaTransport() {
  if (context_.get() == nullptr) return;
  cuda::CurrentContext current(context_.get());
  const cuda::Driver* d = cuda::driver();
  regions_.reset();
  for (const cuda::DevicePtr p : opened_) d->ipc_close_mem_handle(p);
  registered_.clear();
  host_.keep(std::move(kept_));
}

// Threads of one process, and a host's only rank, use pinned memory, which lives as long as any rank may access it.
// Processes use memory that their transport maps in all of them.
Expected<std::byte*> CudaTransport::share_on_host(uint64_t bytes, RemoteAddress* address) {
  if (shares_with_processes()) {
    RONDO_TRY_ASSIGN(void* const memory, shared_->alloc(bytes));
    shared_->adopt_alloc();
    *address = shared_->describe(memory, bytes);
    return static_cast<std::byte*>(memory);
  }
  RONDO_TRY_ASSIGN(auto memory, cuda::PinnedMemory::make_unset(bytes));
  std::byte* const own = memory.as();
  kept_->host.push_back(std::move(memory));
  *address = {0, reinterpret_cast<uint64_t>(own)};
  return own;
}

std::byte* CudaTransport::resolve_here(Rank r, const RemoteAddress& address) const {
  if (shared_ == nullptr) return reinterpret_cast<std::byte*>(address.offset_bytes);
  return shared_->resolve(local_peers_.index.empty() ? r : local_peers_.index[static_cast<size_t>(r)], address);
}

Status CudaTransport::open_device() {
  RONDO_TRY_ASSIGN(const cuda::Driver* d, cuda::need_driver());
  int count = 0;
  RONDO_TRY(cuda::check(d->device_count(&count), "cuDeviceGetCount"));
  if (options_.ordinal < 0 || options_.ordinal >= count)
    return invalid_argument("device is {}: this process sees {} (CUDA_VISIBLE_DEVICES)", options_.ordinal, count);
  cuda::Device device = 0;
  RONDO_TRY(cuda::check(d->device_get(&device, options_.ordinal), "cuDeviceGet"));
  RONDO_TRY_ASSIGN(context_, cuda::PrimaryContext::retain(device));
  RONDO_TRY_ASSIGN(kept_->context, cuda::PrimaryContext::retain(device));
  cuda::CurrentContext current(context_.get());
  RONDO_TRY(current.status());
  loader_ = KernelLoader::of(context_.get());
  RONDO_TRY_ASSIGN(setup_, loader_->setup_stream());
  return {};
}

Expected<CudaTransport::Hello> CudaTransport::make_page() {
  const cuda::Driver* d = cuda::driver();
  cuda::CurrentContext current(context_.get());
  Hello hello;
  hello.device.process = ProcessName::self();
  hello.device.process_mark = process_mark();
  if (struct stat shm; ::stat("/dev/shm", &shm) == 0) hello.device.container = shm.st_dev;
  hello.device.host_number = options_.host_number;
  hello.device.ordinal = options_.ordinal;
  const cuda::Device device = context_.device();
  RONDO_TRY(cuda::check(d->device_uuid(&hello.device.uuid, device), "cuDeviceGetUuid"));
  RONDO_TRY(cuda::check(d->device_pci_bus_id(hello.device.pci_bus_id, sizeof hello.device.pci_bus_id, device),
                        "cuDeviceGetPCIBusId"));
  RONDO_TRY(cuda::check(d->device_name(hello.device.name, sizeof hello.device.name, device), "cuDeviceGetName"));
  int major = 0, minor = 0;
  RONDO_TRY(cuda::check(d->device_attribute(&hello.device.multiprocessors, cuda::kAttrMultiprocessorCount, device),
                        "cuDeviceGetAttribute"));
  RONDO_TRY(cuda::check(d->device_attribute(&major, cuda::kAttrComputeMajor, device), "cuDeviceGetAttribute"));
  RONDO_TRY(cuda::check(d->device_attribute(&minor, cuda::kAttrComputeMinor, device), "cuDeviceGetAttribute"));
  hello.device.capability = 10 * major + minor;

  const uint64_t bytes = round_up(DevicePage::bytes_for(nranks_), 4096);
  RONDO_TRY_ASSIGN(std::byte* const page, share_on_host(bytes, &hello.page));
  if (!shares_with_processes()) std::memset(page, 0, bytes);
  pages_.assign(static_cast<size_t>(nranks_), nullptr);
  pages_[static_cast<size_t>(rank_)] = reinterpret_cast<DevicePage*>(page);
  DevicePage& b = page_of(rank_);
  b.max_entries = DevicePage::entries_for(nranks_);
  for (uint32_t i = 0; i < b.max_entries; ++i) std::atomic_ref<uint32_t>(b.slots()[i].empty).store(1);
  RONDO_TRY_ASSIGN(device_rest_, take_slab(kSlabBytes));
  if (test_part(0).bytes == 0)
    return unsupported("rank {}: {} ranks: too many on one host for a communicator of device memory", rank_, nranks_);
  return hello;
}

Status CudaTransport::read_pages(const std::vector<Hello>& hellos) {
  cuda::CurrentContext current(context_.get());
  for (Rank r = 0; r < nranks_; ++r) {
    const Hello& hello = hellos[static_cast<size_t>(r)];
    devices_.push_back(hello.device);
    across_hosts_ = across_hosts_ || !is_here(r);
    local_peers_apart_ = local_peers_apart_ || (!is_here(r) && hello.device.host_number == options_.host_number);
    std::byte* const page = is_here(r) ? resolve_here(r, hello.page) : nullptr;
    pages_[static_cast<size_t>(r)] = reinterpret_cast<DevicePage*>(page);
    if (page == nullptr || !shares_with_processes()) {
      pages_on_device_.push_back(reinterpret_cast<cuda::DevicePtr>(page));
      continue;
    }
    RONDO_TRY_ASSIGN(auto pinned, cuda::RegisteredMemory::make({page, round_up(DevicePage::bytes_for(nranks_), 4096)}));
    pages_on_device_.push_back(pinned.on_device());
    registered_.push_back(std::move(pinned));
  }
  return {};
}

void CudaTransport::choose_links(const ChooseLink& choose) {
  for (Rank r = 0; r < nranks_; ++r) {
    if (is_here(r)) links_.push_back(choose(devices_[rank_], devices_[r]));
    else links_.push_back({.way = DeviceLink::Way::kProxy});
    if (r == rank_) links_.back().way = DeviceLink::Way::kSameDevice;
  }
}

// The part of a rank's first slab that a local peer fills in the self-test. The rank's own part holds its sent data,
// the last part the data read back.
CudaTransport::TestPart CudaTransport::test_part(int place) const {
  const auto& all = local_peers_.index;
  const auto num = all.empty() ? nranks_ : std::ranges::count_if(all, [](int i) { return i >= 0; });
  const uint64_t bytes = kSlabBytes / static_cast<uint64_t>(num + 1) / 512 * 512;
  return {bytes * static_cast<uint64_t>(place < 0 ? num : place), bytes};
}

Status CudaTransport::write_pattern(Rank peer, const CopyByKernel& copy) {
  RONDO_TRY_ASSIGN(std::byte* const own, reach(rank_, 0));
  RONDO_TRY_ASSIGN(std::byte* const theirs, reach(peer, 0));
  const auto [offset, bytes] = test_part(place_of(rank_));
  const auto pattern = test_pattern(rank_, peer, bytes);
  RONDO_TRY(cuda::upload(setup_, reinterpret_cast<cuda::DevicePtr>(own + offset), pattern.data(), bytes));
  RONDO_TRY(copy(context(), setup_, theirs + offset, own + offset, bytes));
  return cuda::check(cuda::driver()->stream_synchronize(setup_), "cuStreamSynchronize");
}

// Checks this rank's data in the peer's memory, read by a kernel here, and the peer's data in this rank's memory. Some
// bridges drop writes silently.
Status CudaTransport::check_patterns(Rank peer, const CopyByKernel& copy) {
  RONDO_TRY_ASSIGN(std::byte* const own, reach(rank_, 0));
  RONDO_TRY_ASSIGN(std::byte* const theirs, reach(peer, 0));
  const TestPart part = test_part(place_of(rank_));
  const uint64_t bytes = part.bytes;
  std::byte* const back = own + test_part(-1).offset;
  RONDO_TRY(copy(context(), setup_, back, theirs + part.offset, bytes));
  auto holds = [&](const std::byte* at, Rank from, Rank to) -> Status {
    std::vector<uint64_t> found(bytes / sizeof(uint64_t));
    RONDO_TRY(cuda::download(setup_, found.data(), reinterpret_cast<cuda::DevicePtr>(at), bytes));
    return found == test_pattern(from, to, bytes) ? Status() : make_error(StatusCode::kSystem, "the data differs");
  };
  RONDO_TRY(holds(back, rank_, peer));
  return holds(own + test_part(place_of(peer)).offset, peer, rank_);
}

CudaTransport::Tested CudaTransport::test_links(const CopyByKernel& copy) {
  Tested tested;
  for (Rank r = 0; r < nranks_; ++r) {
    DeviceLink& link = links_[r];
    if (is_tested(r) && !check_patterns(r, copy).ok()) link.way = DeviceLink::Way::kHost;
    tested.works += link.way == DeviceLink::Way::kHost ? '\0' : '\1';
    if (r == rank_ || !is_here(r)) continue;
    tested.crosses = false;
    tested.wide_lines = tested.wide_lines && link.whole_lines;
    if (link.gigabytes_per_s > 0 && (tested.slowest == 0 || link.gigabytes_per_s < tested.slowest))
      tested.slowest = link.gigabytes_per_s;
  }
  return tested;
}

// A link works if both its ends find that it works.
Status CudaTransport::settle_links(const std::vector<Tested>& all) {
  wide_lines_ = true;
  all_cross_ = across_hosts_;
  for (Rank r = 0; r < nranks_; ++r) {
    const Tested& theirs = all[static_cast<size_t>(r)];
    wide_lines_ = wide_lines_ && theirs.wide_lines;
    all_cross_ = all_cross_ && theirs.crosses;
    if (theirs.slowest > 0 && (slowest_ == 0 || theirs.slowest < slowest_)) slowest_ = theirs.slowest;
    if (theirs.works.size() != links_.size())
      return make_error(StatusCode::kMismatch, "rank {} runs another version of rondo", r);
    DeviceLink& link = links_[r];
    if (theirs.works[rank_] == '\0' && link.maps()) link.way = DeviceLink::Way::kHost;
    through_host_ = through_host_ || theirs.works.find('\0') != std::string::npos;
  }
  RONDO_TRY(cuda::clear(setup_, reinterpret_cast<cuda::DevicePtr>(device_rest_.next.at), kSlabBytes));
  // Host memory is slower and pinned, so fewer channels and shorter messages are enough for such links. All links of a
  // communicator have the same, because all ranks cut a chunk into the same channels and messages.
  static_assert(DeviceLayout::kSlotBytes <= 64 * 1024);  // a message of LL or LL128 fits a ring (form_of)
  if (through_host_somewhere()) layout_ = {4, 64 * 1024};
  const uint32_t most_per_lane = through_host_somewhere() ? layout_.max_channels : DeviceLayout::kMostChannels;
  if (options_.most_channels > 0) layout_.max_channels = std::min(options_.most_channels, most_per_lane);
  SharedRegions::World world;
  world.rank = rank_;
  world.ordinal = options_.ordinal;
  world.reach = choose_reach();
  for (const DeviceOfRank& d : devices_)
    world.same_process.push_back(d.same_process(devices_[static_cast<size_t>(rank_)]));
  regions_ = std::make_unique<SharedRegions>(std::move(world));
  return {};
}

// Peers' buffers on the same device in the same process can always be touched. On other devices this depends on the
// owner's allocation. Other processes must open them.
SharedRegions::Reach CudaTransport::choose_reach() const {
  using Reach = SharedRegions::Reach;
  if (through_host_somewhere() || !options_.may_be_direct) return Reach::kNothing;
  auto all = [&](auto same) { return std::ranges::all_of(devices_, same); };
  if (!all([&](const auto& d) { return d.same_process(devices_[0]); })) return Reach::kAgreed;
  const bool one_device = all([&](const auto& d) { return d.same_device(devices_[0]); });
  return one_device ? Reach::kAnything : Reach::kLegacy;
}

}  // namespace rondo
