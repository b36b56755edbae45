// LaunchOrder: which launches of a thread may run side by side on a device.
//
// All blocks of a launch wait for other ranks, so all of them must be resident. Launches that fit next to one another
// do not wait for one another, because other ranks may issue them in another order. A launch that does not fit next to
// the earlier ones begins when these have ended. Therefore ranks that issue their launches in one order cannot block
// one another: when the first unfinished launch may begin, the resident launches leave room for it.
//
// Launches of one rank of a communicator follow one another anyway. Each capture has an order of its own.
// Thread safety: one thread; the device's context is current.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/driver/handles.h"

namespace rondo {

/// One rank's part of a launch.
struct LaunchPart {
  const void* rank;       // identifies the rank of the communicator
  uint64_t communicator;  // equal for its ranks in this process
  uint32_t share;         // blocks of a rank that can be resident next to the communicator's other ranks
  uint32_t blocks;
};
/// Number of blocks of these ranks that can be resident together.
uint32_t room_of(std::span<const LaunchPart> parts);

class LaunchOrder {
 public:
  /// Before a launch: its stream waits for the launches that leave too little room. capture: of the stream, 0: none.
  /// Errors: kSystem.
  Status begin(cuda::Stream stream, uint64_t capture, std::span<const LaunchPart> launch);
  /// After it. Errors: kSystem.
  Status launched(cuda::Stream stream, std::span<const LaunchPart> launch);

 private:
  struct Running {  // launches of the same ranks; their largest parts
    std::vector<LaunchPart> parts;
    cuda::OwnedEvent ended;  // the last one
  };
  bool fits(std::span<const LaunchPart> launch) const;
  void drop_ended(std::vector<Running>& launches);
  uint64_t capture_ = 0;
  std::vector<Running> beside_;  // may run side by side
  std::vector<Running> before_;  // launches that those wait for
  std::vector<cuda::OwnedEvent> unused_;
};

}  // namespace rondo
