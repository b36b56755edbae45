// Device form of a Program: plain data without host pointers, and the arguments of a launch.
//
// A DeviceProgram is made from the engine's Program (lower.h) and kept in device memory. It contains no element counts:
// calls of all lengths share it, and a step only names its chunks. LaunchArgs contains the data that changes from call
// to call but not from replay to replay, the counts too. Step counters change from replay to replay. They are in device
// memory, and the kernel updates them.
//
// Blocks. A launch contains units. A unit is a sequence of calls that use the same connections and therefore run one
// after the other. Units run concurrently. A unit has lanes x channels blocks: block (lane, channel) runs that lane of
// each of its calls on that channel's share of every chunk (channel_extent). Between two calls of a unit the lanes of a
// channel meet, because a connection may move from one lane to another. All blocks of a launch must be resident at the
// same time. The launching code must ensure that.
//
// Host and device: plain data and constexpr functions. tests/device/engine freezes the layout.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "protocol/fifo.h"
#include "rondo/schedule.h"
#include "schedule/extent.h"

namespace rondo {

/// Protocol of messages on a device. kLl: words of 4 B data and 4 B flag. kLl128: lines of 120 B data and an 8 B flag,
/// if line stores are atomic. kSimple: data in the ring, followed by a flag (protocol/fifo.h). Programs of kLl and
/// kLl128 use rings too, on connections between hosts.
enum class DeviceProtocol : uint8_t { kSimple, kLl, kLl128 };
inline constexpr int kNumDeviceProtocols = 3;
constexpr const char* protocol_name(DeviceProtocol p) {
  return p == DeviceProtocol::kSimple ? "simple" : p == DeviceProtocol::kLl ? "ll" : "ll128";
}

enum DeviceStepBits : uint8_t {
  kStepPrescale = 1,  // premul_sum scales here: reads the caller's raw input in a reducing collective
  kStepCopies = 2,    // copies one source unchanged
  kStepAsWire = 4,    // mixed types: rounds its result to the wire type first
};

/// An instruction. Its chunks get their extents from the call's counts. Made from ProgramStep.
struct alignas(8) DeviceStep {
  static constexpr uint16_t kNoChunk = UINT16_MAX;
  Verb verb;
  uint8_t flags;                   // InstructionFlags
  uint8_t src_buffer, dst_buffer;  // Buffer
  uint8_t bits;                    // DeviceStepBits
  uint8_t wait_lane;               // for a wait
  uint16_t wait_pc;                // for a wait
  uint16_t src_position;
  uint16_t num_recv, num_send;  // entries of the index table from first_index on: receives, then sends. Ranks for
  uint16_t reserved;            // direct steps, otherwise places in the lane's list of ends
  uint32_t first_index;
  uint16_t src_chunk, dst_chunk;  // of its buffers
};
static_assert(sizeof(DeviceStep) == 24);

/// A channel's part of a chunk, in elements from the chunk's beginning. Cut at multiples of 512 wire bytes, so that all
/// ranks cut equally and accesses stay aligned. Later channels may get nothing.
constexpr Extent channel_extent(uint64_t num_elems, uint32_t num_channels, uint32_t channel, uint32_t wire_bytes) {
  const uint64_t unit = 512 / wire_bytes;
  const uint64_t units = num_elems / unit + (num_elems % unit != 0 ? 1 : 0);
  const Extent e = extent(units, num_channels, channel);
  const uint64_t first = e.first_elem * unit, end = (e.first_elem + e.num_elems) * unit;
  const uint64_t cut = end < num_elems ? end : num_elems;
  return first < cut ? Extent{first, cut - first} : Extent{num_elems, 0};
}

/// A program in device memory: the header, the steps of all lanes, the index table. Offsets are relative to the header.
/// For each lane the index table has the list of its ends, which a block copies to shared memory. At entry
/// lane_ends[lane] are num_reads, num_writes, then indices of the channel's DeviceReadEnds, then of its
/// DeviceWriteEnds. A step refers to ends by their places in these lists.
struct alignas(16) DeviceProgram {
  static constexpr int kMaxLanes = 8;
  static constexpr uint32_t kMaxLaneReads = 128, kMaxLaneWrites = 64;  // lower() refuses programs with more
  uint32_t total_bytes;
  uint32_t steps_offset, index_offset;
  uint32_t num_lanes;
  uint32_t lane_first[kMaxLanes + 1];  // first step of each lane, and the end
  uint32_t lane_ends[kMaxLanes];       // entry of the index table
  uint32_t rank;
  DeviceProtocol protocol;
  uint8_t row;            // type row of the call
  uint8_t elem_bytes[3];  // by Buffer
  uint8_t wire_bytes;
  uint8_t own_type, wire_type, out_type;  // Dtype
  uint8_t premul, direct, waits;          // waits: some step waits for a lane
  uint8_t entry_steps;                    // for a direct program with a fallback: its entry credits
  uint8_t pushes;                         // 1: ranks write into their peers' outputs
  Buffer scratch_like;                    // kIn or kOut: scratch is cut into chunks like this buffer
  uint8_t reserved;                       // zero, as `reserved_words`: equal programs have equal bytes
  uint32_t divide_by;                     // avg: the number of ranks; 0: no division
  uint32_t reserved_words[3];
  uint64_t loop_elems;  // per channel: elements of a message

  RONDO_HOST_DEVICE const DeviceStep* steps() const {
    return reinterpret_cast<const DeviceStep*>(reinterpret_cast<const std::byte*>(this) + steps_offset);
  }
  RONDO_HOST_DEVICE const uint16_t* index() const {
    return reinterpret_cast<const uint16_t*>(reinterpret_cast<const std::byte*>(this) + index_offset);
  }
};
static_assert(sizeof(DeviceProgram) == 128);

/// Values that depend on a call's element counts. lower() computes them; they travel with the call.
struct DeviceCounts {
  uint64_t base_elems[2];  // EqualChunks of the input and the output; unused with variable counts
  uint32_t longer[2];      //   "
  uint64_t num_loops;      // of the longest channel
  uint32_t num_channels;
  uint32_t lap_bytes;    // of rings: as Program::lap_bytes
  uint32_t fingerprint;  // of the messages' shape
  uint32_t pairwise;     // 1: all_to_all_v (pair_fingerprint)
};
static_assert(sizeof(DeviceCounts) == 48);

/// One end of a connection in one channel, as stored in device memory between kernels.
struct DeviceWriteEnd {
  FifoView view;        // slot_bytes != 0: data is num_lines slots of kLl or kLl128; lines is unused
  uint32_t slot_bytes;  // with flags; 0: a ring, or lines of credits
  uint32_t num_readers;
  const uint32_t* readers;  // num_readers indices of counters
  uint64_t step;
  uint32_t offset, free_end;  // kSimple: FifoWriter's position in its ring
  uint32_t starts[kMaxDataLines];
};
struct DeviceReadEnd {
  FifoView view;
  uint32_t slot_bytes;
  uint32_t counter;
  uint64_t step;
  Rank peer;  // the writer
};

/// Addresses of a rank's buffers: in a credit as that rank sees them, in DeviceComm::peers as this rank does.
struct PeerBuffers {
  const std::byte* in;
  std::byte* out;
};
/// Instead of a region number. Nowhere: no peer can reach the buffer. Nothing: there is no buffer, so it is unused.
inline constexpr uint32_t kRegionNowhere = UINT32_MAX, kRegionNothing = UINT32_MAX - 1;
/// Contents of a direct program's credits. Only the owner can check that a buffer is still in its region. If all ranks
/// use the same addresses, only kRegionNowhere has a meaning.
struct PeerCredit {
  PeerBuffers buffers;
  uint32_t in_region, out_region;
};
static_assert(sizeof(PeerCredit) <= kLinePayloadBytes);
/// A rank's part of a region (memory that all ranks have agreed on) and its local address. Memory of another process is
/// opened by IPC handle, at another address.
struct PeerRegion {
  const std::byte* theirs;
  uint64_t bytes;
  std::byte* ours;
};

/// Progress of a lane of a channel in the current call. Lanes that wait for it read `completed`. A call with waits ends
/// with a meeting of the channel's lanes. The last one to arrive clears these counts.
struct alignas(64) LaneProgress {
  uint64_t completed;  // instructions finished, stored with release
};

/// All state of a rank's communicator in device memory. Tables are by channel: entry c * stride + i. All values except
/// addresses are zero at first.
struct DeviceComm {
  uint32_t rank, num_ranks, max_channels;
  uint32_t write_stride, read_stride;  // capacity of one channel's table
  DeviceWriteEnd* writes;
  DeviceReadEnd* reads;
  PeerBuffers* peers;            // max_channels x num_ranks
  LaneProgress* lanes;           // max_channels x kMaxLanes
  uint64_t* meetings;            // max_channels x 8 words (a line each): [0] lanes that have arrived at a meeting, [1]
                                 // meetings so far, [2] of line 0: a block has failed, [3] the call's entry credits
                                 // selected its fallback, [4] lanes that are done with the unit: kMaxLanes each launch
  const PeerRegion* regions;  // region g of rank r: entry g * num_ranks + r. nullptr: all ranks use the same addresses
  uint32_t max_regions;
};

/// Converts a peer's address to a local one. Returns false if it is not in the region that the peer names.
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

/// In host memory that the device can access (pinned and mapped); one per rank's communicator.
struct alignas(64) DeviceControl {
  uint32_t abort;   // set by the host: all blocks leave
  uint32_t failed;  // DeviceFailure of the first failed block; other blocks leave when they see it
  // Written by that block before `failed`:
  uint32_t call, lane, channel, pc;
  uint64_t loop;
  int32_t peer;       // the missing peer; -1: no particular peer
  uint32_t for_room;  // it waited for space in a ring, not for data
  uint64_t waited_ns;
};

/// One executed instruction, in a ring of records that the host reads after the launch. Empty messages make no record.
struct alignas(16) DeviceRecord {  // one cache line
  static constexpr uint32_t kSteps = 8;
  static constexpr uint8_t kFirstPorts = 255;
  uint64_t begin_ns, end_ns;  // globaltimer, from the first poll of its operands; wait_ns is the wait
  uint32_t wait_ns, loop;
  uint16_t call, pc;
  uint8_t lane, channel;
  uint8_t num_steps;  // number of steps: ports of the instruction; kFirstPorts: more than kSteps
  uint8_t fallback;   // 1: the instruction belongs to the call's fallback
  uint32_t steps[kSteps];  // message number on each port, receives first; kFirstPorts: steps[0] for the first receive,
                           // steps[1] for the first send
};
static_assert(sizeof(DeviceRecord) == 64);
struct DeviceTrace {
  DeviceRecord* records;  // capacity entries, a power of two; nullptr: none
  uint64_t* next;         // number of records so far
  uint64_t capacity;
};

/// One call of a launch. Offsets are those of LaunchArgs::tables(); 0: there is no such table.
struct alignas(16) DeviceCall {
  const DeviceProgram* program;
  DeviceCounts counts;
  const DeviceComm* comm;
  DeviceControl* control;
  const std::byte* in;
  std::byte* out;
  std::byte* scratch;
  const void* premul_at;           // premul_sum: device address of the scale; nullptr: in `premul`
  alignas(8) std::byte premul[8];  // one element of the accumulator type (at premul_at: of the input type)
  uint64_t deadline_ns;            // limit of a wait; 0: none
  uint32_t index;  // call_index(): number of the call, or of the pair's message; 0: captured
  // For a direct program: the offset of a DeviceFallback, and the regions of this rank's buffers, for its credits (or
  // kRegion...). If some rank's buffers are unreachable, all ranks run the fallback, which has as many channels. The
  // direct program then has one lane. Without a fallback all buffers can be reached.
  uint32_t fallback;
  uint32_t in_region, out_region;
  uint32_t parts[2];  // variable counts: offsets of the Extents of the input's and of the output's chunks
};
struct DeviceFallback {
  const DeviceProgram* program;
  DeviceCounts counts;
};

/// Among the units of one communicator in a launch, at most one may have several lanes and direct calls, because
/// meetings, lane progress and peers' buffers are per channel. (Any number of messages between two ranks run
/// concurrently, with one lane each.) Calls of a launch must not depend on one another's results, because channels run
/// ahead.
struct DeviceUnit {
  uint32_t first_block;  // of num_lanes * num_channels: block = first_block + channel * num_lanes + lane
  uint32_t num_lanes, num_channels;
  uint32_t first_call, num_calls;
};

/// Threads per block of all kernels. At most one block per multiprocessor leaves 128 registers per thread.
inline constexpr uint32_t kBlockThreads = 512;

/// The only argument of an interpreter kernel. It fits a kernel's parameters (4 KB), so that a captured launch holds
/// all of it. Longer tables are in memory that lives as long as the launch. launch_tables.h writes them.
struct alignas(16) LaunchArgs {
  static constexpr uint32_t kOwnBytes = 4048;
  uint32_t num_units, num_calls;
  DeviceTrace trace;
  const std::byte* more_tables;  // if not null, replaces `own_tables`
  uint64_t reserved;
  std::byte own_tables[kOwnBytes];  // the units, the calls, then the tables that calls name by their offsets

  static constexpr uint64_t calls_offset(uint64_t num_units) { return (num_units * sizeof(DeviceUnit) + 15) / 16 * 16; }
  RONDO_HOST_DEVICE const std::byte* tables() const { return more_tables != nullptr ? more_tables : own_tables; }
  RONDO_HOST_DEVICE const DeviceUnit* units() const { return reinterpret_cast<const DeviceUnit*>(tables()); }
  RONDO_HOST_DEVICE const DeviceCall* calls() const { return at<DeviceCall>(calls_offset(num_units)); }
  template <class T>
  RONDO_HOST_DEVICE const T* at(uint64_t offset) const {
    return reinterpret_cast<const T*>(tables() + offset);
  }
};
static_assert(sizeof(LaunchArgs) <= 4096 && sizeof(LaunchArgs) % 16 == 0);

}  // namespace rondo
