// Shared memory of a block while it runs a lane of a call: the call, the ends of the lane's connections, a window of
// instructions with this channel's shares, and the pointer tables of the current message.
//
// A message's port belongs to one thread until the barrier after its poll. All other state is written by few threads
// and read by all, with a barrier in between.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/engine/device_program.h"
#include "protocol/fifo.h"

namespace rondo {

/// An instruction's ports, and whether it uses the rank's own chunks. Thread i handles port i.
struct StepShape {
  uint32_t num_recv, num_send;
  bool has_src, has_dst;
  const uint16_t* ends;  // places in the lane's lists, of the receives, then of the sends

  RONDO_HOST_DEVICE_INLINE uint32_t reader(uint32_t i) const { return ends[i]; }
  RONDO_HOST_DEVICE_INLINE uint32_t writer(uint32_t i) const { return ends[num_recv + i]; }

  /// Calls of_read(i, end) or of_write(i, end) for each port of this thread, until one is false.
  template <class Env, class OfRead, class OfWrite>
  RONDO_HOST_DEVICE_INLINE bool handle_mine(Env& env, OfRead of_read, OfWrite of_write) const {
    bool ok = true;
    for (uint32_t i = env.thread(); i < num_recv + num_send && ok; i += env.threads())
      ok = i < num_recv ? of_read(i, ends[i]) : of_write(i - num_recv, ends[i]);
    return ok;
  }
};

/// An instruction with its extents.
struct WindowStep : DeviceStep {
  uint32_t fingerprint;                     // of its messages' shape
  uint64_t src_first_elem, dst_first_elem;  // of the channel's share of the chunk
  uint64_t num_elems;                       // of that share: all loops
};

template <class Mem>
struct BlockState {
  static constexpr uint32_t kMaxReads = DeviceProgram::kMaxLaneReads, kMaxWrites = DeviceProgram::kMaxLaneWrites;
  static constexpr uint32_t kWindowSteps = 64, kWindowIndex = 512;

  DeviceCall call;
  DeviceProgram program;  // only the header
  uint64_t scale;         // for premul_sum: bits of one element of the accumulator type
  uint64_t completed;     // instructions of the program, for lanes that wait for this one; thread 0
  uint64_t nowhere;       // for a call with a fallback: some rank's buffers are unreachable; lane 0, thread 0
  DeviceUnit unit;
  const DeviceCall* calls;  // of the launch
  uint32_t first_step;
  uint32_t num_reads, num_writes;  // of the lane
  FifoReader<Mem> readers[kMaxReads];
  FifoWriter<Mem> writers[kMaxWrites];
  uint32_t read_slot_bytes[kMaxReads], write_slot_bytes[kMaxWrites];
  Rank read_peers[kMaxReads];
  uint16_t read_at[kMaxReads], write_at[kMaxWrites];  // indices in the channel's tables
  // For the current traced instruction, used by thread 0:
  uint64_t begin_ns, waited_ns;
  uint32_t num_ports;
  bool moved, falls_back;                     // it moves data; it belongs to the call's fallback
  uint32_t numbers[2][DeviceRecord::kSteps];  // of the last two traced messages, by port (BlockCalls::turn_)
  WindowStep window[kWindowSteps];
  uint16_t index[kWindowIndex];               // of the window's steps, as far as they fit
  // For the current message:
  const std::byte* sources[kMaxReads + 1];
  std::byte* sinks[kMaxWrites + 1];
  uint64_t source_flags[kMaxReads + 1], sink_flags[kMaxWrites + 1];  // of their lines; 0: there are no lines
  FifoPost posts[2][kMaxReads + kMaxWrites];                         // by port (BlockCalls::turn_)
};

}  // namespace rondo
