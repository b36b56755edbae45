// SharedRegions: device memory that all ranks have agreed on, so that a call may go from buffer to buffer.
//
// A region is a range of memory on every rank, each inside one allocation of cuMemAlloc. Its number is equal on all
// ranks. Each rank exports its allocation by IPC handle; ranks of other processes open it, those of the same process
// have it mapped already. An allocation is opened once, however many regions lie in it.
//
//     rank 0   all say what they have  ->  open it  ->  all say that they have it  ->  region 3 lives
//     rank 1   ...
//
// Whether a buffer still belongs to its region only the owner can know, and it asks the driver at every call: memory
// that was freed and allocated again has another buffer id. What does not belong to it lies nowhere.
//
// Where every rank sees the others' memory as it stands (Reach::kAnything, kLegacy), or nobody does (kNothing), nothing
// is exchanged: then regions are merely noted, and have no number that counts.
//
// Thread safety: find and any_agreed from any thread; the rest by one thread at a time, with the device's context
// current.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/driver/driver.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

class SharedRegions {
 public:
  /// Collective: every rank's bytes, by rank.
  using Gather = std::function<Status(std::string_view mine, std::vector<std::string>* all)>;
  /// Which buffers peers can touch; equal on all ranks.
  enum class Reach : uint8_t {
    kNothing,   // none: through host memory, by streams, or turned off
    kAnything,  // all: threads that share a device
    kLegacy,    // all that cuMemAlloc made on the rank's device: threads whose devices reach each other
    kAgreed,    // those in regions
  };
  /// One rank's part of a region, there and here.
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
  /// Makes a region known to whoever uses it, before it lives: by rank.
  using Install = std::function<Status(uint32_t region, std::span<const View> views)>;

  static constexpr uint32_t kMaxRegions = 1024;
  static constexpr uint32_t kNowhere = UINT32_MAX;

  explicit SharedRegions(World world) : world_(std::move(world)) {}
  ~SharedRegions();
  SharedRegions(const SharedRegions&) = delete;
  SharedRegions& operator=(const SharedRegions&) = delete;

  Reach reach() const { return world_.reach; }
  void forbid() { world_.reach = Reach::kNothing; }
  /// What a rank brings into a call that all ranks make.
  struct Wanted {
    std::string_view call;  // its name, at most 15 characters
    void* ptr = nullptr;
    uint64_t bytes = 0;
    bool equal_bytes = false;  // all ranks must give as many
    Status own = {};           // why this rank cannot take part: all ranks hear it
  };
  /// Collective with kAgreed: `bytes` at `ptr` are a region from now on. Errors, the same on all ranks:
  /// kInvalidArgument (no memory of this rank's device, beyond its allocation, a region already), kUnsupported (memory
  /// that cannot be shared), kMismatch, kExhausted, kSystem; gather's. Two rounds, and a handle opened for each rank.
  Status add(const Wanted& wanted, const Gather& gather, const Install& install);
  /// Collective with kAgreed: the region at wanted.ptr ends. No call may use it any more when this begins, and no rank
  /// has it mapped when it returns ok. After an error of gather it has ended here all the same. Errors:
  /// kInvalidArgument, kMismatch (ranks mean different regions; nothing ends), gather's.
  Status end(const Wanted& wanted, const Gather& gather);
  /// The number of the region that holds all of it, 0 where numbers do not count, kNowhere when peers cannot touch it.
  uint32_t find(const void* ptr, uint64_t bytes) const;
  /// Some region lives that ranks have agreed on; equal on all ranks.
  bool any_agreed() const;

 private:
  struct Offer;  // what ranks say to one another
  struct Region {
    cuda::DevicePtr ptr = 0;  // 0: this number is free
    uint64_t bytes = 0;
    uint64_t id = 0;               // of the allocation
    std::vector<uint64_t> opened;  // keys of opened_
  };
  struct Opened {
    Rank owner = 0;
    cuda::DevicePtr base = 0;  // there
    uint64_t id = 0;
    cuda::DevicePtr mapped = 0;
    uint32_t uses = 0;
  };
  Status describe(const Wanted& wanted, Offer* offer) const;
  Expected<std::vector<Offer>> exchange(const Offer& mine, const Gather& gather) const;
  Expected<std::vector<View>> open_all(const std::vector<Offer>& offers, Region* region);
  Expected<cuda::DevicePtr> open(Rank owner, const Offer& offer, Region* region);
  void close(const Region& region);
  void set(uint32_t number, Region region);
  uint32_t number_of(cuda::DevicePtr ptr) const;
  uint32_t free_number() const;

  World world_;
  mutable std::mutex mutex_;     // guards what find() reads
  std::vector<Region> regions_;  // by number
  uint32_t num_live_ = 0;
  std::map<uint64_t, Opened> opened_;
  uint64_t next_key_ = 1;
};

}  // namespace rondo
