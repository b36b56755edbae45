// CostModel: the forecast of a call in nanoseconds, a sum of counts times constants. The counts (cost_counts) follow
// from the schedule's profile and the call's size. The constants describe a machine. They are built in, measured on a
// new machine (api/machine_probe.h), or measured by `rondo calibrate`. The forecast is linear in the constants.
// Therefore they can be fitted to timings of whole calls.
//
// There are two sets of constants: for one rank per core, and for oversubscribed cores. On oversubscribed cores a wait
// is a change of rank, and half of the exchanged data stays in a core's own caches.
//
// Pure functions over values; their arguments are equal on all ranks.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "plan/program.h"
#include "plan/schedule_profile.h"

namespace rondo {

// X(enumerator, name, unit, built-in value for one rank per core, built-in value for shared cores, what it counts). The
// built-in values come from one machine (Xeon, 2 cores), found with bench/compare_peers and forced algorithms; `rondo
// calibrate` measures a machine's own.
#define RONDO_COST_TERMS(X)                                                                                            \
  X(kCall, "call", "ns", 20, 60, "fixed cost of a call")                                                               \
  X(kHandover, "handover", "ns", 110, 700, "a rank waits for another: a flag between cores, or a task switch")         \
  X(kDataHandover, "data_handover", "ns", 300, 150, "added to handover: the first 4 KiB of data in a ring")            \
  X(kLoop, "loop", "ns", 60, 0, "handover and data_handover for a further message of a long chunk")                    \
  X(kStep, "step", "ns", 14, 14, "an instruction of the inline protocol")                                              \
  X(kMessage, "message", "ns", 50, 50, "an instruction of the simple protocol, one message")                           \
  X(kLine, "line", "ns", 7, 7, "reducing the data of one header line")                                                 \
  X(kEnd, "end", "ns", 7, 7, "a header line written or read")                                                          \
  X(kRingByte, "ring_byte", "ns/byte", 0.025, 0.025, "data rings, written or read")                                    \
  X(kFarRingByte, "far_ring_byte", "ns/byte", 0.050, 0.050, "ring_byte in calls larger than near_bytes")               \
  X(kDirtyRingByte, "dirty_ring_byte", "ns/byte", 0.010, 0.010,                                                        \
    "added in a lap, or if the rings of a core fit its caches")                                                        \
  X(kLongRingByte, "long_ring_byte", "ns/byte", 0.018, 0.018,                                                          \
    "added otherwise: the whole ring, or rings beyond the caches")                                                     \
  X(kUserByte, "user_byte", "ns/byte", 0.010, 0.010, "the caller's buffers, read or written")                          \
  X(kFarUserByte, "far_user_byte", "ns/byte", 0.02, 0.02, "user_byte in calls larger than near_bytes")                 \
  X(kBlockByte, "block_byte", "ns/byte", 0.030, 0.010, "user_byte of data that the kernel has just copied to a block") \
  X(kPeerByte, "peer_byte", "ns/byte", 0.009, 0.009, "peers' mapped buffers, read or written")                         \
  X(kFarPeerByte, "far_peer_byte", "ns/byte", 0.03, 0.03, "peer_byte in calls larger than near_bytes")                 \
  X(kPullCall, "pull_call", "ns", 650, 650, "a copy by the kernel: fixed cost")                                        \
  X(kPullByte, "pull_byte", "ns/byte", 0.026, 0.026, "a copy by the kernel, data in memory for some time")             \
  X(kFreshPullByte, "fresh_pull_byte", "ns/byte", 0.070, 0.073, "pull_byte of data just written by its owner")         \
  X(kFarPullByte, "far_pull_byte", "ns/byte", 0.06, 0.06, "pull_byte in calls larger than near_bytes")                 \
  X(kFarFreshPullByte, "far_fresh_pull_byte", "ns/byte", 0.06, 0.06,                                                   \
    "fresh_pull_byte in calls larger than near_bytes")                                                                 \
  X(kHugePullByte, "huge_pull_byte", "ns/byte", 0.14, 0.14, "a copy by the kernel in calls larger than huge_bytes")    \
  X(kHostHop, "host_hop", "ns", 25000, 25000, "a message to another host: latency")                                    \
  X(kHostMessage, "host_message", "ns", 1500, 1500, "a message to another host: CPU time at each end")                 \
  X(kHostByte, "host_byte", "ns/byte", 0.4, 0.4, "bytes that the busiest host sends to other hosts")

enum class CostTerm : uint8_t {
#define RONDO_X(e, ...) e,
  RONDO_COST_TERMS(RONDO_X)
#undef RONDO_X
      kCount
};
inline constexpr size_t kNumCostTerms = static_cast<size_t>(CostTerm::kCount);

struct CostTermInfo {
  std::string_view name, unit;
  double spread, oversubscribed;  // built in
  std::string_view summary;
};
inline constexpr CostTermInfo kCostTerms[] = {
#define RONDO_X(e, name, unit, spread, oversubscribed, summary) {name, unit, spread, oversubscribed, summary},
    RONDO_COST_TERMS(RONDO_X)
#undef RONDO_X
};

/// This term and the following apply between hosts only. Their built-in values are for Ethernet of 10 to 25 Gbit/s and
/// TCP.
inline constexpr CostTerm kFirstHostTerm = CostTerm::kHostHop;

/// One number for each CostTerm: constants, or counts.
using CostVector = std::array<double, kNumCostTerms>;

/// It is trivially copyable, because all ranks get rank 0's constants when a communicator is made.
struct CostModel {
  CostVector spread;     // one rank per core
  CostVector oversubscribed;  // ranks share cores
  uint64_t near_bytes;   // bytes of a core's calls: near caches serve all up to this, and none from four times this on
  uint64_t huge_bytes;   // size of a call from which page walks slow down pulls
  friend bool operator==(const CostModel&, const CostModel&) = default;
};
CostModel built_in_costs();

/// A call as a candidate would run it.
struct CostCase {
  const ScheduleProfile* profile = nullptr;
  Protocol protocol = Protocol::kSimple;
  bool direct = false;   // from buffer to buffer
  bool by_copy = false;  // direct, through the kernel's copies instead of mapped memory
  double message_bytes = 0;
  double whole_bytes = 0;  // S
  double chunk_bytes = 0;  // the longest chunk
  int ranks_per_core = 1;
  double user_bytes = 0;   // the same buffer in the callers' types, if these differ from the wire type; 0: whole_bytes
  bool rounds = false;     // direct: rounds the data it reads to the wire type
  double lap_bytes = 0;    // range of its messages in each ring (protocol/fifo.h)
  bool whole_ring = false;  // that range is used even if the call is shorter
  bool both_send = false;   // two ranks on two hosts: both send from the start
};

/// Returns how often each constant counts. Uses only near_bytes and huge_bytes of `model`.
CostVector cost_counts(const CostCase& c, const CostModel& model);
/// Returns the sum of the counts times the set of constants that fits ranks_per_core.
double forecast_ns(const CostVector& counts, const CostModel& model, int ranks_per_core);

}  // namespace rondo
