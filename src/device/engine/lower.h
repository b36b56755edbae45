// Lowering: a Program of the engine flattened into the DeviceProgram that the interpreter reads (device_program.h).
//
// The program keeps its schedule, its extents and its fingerprints; what changes is what a device has of its own: the
// protocol (inline becomes LL or LL128), the channels, the length of a message, and the ends of connections, which are
// indices into a channel's tables instead of pointers to ports.
//
// Thread safety: pure functions, but for what a PortIndex does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/engine/device_program.h"
#include "plan/program.h"
#include "rondo/algorithm.h"
#include "rondo/status.h"

namespace rondo {

/// What a plan fixes for a device beside the program.
struct DeviceShape {
  uint32_t num_channels = 1;
  DeviceProtocol short_messages = DeviceProtocol::kLl;  // what the host's inline becomes: kLl, kLl128, or kSimple
  uint64_t message_bytes = 0;  // longest message of a channel; 0: the program's. Direct programs have no messages
  uint32_t lap_messages = 32;  // kSimple: as ProgramShape::lap_messages
};

/// What a connection's memory has to be for the messages of a step. A port may be used for credits and for messages
/// too: then it stands for two connections.
enum class DeviceEnd : uint8_t { kCredit /* lines alone */, kSimple /* lines and a ring */, kLl, kLl128 };

/// Gives ends of connections their places in a channel's tables (DeviceComm::reads, ::writes), the same in all
/// channels.
class PortIndex {
 public:
  virtual ~PortIndex() = default;
  virtual Expected<uint16_t> reader(const ReadPort& port, DeviceEnd end) = 0;
  virtual Expected<uint16_t> writer(const WritePort& port, DeviceEnd end) = 0;
};

/// The program as the interpreter reads it; memory for it must be aligned to 16 bytes. Errors: kUnsupported (more
/// lanes, or more ends in a lane, than a block can hold), those of `ports`. O(steps + ends).
Expected<std::vector<std::byte>> lower(const Program& program, const DeviceShape& shape, PortIndex& ports);

/// Behind so many instructions of a direct program a rank has read what all others say of their buffers; 0: it has
/// several lanes, or does not begin with credits from all ranks, and cannot have a fallback.
uint8_t entry_steps(const Program& program);

/// The interpreter that runs it: "rondo_interpret_float_sum", "rondo_interpret_mixed_max", "rondo_interpret_copy".
/// avg and premul_sum are sums to a kernel.
std::string interpreter_name(const Program& program);
/// The kernel that has the algorithm's text inlined (device_prims.h), for calls with one count for all ranks:
/// "rondo_ring_all_reduce_float_sum", "rondo_ring_all_gather_copy". Empty where there is none.
std::string inlined_name(const Algorithm& algorithm, Dtype dtype, Op op, uint8_t row);
/// The kernel that reduces elements of one dtype by a whole grid: "rondo_reduce_float_sum".
std::string reduce_name(Dtype dtype, Op op);
/// The same for mixed type rows: "rondo_reduce_mixed_sum".
std::string reduce_mixed_name(Op op);
inline constexpr std::string_view kGridCopyName = "rondo_copy";
/// The kernel that tells the device's clock: clock_exchange.h.
inline constexpr std::string_view kClockName = "rondo_clock";

}  // namespace rondo
