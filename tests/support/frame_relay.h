// A process that acts as a switch between the cables of hosts (network namespaces). It forwards every frame to all
// other ports after a delay, and may lose some. The kernel's own delay (netem) is not available on every machine.
//
// Frames go through packet sockets with their offload headers, so the hosts' TCP may pass 64 KiB at once, as through a
// bridge.
//
// Needs CAP_NET_RAW in the network namespace in which it runs. Thread safety: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rondo::testing {

struct ProxyOptions {
  double delay_ms = 0;  // one way
  double loss = 0;      // share of the frames, 0 to 1
  uint64_t seed = 1;    // seed of the losses
  int record_fd = -1;   // all frames are written here as they come
  size_t alter_bytes = 0;  // flips one bit in the middle of the first frame of this size; 0: of none
  int ready_fd = -1;    // one byte is written here when it forwards
};

/// Forwards between these interfaces until the process is killed. Returns only on errors, with their text.
std::string relay_frames(const std::vector<std::string>& interfaces, const ProxyOptions& options);

}  // namespace rondo::testing
