// What the interpreter reads on a device: a Program flattened into plain data without pointers of the host, and the
// arguments of one launch.
//
// A DeviceProgram is made from the engine's Program (lower.h) once for each shape of call and kept in device memory;
// nothing in it changes from call to call, so that a captured launch can be replayed. What changes from call to call
// but not from replay to replay stands in LaunchArgs; what changes from replay to replay (step counters) stands in
// device memory and is carried on by the kernel itself.
//
// Blocks. A launch holds units. A unit is a sequence of calls that use the same connections and therefore run one after
// the other; units run side by side. A unit has lanes x channels blocks: block (lane, channel) runs that lane of each
// of its calls over that channel's share of every chunk (channel_extent). Between two calls of a unit the lanes of a
// channel meet, since a connection may change from one lane to another. All blocks of a launch must be resident at
// once: whoever launches sees to that.
//
// Host and device: plain data and constexpr functions. tests/engine/cuda freezes the layout.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "protocol/fifo.h"
#include "rondo/schedule.h"
#include "schedule/extent.h"

namespace rondo {

/// How a message travels on a device. kLl: words of 4 B data and 4 B flag. kLl128: lines of 120 B data and an 8 B flag,
/// only where a line's store arrives whole. kSimple: data in the ring, a flag behind them (protocol/fifo.h).
enum class DeviceProtocol : uint8_t { kSimple, kLl, kLl128 };
inline constexpr int kNumDeviceProtocols = 3;
constexpr const char* protocol_name(DeviceProtocol p) {
  return p == DeviceProtocol::kSimple ? "simple" : p == DeviceProtocol::kLl ? "ll" : "ll128";
}

/// Bits of DeviceStep::bits.
enum DeviceStepBits : uint8_t {
  kStepPrescale = 1,  // reads the caller's raw input in a reducing collective: premul_sum scales here
  kStepCopies = 2,    // one source, which goes on as it is
  kStepAsWire = 4,    // mixed types: what it writes is rounded to the wire type first
};

/// An instruction with its operands resolved. 64 bytes. See ProgramStep, which it is made from.
struct alignas(16) DeviceStep {
  Verb verb;
  uint8_t flags;                   // InstructionFlags
  uint8_t src_buffer, dst_buffer;  // Buffer
  uint8_t bits;                    // DeviceStepBits
  uint8_t wait_lane;               // of a wait
  uint16_t wait_pc;                // "
  uint16_t src_position;
  uint16_t num_recv, num_send;  // entries of the index table from first_index on: the receives, then the sends.
  uint16_t reserved;            // Of direct steps they are ranks, otherwise places in the lane's list of ends
  uint32_t first_index;
  uint32_t fingerprint;          // of its messages' shape
  int32_t src_chunk, dst_chunk;  // as the schedule numbers them, for traces; -1: none
  uint64_t src_first_elem, dst_first_elem;
  uint64_t num_elems;  // of the whole chunk, all loops and channels
};
static_assert(sizeof(DeviceStep) == 64);

/// The part of a chunk that belongs to a channel, in elements from the chunk's beginning. Cut at multiples of 512 bytes
/// as they travel, so that all ranks cut alike and accesses stay aligned; later channels may get nothing.
constexpr Extent channel_extent(uint64_t num_elems, uint32_t num_channels, uint32_t channel, uint32_t wire_bytes) {
  const uint64_t unit = 512 / wire_bytes;
  const uint64_t units = num_elems / unit + (num_elems % unit != 0 ? 1 : 0);
  const Extent e = extent(units, num_channels, channel);
  const uint64_t first = e.first_elem * unit, end = (e.first_elem + e.num_elems) * unit;
  const uint64_t cut = end < num_elems ? end : num_elems;
  return first < cut ? Extent{first, cut - first} : Extent{num_elems, 0};
}

/// A program in device memory: the header, the steps of all lanes, the index table. Offsets count from the header.
/// The index table holds, for each lane, the list of the ends that it uses, which a block keeps in shared memory: from
/// entry lane_ends[lane] on num_reads, num_writes, so many indices of a channel's DeviceReadEnds, then of its
/// DeviceWriteEnds. A step names ends by their places in these lists.
struct alignas(16) DeviceProgram {
  static constexpr int kMaxLanes = 8;
  static constexpr uint32_t kMaxLaneReads = 128, kMaxLaneWrites = 64;  // lower() refuses programs with more
  uint32_t total_bytes;
  uint32_t steps_offset, index_offset;
  uint32_t num_lanes;
  uint32_t lane_first[kMaxLanes + 1];  // step of each lane, and the end
  uint32_t lane_ends[kMaxLanes];       // entry of the index table
  uint32_t num_channels;
  uint32_t num_ranks, rank;
  DeviceProtocol protocol;
  uint8_t dtype, op, row;  // Dtype, Op, type row of the call
  uint8_t elem_bytes[3];   // by Buffer
  uint8_t wire_bytes;
  uint8_t own_type, wire_type, out_type, accumulator;  // Dtype
  uint8_t premul, direct, waits;                       // waits: some step of it waits for a lane
  uint8_t entry_steps;                                 // of a direct program with a fallback: its entry credits
  uint32_t divide_by;                                  // avg: the number of ranks; 0: no division
  uint32_t fingerprint;                                // of the shape
  uint32_t lap_bytes;  // Simple: as Program::lap_bytes
  uint32_t reserved32;
  uint64_t loop_elems;  // of a channel: the elements of a message
  uint64_t num_loops;   // of the longest channel
  uint64_t scratch_bytes;
  uint64_t in_elems, out_elems;  // of the whole buffers: what inlined texts cut for themselves

  RONDO_HOST_DEVICE const DeviceStep* steps() const {
    return reinterpret_cast<const DeviceStep*>(reinterpret_cast<const std::byte*>(this) + steps_offset);
  }
  RONDO_HOST_DEVICE const uint16_t* index() const {
    return reinterpret_cast<const uint16_t*>(reinterpret_cast<const std::byte*>(this) + index_offset);
  }
};
static_assert(sizeof(DeviceProgram) % 16 == 0);

/// One end of a connection in one channel, as the kernel finds and leaves it in device memory.
struct DeviceWriteEnd {
  static constexpr uint32_t kMaxReaders = 64;
  FifoView view;        // of kLl and kLl128: data is num_lines slots of slot_bytes; lines is unused
  uint32_t slot_bytes;  // of kLl and kLl128, flags included
  uint32_t num_readers;
  const uint32_t* readers;  // num_readers indices of counters
  Port port;                // the reader; -1: several
  uint64_t step;
  uint32_t offset, free_end;  // of kSimple: where FifoWriter stands in its ring
  uint32_t starts[kMaxDataLines];
};
struct DeviceReadEnd {
  FifoView view;
  uint32_t slot_bytes;
  uint32_t counter;
  uint64_t step;
  Port port;  // the writer
};

/// Where a rank's buffers stand: in a credit as that rank sees them, in DeviceComm::peers as this rank does.
struct PeerBuffers {
  const std::byte* in;
  std::byte* out;
};
/// Instead of a region's number: no peer can reach the buffer; there is none, so that nobody will ask.
inline constexpr uint32_t kRegionNowhere = UINT32_MAX, kRegionNothing = UINT32_MAX - 1;
/// What the credits of a direct program carry. Its owner alone knows in which region a buffer lies, and whether it
/// still does; where all ranks see one another's memory at the same addresses, numbers mean nothing but kRegionNowhere.
struct PeerCredit {
  PeerBuffers buffers;
  uint32_t in_region, out_region;
};
static_assert(sizeof(PeerCredit) <= kLinePayloadBytes);
/// A rank's part of a region (memory that all ranks have agreed on), and where it stands here: of a rank in another
/// process by an IPC handle, at another address.
struct PeerRegion {
  const std::byte* theirs;
  uint64_t bytes;
  std::byte* ours;
};

/// What a lane of a channel has done in the call under way. Lanes that wait for it read `completed`. A call in which
/// some lane waits ends with a meeting of the channel's lanes, where the last one to come clears these counts.
struct alignas(64) LaneProgress {
  uint64_t completed;  // instructions finished, stored with release
};

/// All that a rank's communicator keeps in device memory. Tables are by channel: entry c * stride + i. Everything is
/// zero at first but what says where things are.
struct DeviceComm {
  uint32_t rank, num_ranks, max_channels;
  uint32_t write_stride, read_stride;  // capacity of one channel's table
  DeviceWriteEnd* writes;
  DeviceReadEnd* reads;
  PeerBuffers* peers;            // max_channels x num_ranks
  LaneProgress* lanes;           // max_channels x kMaxLanes
  uint64_t* meetings;            // max_channels x 8 words (a line each): [0] lanes that have come to
                                 // a meeting, [1] meetings so far; [2] of line 0: somebody has failed;
                                 // [3] the call's entry credits: its fallback runs
  const PeerRegion* regions;  // of region g and rank r: entry g * num_ranks + r; nullptr: all ranks see one another's
                              // memory at the same addresses
  uint32_t max_regions;
};

/// Where a peer's memory stands here; false when it does not lie in the region that the peer names.
RONDO_HOST_DEVICE_INLINE bool resolve_peer(const DeviceComm& comm, Rank peer, uint32_t region, const std::byte* theirs,
                                           std::byte*& ours) {
  ours = const_cast<std::byte*>(theirs);
  if (region == kRegionNowhere) return false;
  if (comm.regions == nullptr || region == kRegionNothing) return true;
  if (region >= comm.max_regions) return false;
  const PeerRegion& r = comm.regions[uint64_t{region} * comm.num_ranks + static_cast<uint32_t>(peer)];
  if (theirs < r.theirs || theirs >= r.theirs + r.bytes) return false;
  ours = r.ours + (theirs - r.theirs);
  return true;
}

/// kUnreachable: a credit names a buffer that cannot be reached, and the call has no fallback.
enum class DeviceFailure : uint32_t { kNone, kAborted, kDeadline, kMismatch, kUnreachable };

/// In host memory that the device sees (pinned and mapped), one per rank's communicator.
struct alignas(64) DeviceControl {
  uint32_t abort;   // the host sets it: all blocks leave
  uint32_t failed;  // DeviceFailure of the first block that gave up; others leave when they see it
  // Written by that block before `failed`:
  uint32_t call, lane, channel, pc;
  uint64_t loop;
  int32_t peer;       // whom it waited for, -1: nobody in particular
  uint32_t for_room;  // it waited for room in a ring, not for data
  uint64_t waited_ns;
};

/// One executed instruction, in a ring of records that the host reads after the launch. Empty messages make none.
struct alignas(16) DeviceRecord {  // a line of the cache
  static constexpr uint32_t kSteps = 8;
  static constexpr uint8_t kFirstPorts = 255;
  uint64_t begin_ns, end_ns;  // globaltimer: from the first look at its operands; the wait is in wait_ns
  uint32_t wait_ns, loop;
  uint16_t call, pc;
  uint8_t lane, channel;
  uint8_t num_steps;  // of steps: the ports of the instruction; kFirstPorts: it has more than kSteps
  uint8_t fallback;   // 1: the instruction is of the call's fallback
  uint32_t steps[kSteps];  // the message's number on each port, receives first; kFirstPorts: of the first receive in
                           // steps[0], of the first send in steps[1]
};
static_assert(sizeof(DeviceRecord) == 64);
struct DeviceTrace {
  DeviceRecord* records;  // capacity of them, a power of two; nullptr: none
  uint64_t* next;         // count of records so far
  uint64_t capacity;
};

/// One call of a launch.
struct alignas(16) DeviceCall {
  const DeviceProgram* program;
  const DeviceComm* comm;
  DeviceControl* control;
  const std::byte* in;
  std::byte* out;
  std::byte* scratch;
  const void* premul_at;           // of premul_sum: where the scale stands in device memory; nullptr: in `premul`
  alignas(8) std::byte premul[8];  // one element of the accumulator type (at premul_at: of the input type)
  uint64_t deadline_ns;            // how long a wait may take; 0: for ever
  uint64_t tag;
  // Of a direct program: where this rank's buffers lie, as its credits say (regions, or kRegion...). When some rank's
  // lie nowhere all ranks run the fallback instead, which has as many channels; the direct program then has one lane.
  // nullptr: there is none, and everything can be reached.
  const DeviceProgram* fallback;
  uint32_t in_region, out_region;
  uint32_t index;  // call_index(): its number among the communicator's calls, or its pair's messages; 0: captured
};

/// Of the units of one communicator in a launch at most one may have several lanes and direct calls: meetings, progress
/// of lanes and peers' buffers are kept by channel. (Messages between two ranks have one lane, so any number of them
/// run side by side.) Calls of a launch do not depend on one another's results: a channel is ahead of another one.
struct DeviceUnit {
  uint32_t first_block;  // of num_lanes * num_channels: block = first_block + channel * num_lanes + lane
  uint32_t num_lanes, num_channels;
  uint32_t first_call, num_calls;
};

/// The one argument of an interpreter kernel: small enough for a kernel's parameters (4 KB), so that a captured launch
/// holds all of it. Larger groups put the tables into memory that lives as long as the launch.
struct LaunchArgs {
  static constexpr uint32_t kMaxUnits = 20, kMaxCalls = 32;
  uint32_t num_units, num_calls;
  const DeviceUnit* more_units;  // instead of `units` when not null
  const DeviceCall* more_calls;  // instead of `calls` when not null
  DeviceTrace trace;
  DeviceUnit units[kMaxUnits];
  DeviceCall calls[kMaxCalls];
};
static_assert(sizeof(LaunchArgs) <= 4096);

/// A reduction or copy by a whole grid, without any connection: the stream engine's steps, and what bench/ measures.
/// Sources are combined left to right in the accumulator type, rounded once per sink. rondo_copy: num_elems are bytes.
struct ReduceArgs {
  static constexpr uint32_t kMaxSources = 16, kMaxSinks = 4;
  const void* src[kMaxSources];
  void* dst[kMaxSinks];
  uint32_t num_src, num_dst;
  uint64_t num_elems;
  uint32_t own;           // index of the source that is the caller's raw input; UINT32_MAX: none
  uint32_t divide_by;     // 0: no division
  const void* premul_at;  // as in DeviceCall
  alignas(8) std::byte premul[8];
  uint8_t premultiply;                    // scale the own source
  uint8_t own_type, wire_type, dst_type;  // mixed kernels: Dtype of src[own], of the other sources and sinks, of dst[0]
  uint8_t has_dst, result_as_wire, raw;   // mixed kernels, as in MixedKernelArgs
};

}  // namespace rondo
