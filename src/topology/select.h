// The link between two ranks on GPUs, with the reason: pure functions of a description (machine.h), which can be read
// and tested without the machine. All ranks of a communicator must decide from the same description.
//
// In this order:
//   1. another host                     nothing here: another transport
//   2. the same device                  its own memory; another process maps it (CUDA IPC)
//   3. P2P impossible                   host memory: MIG slices, no access by the driver, other containers
//   4. P2P not preferred                host memory: farther than RONDO_P2P_LEVEL
//   5. NVLink or NVSwitch               P2P
//   6. PCIe up to the level             P2P
// Every mapped link is tested when a communicator is made (device/p2p): host memory replaces one that fails.
//
// The default level is NCCL's (src/graph/paths.cc): pxb, because processors forward data between devices more slowly
// than to memory; sys for two AMD-hosted devices.
//
// Bandwidths are expectations for one direction of a single pair, for display and as the planner's start; select.cc
// has their sources. They are not measurements. Thread safety: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "rondo/status.h"
#include "topology/machine.h"

namespace rondo {

enum class LinkKind : uint8_t {
  kNone,          // no GPU transport joins the two
  kLocal,         // one device, one process
  kSharedDevice,  // one device, two processes
  kNvlink,        // P2P, links between the two devices
  kNvswitch,      // P2P, links to a switch
  kPcie,          // P2P
  kHost,          // through pinned host memory
};

struct LinkPreferences {
  bool p2p = true;               // RONDO_P2P_LEVEL=loc: false
  std::optional<PciPath> level;  // RONDO_P2P_LEVEL, of PCIe
  bool nvlink_only = false;      // RONDO_P2P_LEVEL=nvl
  bool stream_engine = false;    // RONDO_DEVICE_ENGINE=stream
};
/// From the values of p2p_level (empty: not set) and device_engine.
LinkPreferences parse_preferences(std::string_view level, std::string_view engine);

struct LinkChoice {
  LinkKind kind = LinkKind::kNone;
  std::string reason;
  double expected_gbps = 0;  // 10^9 bytes per second in one direction; 0: unknown
  bool direct = false;       // kernels and copies can access the other's buffers, once mapped
  bool ll128 = false;        // a warp's store of 128 bytes arrives as a whole
};

/// For two different ranks on devices of the machine; symmetric. O(1).
LinkChoice select_link(const GpuMachine& machine, const RankPlace& a, const RankPlace& b,
                       const LinkPreferences& preferences);

/// The engine that runs a communicator's schedules on devices; equal on all its ranks.
enum class EngineKind : uint8_t {
  kInterpreter,  // one kernel per group of calls, which waits on the device
  kStream,       // copies, stream flags and reduction kernels; no kernel waits
};
constexpr std::string_view engine_name(EngineKind k) {
  return k == EngineKind::kInterpreter ? "interpreter" : "stream";
}

struct EngineChoice {
  EngineKind kind = EngineKind::kStream;
  std::string reason;
  uint32_t most_blocks = 0;  // kInterpreter: blocks of a rank's launch, so that all fit on their device together
};

/// For all ranks of a communicator on one host. `least_blocks`: the minimum of a rank's interpreter;
/// `blocks_per_multiprocessor`: how many of its blocks fit on one. Ranks of other communicators are unknown here, but
/// their launches use the same devices. O(ranks squared).
EngineChoice select_engine(const GpuMachine& machine, std::span<const RankPlace> ranks, uint32_t least_blocks,
                           uint32_t blocks_per_multiprocessor, const LinkPreferences& preferences);

}  // namespace rondo
