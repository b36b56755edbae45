// Program: a rank's schedule compiled for one shape of call. It adds the sizes: element extents per chunk, the loop,
// the protocol, the connections' ends and the kernels. All are resolved once; a repeated call resolves nothing.
//
// Thread safety: a Program is immutable, except for its ports and `traced`. These belong to the communicator's driver.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "plan/call.h"
#include "rondo/schedule.h"
#include "trace/operation_record.h"
#include "transport/ports.h"

namespace rondo {

/// kInline uses only header lines, for messages of up to kMaxInlineBytes. kSimple uses the data ring.
enum class Protocol : uint8_t { kInline, kSimple };
constexpr std::string_view protocol_name(Protocol p) { return p == Protocol::kInline ? "inline" : "simple"; }
inline constexpr uint64_t kMaxInlineBytes = 8 * kLinePayloadBytes;

/// A value of ProgramShape::lap_messages: the lap is the whole ring.
inline constexpr uint32_t kWholeRing = 0;
/// Returns the lap (protocol/fifo.h) of messages that take `message_bytes` of the ring: `messages` messages, but at
/// most the larger of kLapBytes and kRingMessages messages.
template <class T>
constexpr T lap_bytes(T message_bytes, uint32_t messages) {
  return std::min(message_bytes * messages, std::max<T>(kLapBytes, message_bytes * kRingMessages));
}

/// An instruction with its operands resolved. Chunk ranges are unrolled: one message per chunk.
struct ProgramStep {
  Verb verb;
  uint8_t flags;
  Buffer src_buffer, dst_buffer;
  bool prescale;  // reads the caller's raw input in a reducing collective: premul_sum scales it here
  bool copies;    // one source, passed on unchanged
  bool as_wire;   // mixed types: dst gets the result rounded to the wire type first
  uint16_t src_position;
  uint32_t fingerprint;                  // of its messages' shape
  uint16_t wait_lane, wait_pc;           // for a wait
  uint16_t further_receives;             // number of directly following steps in its lane that only receive messages
  int32_t src_chunk, dst_chunk;          // chunk numbers of the schedule; -1: none. For traces and lower()
  Extent src, dst;                       // elements of the whole chunk; a side without one has the other's length
  // For the `once` form: elements and steps of the whole message, and its bytes in the ring (0 for Inline messages and
  // credits).
  uint32_t once_elems, once_steps, once_bytes;
  std::vector<ReadPort*> recv;           // in the order of addition
  std::vector<WritePort*> send;          // a multicast counts once
  std::vector<Rank> recv_peers, send_peers;  // for direct steps and credits

  bool has(uint8_t bit) const { return (verb_bits(verb) & bit) != 0; }
  bool is(uint8_t flag) const { return (flags & flag) != 0; }
};

using ProgramLane = std::vector<ProgramStep>;

/// A step of the `once` form, and where it is in the program. Steps without a message are left out.
struct OnceStep {
  const ProgramStep* step;
  uint32_t lane, pc;
};

/// The choices of a plan besides the algorithm.
struct ProgramShape {
  OperationShape operation;
  Protocol protocol = Protocol::kSimple;
  uint64_t message_bytes = 64 * 1024;  // longest message: cuts the data into loops
  const VariableCounts* counts = nullptr;
  uint32_t lap_messages = 32;           // lap of the ring's messages; at least kRingMessages, or kWholeRing
  bool direct = false, pushes = false;  // of the algorithm; set on all its ranks
};

/// A message of a step: one loop's part of its data.
struct Window {
  uint64_t skip, num_elems;  // the elements before it, and its own
  uint32_t steps, ring_bytes;
};

/// The number of a program within a trace, and that trace.
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
  uint32_t elem_bytes[3];    // by Buffer: of the input, of the output, of scratch (the wire type)
  uint32_t wire_bytes;       // of an element in a message
  uint64_t loop_elems, num_loops;
  EqualChunks chunks[2];  // of the input and the output; unused with variable counts
  bool scratch_like_in;   // scratch chunk c has the length of the input's chunk c, else of the output's
  bool pairwise;          // all_to_all_v
  Rank rank;
  int nranks;
  Kernel copy, reduce;
  MixedKernel mixed_kernel;
  uint32_t divide_by;   // avg: the number of ranks
  bool premul;
  bool direct;          // its credits carry the addresses of the buffers
  bool pushes;          // writes into the peers' buffers: they must be mapped (reading also works by copies)
  std::vector<ProgramLane> lanes;
  // The `once` form: the steps with a message, lane by lane, each lane to its end. A program has it if it has one loop
  // and no scratch, is not direct, waits only for earlier lanes, receives only in its last lane, and if the messages of
  // the other lanes fit into their FIFOs. Then no step waits for a later one. Otherwise it is empty.
  std::vector<OnceStep> once;
  uint64_t scratch_bytes = 0;
  uint32_t lap_bytes = 0;  // Simple: the range of its messages in each ring (protocol/fifo.h)
  // Ends of connections in use, and the steps of one operation on each.
  std::vector<std::pair<ReadPort*, uint64_t>> reads;
  std::vector<std::pair<WritePort*, uint64_t>> writes;
  std::string reason;        // why the planner chose it
  mutable TraceMark traced;  // belongs to the driver
  /// Returns a window without elements if the step has no message in this loop.
  Window window(const ProgramStep& s, uint64_t loop) const {
    if (s.is(kFlagCredit)) return {0, 0, loop == 0 ? 1u : 0u, 0};
    const uint64_t skip = loop * loop_elems;
    if (skip >= s.src.num_elems) return {};
    const uint64_t n = std::min(loop_elems, s.src.num_elems - skip);
    return {skip, n, steps_of_message(n), ring_bytes_of_message(n)};
  }
  uint32_t ring_bytes_of_message(uint64_t elems) const {
    return protocol == Protocol::kSimple ? static_cast<uint32_t>(elems * wire_bytes) : 0;
  }
  uint32_t steps_of_message(uint64_t elems) const {
    if (protocol == Protocol::kSimple) return 1;
    return static_cast<uint32_t>((elems * wire_bytes + kLinePayloadBytes - 1) / kLinePayloadBytes);
  }
};

/// The fingerprint of an envelope's shape. Its reader does not know the shape of the message yet.
inline constexpr uint32_t kEnvelopeFingerprint = 1;
/// The payload of the credit that is sent before a matched message.
struct Envelope {
  uint64_t tag, count_elems;
  Dtype dtype;
};
static_assert(sizeof(Envelope) <= kLinePayloadBytes);

/// Returns a hash of the shape that all ranks must agree on, 1 .. kFingerprints (fifo.h). `more`: a hash of further
/// values.
uint32_t fingerprint_of(const OperationShape& operation, uint64_t more = 0);

/// Compiles `schedule` (of this rank). Opens the writing ends of its connections. Errors: those of the transport.
/// O(instructions).
Expected<std::unique_ptr<Program>> compile(const RankSchedule& schedule, const ProgramShape& shape, PortTable& ports,
                                           const KernelTable& kernels);

}  // namespace rondo
