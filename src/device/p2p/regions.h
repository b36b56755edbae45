// SharedRegions: device memory that all ranks have agreed on, so that a call may go from buffer to buffer.
//
// A region is a range of memory on every rank, each within one allocation of cuMemAlloc. It has the same number on all
// ranks. Each rank exports its allocation by IPC handle. Ranks of other processes open it; in the same process it is
// already mapped. An allocation is opened once, even if several regions are in it.
//
//     rank 0   all ranks offer their memory  ->  open it  ->  all ranks confirm  ->  region 3 is ready
//     rank 1   ...
//
// Only the owner can check whether a buffer still belongs to its region. It queries the driver at every call: memory
// that was freed and allocated again has another buffer id. A buffer outside of its region is unreachable. If every
// rank can access the others' memory directly (Reach::kAnything, kLegacy), or no rank can (kNothing), nothing is
// exchanged. Then regions are only noted, and their numbers have no meaning.
//
// Thread safety: find and any_agreed from any thread; the rest by one thread at a time, with the device's context
// current.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "device/driver/driver.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

class SharedRegions {
 public:
  /// Collective: gathers every rank's bytes, by rank.
  using Gather = std::function<Status(std::string_view mine, std::vector<std::string>* all)>;
  /// The buffers that peers can touch; equal on all ranks.
  enum class Reach : uint8_t {
    kNothing,   // none: through host memory, by streams, or turned off
    kAnything,  // all: threads that share a device
    kLegacy,    // cuMemAlloc memory of the rank's device: threads whose devices reach each other
    kAgreed,    // buffers in regions
  };
  /// One rank's part of a region: its address there and here.
  struct View {
    cuda::DevicePtr theirs = 0;
    uint64_t bytes = 0;
    cuda::DevicePtr ours = 0;
  };
  struct World {
    Rank rank = 0;
    int ordinal = 0;                 // of this rank's device
    std::vector<bool> same_process;  // by rank
    Reach reach = Reach::kNothing;
  };
  /// Announces a region to its users before it is ready. Views by rank.
  using Install = std::function<Status(uint32_t region, std::span<const View> views)>;

  static constexpr uint32_t kMaxRegions = 1024;
  static constexpr uint32_t kNowhere = UINT32_MAX;

  explicit SharedRegions(World world);
  ~SharedRegions();

  Reach reach() const { return world_.reach; }
  /// From now on the engine touches no peer's buffers. Equal on all ranks.
  void forbid() { world_.reach = Reach::kNothing; }
  /// A rank's arguments in a collective call.
  struct Wanted {
    std::string_view call;  // name of the call, at most 15 characters
    void* ptr = nullptr;
    uint64_t bytes = 0;
    bool equal_bytes = false;  // all ranks must pass the same size
    Status own = {};           // this rank's error, reported to all ranks
  };
  /// Collective for kAgreed: makes `bytes` at `ptr` a region. Errors, the same on all ranks: kInvalidArgument (not
  /// memory of this rank's device, beyond its allocation, or already a region), kUnsupported (memory cannot be shared),
  /// kMismatch, kExhausted, kSystem; gather's. Two rounds, and one opened handle per rank.
  Status add(const Wanted& wanted, const Gather& gather, const Install& install);
  /// Collective for kAgreed: ends the region at wanted.ptr. No call may use it any more. When this returns ok, no rank
  /// has it mapped. If gather fails, the region has ended here anyway. Errors: kInvalidArgument, kMismatch (ranks mean
  /// different regions; nothing ends), gather's.
  Status end(const Wanted& wanted, const Gather& gather);
  /// Number of the region with the whole range. 0 if numbers have no meaning, kNowhere if peers cannot touch it.
  uint32_t find(const void* ptr, uint64_t bytes) const;
  /// True if at least one agreed region exists. Equal on all ranks.
  bool any_agreed() const;

 private:
  struct Offer;  // message between ranks
  struct Mapping;  // another process's allocation, mapped as long as a region is in it
  struct Region {
    cuda::DevicePtr ptr = 0;  // 0: this number is free
    uint64_t bytes = 0;
    uint64_t id = 0;  // of the allocation
    std::vector<std::shared_ptr<Mapping>> opened;
  };
  Status describe(const Wanted& wanted, Offer* offer) const;
  Expected<std::vector<Offer>> exchange(const Expected<Offer>& mine, const Gather& gather) const;
  Expected<std::vector<View>> open_all(const std::vector<Offer>& offers, Region* region);
  Expected<cuda::DevicePtr> open(Rank owner, const Offer& offer, Region* region);
  void swap(uint32_t number, Region& region);
  uint32_t number_of(cuda::DevicePtr ptr) const;
  uint32_t free_number() const;

  World world_;
  mutable std::mutex mutex_;     // guards the members that find() reads
  std::vector<Region> regions_;  // by number
  std::map<std::tuple<Rank, cuda::DevicePtr, uint64_t>, std::weak_ptr<Mapping>> opened_;  // by owner, base and id
};

}  // namespace rondo
