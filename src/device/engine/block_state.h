// What a block keeps in shared memory while it runs a lane of a call. BlockState: the call, the ends of the lane's
// connections, and the tables of pointers of the message under way. InterpreterState: and a window of instructions with
// this channel's share of each. PrimsState: and how the buffers are cut.
//
// Who touches what: a thread handles a port of a message from the poll to the post; everything else is written by few
// and read by all, with a barrier between.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/engine/device_program.h"
#include "protocol/fifo.h"
#include "protocol/group.h"

namespace rondo {

template <class Mem>
struct BlockState {
  static constexpr uint32_t kMaxReads = DeviceProgram::kMaxLaneReads, kMaxWrites = DeviceProgram::kMaxLaneWrites;

  DeviceCall call;
  DeviceProgram program;  // the header alone
  uint64_t scale;         // of premul_sum: the bits of one element of the accumulator type
  uint64_t nowhere;       // of a call with a fallback: some rank's buffers cannot be reached; lane 0, thread 0
  uint32_t unit_lanes, first_step;
  FifoReader<Mem, SoloGroup> readers[kMaxReads];
  FifoWriter<Mem, SoloGroup> writers[kMaxWrites];
  uint32_t read_slot_bytes[kMaxReads], write_slot_bytes[kMaxWrites];
  Port read_ports[kMaxReads], write_ports[kMaxWrites];
  uint16_t read_at[kMaxReads], write_at[kMaxWrites];  // where they stand in the channel's tables
  // Of the traced instruction under way, thread 0's:
  uint64_t begin_ns, waited_ns;
  uint32_t num_ports, turn;
  bool moved, falls_back;                     // it moves something; it is of the call's fallback
  uint32_t numbers[2][DeviceRecord::kSteps];  // of the last two traced messages, on their ports
  // Of the message under way:
  const std::byte* sources[kMaxReads + 1];
  std::byte* sinks[kMaxWrites + 1];
  uint64_t source_flags[kMaxReads + 1], sink_flags[kMaxWrites + 1];  // kLl, kLl128: what their lines carry
};

template <class Mem>
struct InterpreterState : BlockState<Mem> {
  static constexpr uint32_t kWindowSteps = 64, kWindowIndex = 512;
  DeviceStep window[kWindowSteps];  // elements: the channel's share of the chunk
  uint16_t index[kWindowIndex];     // of the window's steps, as far as they fit
};

template <class Mem>
struct PrimsState : BlockState<Mem> {
  struct BufferCut {
    Cut cut;
    Extent share[2];  // the channel's, of a chunk of cut.base elements and of one of cut.base + 1
  };
  BufferCut in, out;
};

}  // namespace rondo
