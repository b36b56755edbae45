// DevicePlanner: chooses algorithm, protocol, channels and message size for calls on devices. Like the host's planner
// it uses only inputs that are equal on all ranks, and it gets the usable algorithms from the host's planner.
//
// The forecast is a latency per step and a bandwidth (DeviceCosts), from the algorithm's row in the registry:
//     launch + steps inside hosts x hop(protocol) + the longer of
//         bytes over the link / (bandwidth x efficiency(protocol))
//         bytes that the rank's blocks read and write / (channels x rate(protocol))
// and between hosts
//     + crossings x crossing + bytes that leave the busiest host / network
// The constants of links are documented figures of one hop; those of channels were measured on one device
// (docs/gpu-status.md).
// Thread safety: belongs to the holder of the communicator's device engine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/engine/device_program.h"
#include "device/p2p/layout.h"
#include "plan/planner.h"
#include "topology/select.h"

namespace rondo {

/// Properties of the devices and links, equal on all ranks.
struct DeviceWorld {
  EngineKind engine = EngineKind::kInterpreter;
  DeviceLayout layout;
  uint32_t resident_blocks = 64;                   // for one rank's launch, so that all ranks of its device fit
  bool wide_lines = false;                         // all links inside hosts support LL128
  bool through_host = false;                       // some link inside a host uses host memory
  bool proxied = false;                            // some link is between hosts
  bool all_cross = false;                          // all links are
  uint64_t stream_slot_bytes = uint64_t{1} << 20;  // stream engine: its longest message
  double link_gigabytes_per_s = 25;                // the slowest link
};

/// For one hop, in ns and as shares of the link's bandwidth: NCCL's published figures for NVLink and PCIe.
struct DeviceCosts {
  double launch_ns = 5000;
  double hop_ns[kNumDeviceProtocols] = {3400, 600, 1900};  // by DeviceProtocol: simple, LL, LL128
  double host_hop_ns[kNumDeviceProtocols] = {5700, 1000, 2500};
  double efficiency[kNumDeviceProtocols] = {1.0, 0.5, 0.92};
  double channel_gigabytes_per_s[kNumDeviceProtocols] = {65, 18, 25};  // read and written; H200, ranks on one device
  double stream_step_ns = 9000;  // stream engine: copy or kernel of a message, and its flags
  double crossing_ns = 15'000;   // to another host: pinned memory, UCX, pinned memory
  double network_gigabytes_per_s = 12.5;  // per host: 100 Gbit/s
};

struct DeviceCandidate {
  const Algorithm* algorithm = nullptr;
  DeviceProtocol protocol = DeviceProtocol::kSimple;
  uint32_t num_channels = 1;
  uint64_t message_bytes = 0;  // per channel
  double forecast_ns = 0;
};

class DevicePlanner {
 public:
  /// `planner`: the communicator's, for its algorithms and settings. Must outlive this.
  DevicePlanner(int nranks, const DeviceWorld& world, Planner& planner);
  /// All candidates for a call, best first. staged_only: those that do not touch peers' buffers. Errors: kUnsupported.
  Expected<std::vector<DeviceCandidate>> candidates(const CallShape& request, bool staged_only = false);
  /// Candidates that can replace a direct one if some rank's buffers cannot be reached, best first, each with the
  /// number of channels that both will use. Errors: kUnsupported.
  Expected<std::vector<DeviceCandidate>> fallbacks(const CallShape& request, const DeviceCandidate& direct);
  /// Lowers the channels of a candidate, and forecasts it again.
  void limit_channels(const CallShape& request, uint32_t most, DeviceCandidate& c) const;
  /// The plan for a message between two ranks. Both ends compute the same. crosses: they are on different hosts.
  DeviceCandidate message(uint64_t bytes, bool crosses) const;
  std::string describe(const DeviceCandidate& c) const;

 private:
  void add_forms(const Algorithm& a, const CallShape& request, std::vector<DeviceCandidate>& found);
  double forecast(const DeviceCandidate& c, double whole_bytes, Rank root) const;
  void sort(const CallShape& request, std::vector<DeviceCandidate>& found) const;
  uint32_t lanes_of(const Algorithm& a, Rank root);
  uint32_t most_blocks(uint32_t preference) const;
  uint32_t most_channels(uint32_t lanes, uint32_t preference) const;
  uint32_t channels_for(double bytes, uint64_t least_bytes, uint32_t lanes, const CallShape& request) const;

  const int nranks_;
  const DeviceWorld world_;
  const DeviceCosts costs_{};
  Planner& planner_;
  std::vector<std::pair<const Algorithm*, uint32_t>> lanes_;  // by algorithm, computed once
};

}  // namespace rondo
