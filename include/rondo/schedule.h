// Schedules: the plain data that algorithms are recorded into.
//
// An algorithm is a header-only template over a recorder-like P (see src/algorithms/). Recording it for one rank gives
// that rank's RankSchedule: lanes of 16-byte instructions, a table of port sets, chunk counts. A schedule holds no
// sizes, pointers, threads, element types or transports. It is the only input of the engine, the checker and the
// renderer.
//
// A lane executes its instructions in order, once per loop of the data; lanes of a rank run concurrently. Each
// instruction moves one message: it gathers the sources {src chunk, received messages}, reduces if there are several,
// and scatters to the sinks {dst chunk, sends}.
//
// Host and device: plain data, no dependency. tests/schedule/layout_test.cc freezes the layout.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "rondo/types.h"

namespace rondo {

/// The value is the four bits {src, recv, dst, send}. An executor needs one body for all of them.
enum class Verb : uint8_t {
  kWait = 0,
  kCopy = 0b0101,
  kRecv = 0b0110,
  kSend = 0b1001,
  kRecvSend = 0b1010,
  kRecvReduceCopy = 0b0111,
  kRecvReduceSend = 0b1011,
  kCopySend = 0b1101,
  kRecvCopySend = 0b1110,
  kRecvReduceCopySend = 0b1111,
};
inline constexpr uint8_t kVerbSrc = 1, kVerbRecv = 2, kVerbDst = 4, kVerbSend = 8;
constexpr uint8_t verb_bits(Verb v) { return static_cast<uint8_t>(v); }
constexpr std::string_view verb_name(Verb v) {
  switch (v) {
    case Verb::kWait: return "wait";
    case Verb::kCopy: return "copy";
    case Verb::kRecv: return "recv";
    case Verb::kSend: return "send";
    case Verb::kRecvSend: return "recv_send";
    case Verb::kRecvReduceCopy: return "recv_reduce_copy";
    case Verb::kRecvReduceSend: return "recv_reduce_send";
    case Verb::kCopySend: return "copy_send";
    case Verb::kRecvCopySend: return "recv_copy_send";
    case Verb::kRecvReduceCopySend: return "recv_reduce_copy_send";
  }
  return "?";
}

/// The buffer of a chunk. Each has its own chunk count (an all-gather has 1 chunk in, N out).
enum class Buffer : uint8_t { kIn = 0, kOut = 1, kScratch = 2 };

enum InstructionFlags : uint8_t {
  kFlagFinal = 1,   // the written data holds every contribution for the first time: avg divides here
  kFlagDirect = 2,  // recv operands are read from (pull), and send operands written to (push), the peers' own buffers.
                    // recv port p reads chunk src_first of p's src_buffer (`in` or `out`; also for a plain recv, which
                    // has no source of its own); send port p writes chunk dst_first of p's `out`
  kFlagCredit = 4,  // a message without elements: "my buffers are at ..." (entry), "I am done" (exit)
};

/// 16 bytes, size-free. Chunk ranges are cyclic modulo the buffer's chunk count.
struct Instruction {
  Verb verb = Verb::kWait;
  uint8_t buffers = 0;     // src buffer | dst buffer << 4
  uint8_t flags = 0;       // InstructionFlags
  uint8_t reserved = 0;    // zero
  uint16_t recv_set = 0;   // index into RankSchedule::port_sets; set 0 is empty
  uint16_t send_set = 0;   //   "
  uint16_t src_first = 0;  // chunk; kWait: the lane waited for
  uint16_t dst_first = 0;  // chunk; kWait: the pc in that lane that must have finished in this loop
  uint16_t num_chunks = 1; // chunks in the message
  uint16_t src_position = 0;  // order of addition: the rank's own source follows this many received operands

  constexpr Buffer src_buffer() const { return static_cast<Buffer>(buffers & 15); }
  constexpr Buffer dst_buffer() const { return static_cast<Buffer>(buffers >> 4); }
  constexpr bool has(uint8_t bit) const { return (verb_bits(verb) & bit) != 0; }
  constexpr bool is(uint8_t flag) const { return (flags & flag) != 0; }
  friend constexpr bool operator==(const Instruction&, const Instruction&) = default;
};
static_assert(sizeof(Instruction) == 16);

/// One end of a connection. A connection is a first-in-first-out sequence of messages.
/// Unicast (group 0): from one writer to one reader; `tag` distinguishes several.
/// Multicast (group > 0): from one writer to a fixed set of readers; each message is written once for all of them.
/// (writer, group, tag) names it: all algorithms that share one must mean the same readers.
struct Port {
  Rank peer = 0;
  uint16_t tag = 0;
  uint16_t group = 0;
  friend constexpr bool operator==(const Port&, const Port&) = default;
};
static_assert(sizeof(Port) == 8);

/// Multicast groups. All algorithms draw from this one list.
inline constexpr uint16_t kUnicast = 0;
inline constexpr uint16_t kGroupAll = 1;  // every other rank of the communicator
inline constexpr uint16_t kGroupHost = 2;  // every other rank of the writer's host

/// Reserved for send and recv, which run beside the collectives. Algorithms may use all other tags.
inline constexpr uint16_t kTagPointToPoint = 0xFFF0;

/// Receive sets are in the order of addition, send sets in any order.
using PortSet = std::vector<Port>;
using Lane = std::vector<Instruction>;

struct RankSchedule {
  Rank rank = 0;
  int32_t nranks = 1;
  uint16_t in_chunks = 1;  // number of chunks of each buffer
  uint16_t out_chunks = 1;
  uint16_t scratch_chunks = 0;  // 0, or equal to in_chunks or out_chunks: chunk c then has the length of theirs
  std::vector<Lane> lanes;
  std::vector<PortSet> port_sets{PortSet{}};

  uint16_t chunks(Buffer b) const {
    return b == Buffer::kIn ? in_chunks : b == Buffer::kOut ? out_chunks : scratch_chunks;
  }
  const PortSet& recv_ports(const Instruction& i) const { return port_sets[i.recv_set]; }
  const PortSet& send_ports(const Instruction& i) const { return port_sets[i.send_set]; }
};

/// All ranks, for the checker and the renderer. The engine needs only its own rank's.
struct Schedule {
  Collective collective = Collective::kAllReduce;
  int32_t nranks = 1;
  Rank root = 0;  // of a rooted collective
  std::vector<RankSchedule> ranks;
  std::vector<int32_t> hosts = {};  // of each rank; empty: all on one
};

}  // namespace rondo
