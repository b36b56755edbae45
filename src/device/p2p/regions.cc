#include "device/p2p/regions.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/outcome.h"

namespace rondo {
namespace {

constexpr std::string_view kLegacyRemedy =
    "only memory of cuMemAlloc (cudaMalloc) can be shared, not managed, pinned or pooled memory, nor memory of "
    "cuMemCreate (in PyTorch set expandable_segments:False); or use rondo_alloc";

std::optional<uint64_t> attribute(cuda::DevicePtr ptr, int which) {
  uint64_t value = 0;
  if (cuda::driver()->pointer_attribute(&value, which, ptr) != cuda::kSuccess) return std::nullopt;
  return value;
}

// Memory of cuMemAlloc on the device. Peer devices and other processes can access it.
bool is_legacy(cuda::DevicePtr ptr, int ordinal) {
  return attribute(ptr, cuda::kPointerMemoryType) == cuda::kMemoryTypeDevice &&
         attribute(ptr, cuda::kPointerIpcCapable).value_or(0) != 0 &&
         attribute(ptr, cuda::kPointerDeviceOrdinal) == static_cast<uint64_t>(ordinal);
}

}  // namespace

struct SharedRegions::Mapping {
  explicit Mapping(cuda::DevicePtr at_) : at(at_) {}
  ~Mapping() { cuda::driver()->ipc_close_mem_handle(at); }
  const cuda::DevicePtr at;
};

SharedRegions::SharedRegions(World world) : world_(std::move(world)) {}
SharedRegions::~SharedRegions() = default;

struct SharedRegions::Offer {
  uint32_t region = kNowhere;
  std::string call;
  uint64_t equal_bytes = 0;  // 0: sizes may differ
  cuda::DevicePtr ptr = 0, base = 0;
  uint64_t bytes = 0, id = 0;
  cuda::IpcMemHandle handle{};

  template <class C>
  friend void fields(C& c, Offer& o) {
    c(o.region, o.call, o.equal_bytes, o.ptr, o.base, o.bytes, o.id);
    c.packed(o.handle);
  }
};

Status SharedRegions::describe(const Wanted& wanted, Offer* offer) const {
  RONDO_TRY(wanted.own);
  const auto bad = [&](StatusCode code, std::string_view why) {
    return make_error(code, "ptr {} {}", wanted.ptr, why);
  };
  if (wanted.bytes == 0) return invalid_argument("bytes is 0");
  const auto ptr = reinterpret_cast<cuda::DevicePtr>(wanted.ptr);
  const auto type = attribute(ptr, cuda::kPointerMemoryType);
  if (!type) return bad(StatusCode::kInvalidArgument, "is not CUDA memory");
  if (number_of(ptr) != kNowhere)
    return bad(StatusCode::kInvalidArgument, "is already registered: deregister it first, even if it was freed");
  offer->ptr = ptr;
  offer->bytes = wanted.bytes;
  if (world_.reach == Reach::kNothing || world_.reach == Reach::kAnything) return {};
  if (!is_legacy(ptr, world_.ordinal))
    return attribute(ptr, cuda::kPointerDeviceOrdinal) != static_cast<uint64_t>(world_.ordinal)
               ? bad(StatusCode::kInvalidArgument, fmt::format("is not on device {}", world_.ordinal))
               : bad(StatusCode::kUnsupported, fmt::format("cannot be shared: {}", kLegacyRemedy));
  const cuda::Driver* d = cuda::driver();
  size_t size = 0;
  RONDO_TRY(cuda::check(d->mem_get_address_range(&offer->base, &size, ptr), "cuMemGetAddressRange"));
  if (wanted.bytes > size - (ptr - offer->base))
    return bad(StatusCode::kInvalidArgument,
               fmt::format("and {} bytes exceed its allocation, which ends {} bytes after ptr", wanted.bytes,
                           size - (ptr - offer->base)));
  offer->id = attribute(ptr, cuda::kPointerBufferId).value_or(0);
  if (world_.reach != Reach::kAgreed) return {};
  if (offer->region == kNowhere)
    return make_error(StatusCode::kExhausted,
                      "{} regions exist, the maximum of a communicator: deregister some, or register whole allocations",
                      kMaxRegions);
  const bool others = std::ranges::count(world_.same_process, false) != 0;
  return others ? cuda::check(d->ipc_get_mem_handle(&offer->handle, offer->base), "cuIpcGetMemHandle") : Status();
}

// All ranks judge the same bytes, so all get the same result.
Expected<std::vector<SharedRegions::Offer>> SharedRegions::exchange(const Expected<Offer>& mine,
                                                                    const Gather& gather) const {
  RONDO_TRY_ASSIGN(std::vector<Offer> offers, exchange_outcomes(mine, gather));
  for (size_t r = 1; r < offers.size(); ++r) {
    const Offer &a = offers[0], &b = offers[r];
    if (a.call != b.call)
      return make_error(StatusCode::kMismatch, "rank 0 calls {}, rank {} calls {}", a.call, r, b.call);
    if (a.region != b.region)
      return make_error(StatusCode::kMismatch, "{}: rank 0 uses its region {}, rank {} its region {}", a.call, a.region,
                        r, b.region);
    if (a.equal_bytes != b.equal_bytes)
      return make_error(StatusCode::kMismatch, "{}: ranks disagree on the bytes: {} on rank 0, {} on rank {}", a.call,
                        a.equal_bytes, b.equal_bytes, r);
  }
  return offers;
}

Status SharedRegions::add(const Wanted& wanted, const Gather& gather, const Install& install) {
  Offer mine;
  mine.call = wanted.call;
  mine.region = free_number();
  mine.equal_bytes = wanted.equal_bytes ? wanted.bytes : 0;
  const Status described = describe(wanted, &mine);
  Region region{mine.ptr, mine.bytes, mine.id, {}};
  if (world_.reach != Reach::kAgreed) {
    if (!described.ok()) return make_error(described.code(), "rank {}: {}", world_.rank, described.message());
    const std::lock_guard lock(mutex_);
    regions_.push_back(std::move(region));
    return {};
  }
  RONDO_TRY_ASSIGN(const std::vector<Offer> offers,
                   exchange(described.ok() ? Expected<Offer>(mine) : Expected<Offer>(described), gather));

  const auto views = open_all(offers, &region);
  std::vector<std::string> all;
  Status agreed = gather(encode_outcome(views.ok() ? install(mine.region, *views) : views.status()), &all);
  const bool heard = agreed.ok();
  for (size_t r = 0; r < all.size() && agreed.ok(); ++r) agreed = read_outcome(all[r], r);
  if (agreed.ok()) {
    swap(mine.region, region);
    return {};
  }
  region.opened.clear();
  if (heard) (void)gather("closed", &all);  // after this no rank has it mapped, and owners may free their memory
  return agreed;
}

Status SharedRegions::end(const Wanted& wanted, const Gather& gather) {
  Offer mine;
  mine.call = wanted.call;
  mine.region = number_of(reinterpret_cast<cuda::DevicePtr>(wanted.ptr));
  Status own = wanted.own;
  if (own.ok() && mine.region == kNowhere) own = invalid_argument("ptr {} is not registered", wanted.ptr);
  if (world_.reach != Reach::kAgreed) {
    if (!own.ok()) return make_error(own.code(), "rank {}: {}", world_.rank, own.message());
    const std::lock_guard lock(mutex_);
    regions_.erase(regions_.begin() + mine.region);
    return {};
  }
  bool heard = false;
  const auto said = own.ok() ? Expected<Offer>(mine) : Expected<Offer>(own);
  const auto offers = exchange(said, [&](std::string_view said, std::vector<std::string>* all) {
    const Status s = gather(said, all);
    heard = s.ok();
    return s;
  });
  if (heard && !offers.ok()) return offers.status();  // all ranks have the error, and nothing changed
  if (mine.region != kNowhere) {
    Region ended;
    swap(mine.region, ended);
  }
  RONDO_TRY(offers.status());
  std::vector<std::string> all;
  return gather("closed", &all);
}

Expected<std::vector<SharedRegions::View>> SharedRegions::open_all(const std::vector<Offer>& offers, Region* region) {
  std::vector<View> views;
  for (size_t r = 0; r < offers.size(); ++r) {
    const Offer& o = offers[r];
    cuda::DevicePtr ours = o.ptr;  // same address within a process and with peer access
    if (!world_.same_process[r]) {
      auto base = open(static_cast<Rank>(r), o, region);
      if (!base.ok())
        return make_error(base.status().code(), "opening {} bytes of rank {}: {}", o.bytes, r, base.status().message());
      ours = *base + (o.ptr - o.base);
    }
    views.push_back({o.ptr, o.bytes, ours});
  }
  return views;
}

Expected<cuda::DevicePtr> SharedRegions::open(Rank owner, const Offer& offer, Region* region) {
  std::weak_ptr<Mapping>& known = opened_[{owner, offer.base, offer.id}];
  auto mapping = known.lock();
  if (mapping == nullptr) {
    cuda::DevicePtr mapped = 0;
    RONDO_TRY(cuda::check(cuda::driver()->ipc_open_mem_handle(&mapped, offer.handle, cuda::kIpcLazyPeerAccess),
                          "cuIpcOpenMemHandle"));
    known = mapping = std::make_shared<Mapping>(mapped);
  }
  region->opened.push_back(mapping);
  return mapping->at;
}

void SharedRegions::swap(uint32_t number, Region& region) {
  const std::lock_guard lock(mutex_);
  if (regions_.size() <= number) regions_.resize(number + 1);
  std::swap(regions_[number], region);
}

uint32_t SharedRegions::number_of(cuda::DevicePtr ptr) const {
  for (size_t i = 0; i < regions_.size(); ++i)
    if (regions_[i].ptr == ptr && ptr != 0) return static_cast<uint32_t>(i);
  return kNowhere;
}

uint32_t SharedRegions::free_number() const {
  for (size_t i = 0; i < regions_.size(); ++i)
    if (regions_[i].ptr == 0) return static_cast<uint32_t>(i);
  return regions_.size() < kMaxRegions ? static_cast<uint32_t>(regions_.size()) : kNowhere;
}

uint32_t SharedRegions::find(const void* ptr, uint64_t bytes) const {
  const auto at = reinterpret_cast<cuda::DevicePtr>(ptr);
  switch (world_.reach) {
    case Reach::kNothing: return kNowhere;
    case Reach::kAnything: return 0;
    case Reach::kLegacy: return is_legacy(at, world_.ordinal) ? 0 : kNowhere;
    case Reach::kAgreed: break;
  }
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < regions_.size(); ++i) {
    const Region& r = regions_[i];
    if (r.ptr == 0 || at < r.ptr || at - r.ptr >= r.bytes || bytes > r.bytes - (at - r.ptr)) continue;
    if (attribute(at, cuda::kPointerBufferId) == r.id) return static_cast<uint32_t>(i);
  }
  return kNowhere;
}

bool SharedRegions::any_agreed() const {
  const std::lock_guard lock(mutex_);
  return world_.reach == Reach::kAgreed && std::ranges::any_of(regions_, [](const Region& r) { return r.ptr != 0; });
}

}  // namespace rondo
