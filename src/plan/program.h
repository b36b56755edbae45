// Program: a rank's schedule compiled for one shape of call. The schedule is the only input; what is new here are the
// sizes: element extents per chunk, the loop, the protocol, the connections' ends and the kernels, all resolved once so
// that a repeated call resolves nothing.
//
// Thread safety: a Program is immutable but for its ports, which belong to the communicator's driver.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "plan/request.h"
#include "rondo/schedule.h"
#include "trace/operation_record.h"
#include "transport/ports.h"

namespace rondo {

/// Header lines alone up to kMaxInlineBytes a message, the data ring above.
enum class Protocol : uint8_t { kInline, kSimple };
constexpr std::string_view protocol_name(Protocol p) { return p == Protocol::kInline ? "inline" : "simple"; }
inline constexpr uint64_t kMaxInlineBytes = 8 * kLinePayloadBytes;

/// An instruction with its operands resolved. Chunk ranges are unrolled: one message per chunk.
struct ProgramStep {
  Verb verb;
  uint8_t flags;
  Buffer src_buffer, dst_buffer;
  bool prescale;  // reads the caller's raw input in a reducing collective: premul_sum scales here
  bool copies;    // one source, which goes on as it is
  bool as_wire;   // mixed types: what it writes is rounded to the wire type first
  uint16_t src_position;
  uint32_t fingerprint;                  // of its messages' shape
  uint16_t wait_lane, wait_pc;           // of a wait
  uint16_t further_receives;             // so many steps right behind it in its lane only receive messages
  int32_t src_chunk, dst_chunk;          // as the schedule numbers them; -1: none. For traces
  Extent src, dst;                       // in elements of the buffer, all loops; a missing side has the other's length
  uint32_t once_elems, once_steps;       // of programs in `once` form: the whole message; no steps: nothing to do
  std::vector<ReadPort*> recv;           // in the order of addition
  std::vector<WritePort*> send;          // a multicast counts once
  std::vector<Rank> recv_peers, send_peers;  // of direct steps and of credits

  bool has(uint8_t bit) const { return (verb_bits(verb) & bit) != 0; }
  bool is(uint8_t flag) const { return (flags & flag) != 0; }
};

using ProgramLane = std::vector<ProgramStep>;

/// What a plan fixes beside the algorithm.
struct ProgramShape {
  OperationShape operation;
  Protocol protocol = Protocol::kSimple;
  uint64_t message_bytes = 64 * 1024;  // longest message: cuts the data into loops
  const VariableCounts* counts = nullptr;
  uint32_t lap_messages = 32;  // within which the messages of a ring go round, if they can; at least kRingMessages
  bool direct = false, pushes = false;  // of the whole algorithm: this rank may have no direct instruction of its own
};

/// The number that a trace has given to a program, and which trace it was.
struct TraceMark {
  uint64_t trace = 0;
  uint16_t plan = 0;
};

struct Program {
  OperationShape operation;
  Protocol protocol;
  uint32_t fingerprint;  // of its shape
  TypeRow types;
  bool mixed;                // the types differ
  uint32_t elem_bytes[3];    // by Buffer: of the input, of the output, of scratch, which holds the wire type
  uint32_t wire_bytes;       // of an element in a message
  uint64_t loop_elems, num_loops;
  Rank rank;
  int nranks;
  Kernel copy, reduce;
  MixedKernel mixed_kernel;
  uint32_t divide_by;   // avg: the number of ranks
  bool premul;
  bool direct;          // its first credits carry addresses
  bool pushes;          // writes into the peers' buffers: they must be mapped; reading can be done by copies too
  std::vector<ProgramLane> lanes;
  // The form of small messages: inline, one loop, only the last lane receives, waits for earlier lanes only, no direct
  // steps. Its lanes may run one after the other, each to its end (so its waits hold by themselves): what
  // others wait for is sent before anything is waited for.
  bool once = false;
  uint64_t scratch_bytes = 0;
  uint32_t lap_bytes = 0;  // Simple: in which its messages shall stay, in each ring (protocol/fifo.h)
  // Ends of connections in use, and how many steps one operation makes on each.
  std::vector<std::pair<ReadPort*, uint64_t>> reads;
  std::vector<std::pair<WritePort*, uint64_t>> writes;
  std::string reason;        // why the planner chose it
  mutable TraceMark traced;  // the driver's
  uint32_t ring_bytes_of_message(uint64_t elems) const {
    return protocol == Protocol::kSimple ? static_cast<uint32_t>(elems * wire_bytes) : 0;
  }
  uint32_t steps_of_message(uint64_t elems) const {
    if (protocol == Protocol::kSimple) return 1;
    return static_cast<uint32_t>((elems * wire_bytes + kLinePayloadBytes - 1) / kLinePayloadBytes);
  }
};

/// 1 .. kFingerprints (fifo.h), of what all ranks must agree on for an operation. `more`: a hash of what the shape lacks.
uint32_t fingerprint_of(const OperationShape& operation, uint64_t more = 0);

/// Compiles `schedule` (of this rank). Opens the writing ends of its connections. Errors: those of the transport.
/// O(instructions).
Expected<std::unique_ptr<Program>> compile(const RankSchedule& schedule, const ProgramShape& shape, PortTable& ports,
                                           const KernelTable& kernels);

}  // namespace rondo
