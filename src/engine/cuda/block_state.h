// BlockState: what a block keeps in shared memory while it runs a lane of a call. The ends of its connections, a window
// of instructions with this channel's share of each, and the tables of pointers of the instruction under way.
//
// Who touches what: thread i of the block handles port i of an instruction (i + T, ... if there are more), from the
// poll to the post; everything else is written by few and read by all, with a barrier between.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cuda/device_program.h"
#include "protocol/fifo.h"
#include "protocol/group.h"

namespace rondo {

template <class Mem>
struct BlockState {
  static constexpr uint32_t kWindowSteps = 64, kWindowIndex = 512;
  static constexpr uint32_t kMaxReads = DeviceProgram::kMaxLaneReads, kMaxWrites = DeviceProgram::kMaxLaneWrites;

  DeviceCall call;
  DeviceProgram program;            // the header alone
  uint64_t scale;                   // of premul_sum: the bits of one element of the accumulator type
  DeviceStep window[kWindowSteps];  // elements: the channel's share of the chunk
  uint16_t index[kWindowIndex];     // of the window's steps, as far as they fit
  FifoReader<Mem, SoloGroup> readers[kMaxReads];
  FifoWriter<Mem, SoloGroup> writers[kMaxWrites];
  uint32_t read_slot_bytes[kMaxReads], write_slot_bytes[kMaxWrites];
  Rank read_peers[kMaxReads];
  uint16_t read_at[kMaxReads], write_at[kMaxWrites];  // where they stand in the channel's tables
  // Of the instruction under way:
  const std::byte* sources[kMaxReads + 1];
  std::byte* sinks[kMaxWrites + 1];
  uint64_t source_flags[kMaxReads + 1], sink_flags[kMaxWrites + 1];  // kLl, kLl128: what their lines carry
};

}  // namespace rondo
