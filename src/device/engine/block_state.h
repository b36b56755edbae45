// Shared memory of a block while it runs a lane of a call. BlockState: the call, the ends of the lane's connections,
// and the pointer tables of the current message. InterpreterState adds a window of instructions with this channel's
// shares. PrimsState adds the cuts of the buffers.
//
// A message's port belongs to one thread from poll to post. All other state is written by few threads and read by all,
// with a barrier in between.
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
  DeviceProgram program;  // only the header
  uint64_t scale;         // for premul_sum: bits of one element of the accumulator type
  uint64_t nowhere;       // for a call with a fallback: some rank's buffers are unreachable; lane 0, thread 0
  uint32_t unit_lanes, first_step;
  FifoReader<Mem, SoloGroup> readers[kMaxReads];
  FifoWriter<Mem, SoloGroup> writers[kMaxWrites];
  uint32_t read_slot_bytes[kMaxReads], write_slot_bytes[kMaxWrites];
  Port read_ports[kMaxReads], write_ports[kMaxWrites];
  uint16_t read_at[kMaxReads], write_at[kMaxWrites];  // indices in the channel's tables
  // For the current traced instruction, used by thread 0:
  uint64_t begin_ns, waited_ns;
  uint32_t num_ports, turn;
  bool moved, falls_back;                     // it moves data; it belongs to the call's fallback
  uint32_t numbers[2][DeviceRecord::kSteps];  // of the last two traced messages, by port
  // For the current message:
  const std::byte* sources[kMaxReads + 1];
  std::byte* sinks[kMaxWrites + 1];
  uint64_t source_flags[kMaxReads + 1], sink_flags[kMaxWrites + 1];  // kLl, kLl128: flags of their lines
};

template <class Mem>
struct InterpreterState : BlockState<Mem> {
  static constexpr uint32_t kWindowSteps = 64, kWindowIndex = 512;
  DeviceStep window[kWindowSteps];  // num_elems: the channel's share of the chunk
  uint16_t index[kWindowIndex];     // for the window's steps, as far as they fit
};

template <class Mem>
struct PrimsState : BlockState<Mem> {
  struct BufferCut {
    Cut cut;
    Extent share[2];  // the channel's share of a chunk of cut.base elements, and of cut.base + 1
  };
  BufferCut in, out;
};

}  // namespace rondo
