// Lowering: converts a Program of the engine to the DeviceProgram of the interpreter (device_program.h).
//
// Schedule, extents and fingerprints stay the same. The device's own properties change: the protocol (inline becomes LL
// or LL128), the channels, the message length, and the ends of connections, which are indices of a channel's tables
// instead of pointers to ports. DeviceCounts has all values that depend on element counts. Thread
// safety: pure functions, except for PortIndex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/engine/device_program.h"
#include "device/p2p/layout.h"
#include "plan/program.h"
#include "rondo/algorithm.h"
#include "rondo/status.h"

namespace rondo {

/// A plan's values for a device, in addition to the program.
struct DeviceShape {
  uint32_t num_channels = 1;
  DeviceProtocol short_messages = DeviceProtocol::kLl;  // replaces the host's inline: kLl, kLl128 or kSimple
  uint64_t message_bytes = 0;  // longest message of a channel; 0: the program's. Unused for direct programs
};

/// The form of the connections of this protocol's messages. Credits use ConnectionForm::kLines: a port that is used for
/// both has two connections.
constexpr ConnectionForm form_of(DeviceProtocol p) {
  return p == DeviceProtocol::kSimple ? ConnectionForm::kRing
         : p == DeviceProtocol::kLl   ? ConnectionForm::kWords
                                      : ConnectionForm::kWideLines;
}

/// Assigns ends of connections to places in a channel's tables (DeviceComm::reads, ::writes), equal in all channels. It
/// may give a connection a ring in place of slots (kWords, kWideLines), at all its ends. The kernel takes the form of a
/// message from the end.
class PortIndex {
 public:
  virtual ~PortIndex() = default;
  virtual Expected<uint16_t> reader(const ReadPort& port, ConnectionForm form) = 0;
  virtual Expected<uint16_t> writer(const WritePort& port, ConnectionForm form) = 0;
};

struct Lowered {
  std::vector<std::byte> program;  // a DeviceProgram. Its memory must be aligned to 16 bytes
  DeviceCounts counts;
};
/// Converts a program for the interpreter. Programs that differ only in their counts give equal bytes. Errors:
/// kUnsupported (more lanes, or more ends in a lane, than a block supports), errors of `ports`. O(steps + ends).
Expected<Lowered> lower(const Program& program, const DeviceShape& shape, PortIndex& ports);

/// A program, its form in device memory, and its counts.
struct LoweredProgram {
  std::unique_ptr<Program> program;  // nullptr: there is none
  std::shared_ptr<const DeviceProgram> on_device;
  DeviceProgram header{};  // the host's copy
  DeviceCounts counts{};
};

/// The number of instructions of a direct program after which a rank has read all other ranks' credits. 0 if it has
/// several lanes or does not begin with credits from all ranks, and therefore cannot have a fallback.
uint8_t entry_steps(const Program& program);

/// The interpreter kernel for it: "rondo_interpret_float_sum", "rondo_interpret_mixed_max", "rondo_interpret_copy". avg
/// and premul_sum use sum's kernel.
std::string interpreter_name(const Program& program);
/// The kernel that reduces elements of one dtype by a whole grid: "rondo_reduce_float_sum".
std::string reduce_name(Dtype dtype, Op op);
/// The same for mixed type rows: "rondo_reduce_mixed_sum".
std::string reduce_mixed_name(Op op);
inline constexpr std::string_view kGridCopyName = "rondo_copy";
/// The kernel that reads the device's clock: clock_exchange.h.
inline constexpr std::string_view kClockName = "rondo_clock";

}  // namespace rondo
