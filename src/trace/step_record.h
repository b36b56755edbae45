// StepRecord: the record of one executed instruction, and the data it refers to.
//
// A record is one cache line. Constant data (verb, chunks, peers, connections, algorithm, the planner's reason) is
// stored once, in a TracedPlan. The record has the plan's number; lane and pc locate the instruction in it. An
// instruction with more than one port of a kind is followed by StepPorts records.
//
// Thread safety: plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rondo/schedule.h"
#include "trace/operation_record.h"

namespace rondo {

/// The reason why an instruction could not be executed.
enum class WaitReason : uint8_t {
  kNone = 0,
  kData = 1,   // a message has not arrived
  kRoom = 2,   // a reader has not freed the space of earlier messages
  kOrder = 3,  // another lane, or an earlier operation on the same connection, comes first
};
inline constexpr int kNumWaitReasons = 4;

enum class RecordKind : uint8_t { kUnused = 0, kStep = 1, kPorts = 2 };

/// Times are ticks. Ready is begin + the three waits; done is ready + work. 48 bits of ticks are more than a day.
struct alignas(64) StepRecord {
  uint64_t sequence : 40 = 0;  // of the operation, 1-based, per communicator
  uint64_t plan : 16 = 0;      // index into TraceFile::plans
  uint64_t kind : 8 = 0;       // RecordKind
  uint64_t begin_ticks = 0;    // first tried
  uint64_t wait_data_ticks : 48 = 0;
  uint64_t lane : 16 = 0;
  uint64_t wait_room_ticks : 48 = 0;
  uint64_t pc : 16 = 0;
  uint64_t wait_order_ticks : 48 = 0;
  uint64_t channel : 16 = 0;  // 0 if there is only one
  uint64_t work_ticks : 48 = 0;
  uint64_t bytes_high : 16 = 0;
  uint32_t bytes_low = 0;
  uint32_t loop = 0;       // low 32 bits
  uint32_t recv_step = 0;  // the message's number on the first receiving connection, low 32 bits
  uint32_t send_step = 0;  // the same on the first sending connection

  uint64_t bytes() const { return uint64_t{bytes_high} << 32 | bytes_low; }
  uint64_t ready_ticks() const { return begin_ticks + wait_data_ticks + wait_room_ticks + wait_order_ticks; }
  uint64_t done_ticks() const { return ready_ticks() + work_ticks; }
};
static_assert(sizeof(StepRecord) == 64);

/// The message numbers of an instruction's further ports: recv[1..], then send[1..]. Follows its StepRecord.
struct alignas(64) StepPorts {
  static constexpr uint32_t kPorts = 12;
  uint64_t sequence : 40;
  uint64_t plan : 16;
  uint64_t kind : 8;
  uint32_t first;  // index of steps[0] among the further ports
  uint32_t count;
  uint32_t steps[kPorts];
};
static_assert(sizeof(StepPorts) == 64);

/// The name of a connection, equal on both of its ends.
struct TracedConnection {
  int32_t writer = 0;
  int32_t reader = -1;  // -1: a multicast
  uint16_t tag = 0;
  uint16_t group = 0;
  uint8_t form = 0;  // several FIFOs may connect the same ends: 0 Simple, 1 inline; on devices 2 LL, 3 LL128
  friend constexpr auto operator<=>(const TracedConnection&, const TracedConnection&) = default;
};

/// The constant data of an instruction.
struct TracedInstruction {
  Verb verb = Verb::kWait;
  uint8_t flags = 0;  // InstructionFlags
  Buffer src_buffer = Buffer::kIn, dst_buffer = Buffer::kIn;
  int32_t src_chunk = -1, dst_chunk = -1;  // -1: none
  std::vector<TracedConnection> recv, send;    // empty: direct, from buffer to buffer
  std::vector<int32_t> recv_peers, send_peers;  // ranks, in the order of addition
  friend bool operator==(const TracedInstruction&, const TracedInstruction&) = default;
};

/// The plan of a call: the planner's choice, and the instructions of this rank.
struct TracedPlan {
  OperationShape shape;
  std::string algorithm, protocol, reason;
  uint64_t loop_elems = 0, num_loops = 0;
  std::vector<std::vector<TracedInstruction>> lanes;
  friend bool operator==(const TracedPlan&, const TracedPlan&) = default;
};

}  // namespace rondo
