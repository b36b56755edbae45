// Schedules: plain data that the Recorder makes from an algorithm.
//
// An algorithm is a template over P (see src/algorithms/). The Recorder records it for one rank. The result is that
// rank's RankSchedule: lanes of 16-byte instructions, a table of port sets, and the numbers of chunks. A schedule
// contains no sizes, pointers, threads, element types or transports. The checker and the renderer use nothing else. The
// planner compiles it into the program that the engine executes.
//
// A lane executes its instructions in order, once in each loop. A loop moves one part of each chunk: long chunks have
// several. The lanes of a rank run concurrently. Each instruction except `wait` gathers the sources {src chunk,
// received messages}, reduces them if there are several, and stores the result in the sinks {dst chunk, sends}.
//
// Host and device: plain data, no dependency. tests/schedule/layout_test.cc freezes the layout.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "rondo/types.h"

namespace rondo {

/// The value has one bit for each of src, recv, dst and send, from the lowest bit on. One function can execute all
/// verbs.
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
  kFlagFinal = 1,   // the written data contains every contribution for the first time: avg divides here
  kFlagDirect = 2,  // recv operands are read from (pull), and send operands written to (push), the peers' own buffers.
                    // recv port p reads chunk src_first of p's src_buffer (`in` or `out`; also for a plain recv, which
                    // has no source of its own); send port p writes chunk dst_first of p's `out`
  kFlagCredit = 4,  // a message without elements: "my buffers are at ..." (entry), "I am done" (exit)
};

/// An instruction has 16 bytes and no data sizes. A range of chunks may continue at chunk 0 after the buffer's last
/// one.
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

/// One end of a connection. A connection delivers messages in the order in which they were sent.
/// Unicast (group 0) has one writer and one reader. `tag` distinguishes several such connections.
/// Multicast (group > 0) has one writer and a fixed set of readers. Each message is written once for all of them. The
/// name is (writer, group, tag): all algorithms that use the same name must mean the same readers.
struct Port {
  Rank peer = 0;
  uint16_t tag = 0;
  uint16_t group = 0;
  friend constexpr bool operator==(const Port&, const Port&) = default;
};
static_assert(sizeof(Port) == 8);

/// Multicast groups. All algorithms use this list.
inline constexpr uint16_t kUnicast = 0;
inline constexpr uint16_t kGroupAll = 1;  // every other rank of the communicator
inline constexpr uint16_t kGroupHost = 2;  // every other rank of the writer's host

/// The tags of send and recv, which may run at the same time as collectives. Algorithms may use all other tags.
inline constexpr uint16_t kTagPointToPoint = 0xFFF0;
inline constexpr uint16_t kTagMatched = 0xFFF1;  // of messages that match by the tags of their calls
constexpr bool is_message_tag(uint16_t tag) { return tag == kTagPointToPoint || tag == kTagMatched; }

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

/// The schedules of all ranks, for the checker and the renderer. A rank's planner needs only its own.
struct Schedule {
  Collective collective = Collective::kAllReduce;
  int32_t nranks = 1;
  Rank root = 0;  // of a rooted collective
  std::vector<RankSchedule> ranks;
  std::vector<int32_t> hosts = {};  // of each rank; empty: all on one
};

}  // namespace rondo
