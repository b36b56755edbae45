// Ranks whose device memory is host memory: the tables of DeviceComm, the connections between them (made when programs
// are lowered), and launches of one kernel per rank on host threads (host_kernels.h).
//
// Needs "// links: host_kernels". Thread safety: one thread makes programs and launches.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "device/engine/launch_tables.h"
#include "device/engine/lower.h"
#include "transport/inproc/inproc.h"
#include "transport/ports.h"

namespace rondo::testing {

/// 64-byte aligned memory, zero at first.
class DeviceBytes {
 public:
  explicit DeviceBytes(uint64_t bytes) : bytes_(bytes + 64) {}
  std::byte* data() {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + ((at + 63) / 64 * 64 - at);
  }

 private:
  std::vector<std::byte> bytes_;
};

struct EmulatedShape {
  int nranks = 1;
  uint32_t max_channels = 1;
  uint32_t num_lines = 8;             // K of all connections
  uint64_t max_message_bytes = 4096;  // sizes rings and slots
  uint64_t first_step = 0;            // of all connections, as if that many messages had passed
  std::function<bool(const ConnectionKey&)> has_ring = {};  // in place of slots, as connections between hosts
};

/// A rank's program on its device, and the counts of its calls.
struct EmulatedProgram {
  const DeviceProgram* program;
  DeviceCounts counts;
  uint64_t scratch_bytes;
};

/// By rank and unit: the calls of the unit.
using EmulatedUnits = std::vector<std::vector<std::vector<LaunchCall>>>;

class EmulatedDevices {
 public:
  explicit EmulatedDevices(const EmulatedShape& shape);
  ~EmulatedDevices();

  /// Compiles and lowers one rank's schedule. Aborts on an error. The program belongs to this object, which has equal
  /// programs once.
  EmulatedProgram program(const RankSchedule& schedule, const ProgramShape& shape, const DeviceShape& device);
  /// The kernel for the last program.
  const std::string& kernel_name() const { return kernel_name_; }
  /// A call of the program's rank without buffers, premul and deadline.
  LaunchCall call(const EmulatedProgram& program);
  /// Number of different programs.
  size_t num_programs() const { return programs_.size(); }
  DeviceControl& control(Rank rank);
  DeviceComm& comm(Rank rank);

  /// Launches `kernel` once for each rank, concurrently: units[r] are the call sequences of rank r, which run
  /// concurrently. Returns when all have ended.
  void launch(const std::string& kernel, const EmulatedUnits& units, uint32_t block_threads, DeviceTrace trace = {}) {
    launch(std::vector<std::string>(units.size(), kernel), units, block_threads, trace);
  }
  /// The same, with a separate kernel for each rank.
  void launch(const std::vector<std::string>& kernels, const EmulatedUnits& units, uint32_t block_threads,
              DeviceTrace trace = {});

 private:
  static constexpr uint32_t kMaxEnds = 1024;
  struct Connection {
    std::vector<FifoView> views;  // by channel
    uint32_t slot_bytes = 0;
  };
  struct RankState;
  class Index;
  ConnectionForm form_of(const ConnectionKey& key, ConnectionForm form) const;
  Connection& connection(const ConnectionKey& key, ConnectionForm form);

  EmulatedShape shape_;
  std::shared_ptr<InprocWorld> world_;
  std::vector<std::unique_ptr<RankState>> ranks_;
  std::map<std::vector<int64_t>, Connection> connections_;
  std::deque<DeviceBytes> memory_;
  std::map<std::string, const DeviceProgram*> programs_;  // by contents
  std::string kernel_name_;
};

}  // namespace rondo::testing
