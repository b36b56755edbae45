// Places the records of several ranks on one clock, and pairs sends with receives.
//
// Ranks of one host share the time stamp counter. One line through the host's earliest and latest pair of clocks serves
// all its files, so that their order is exact. If a host's files do not fit one line (the counter is not invariant, or
// the host slept), each file is placed by its own pairs, which is exact to some microseconds. Hosts are aligned by
// CLOCK_REALTIME and the offset in each file. Thread safety: immutable once made.
#pragma once

#include <cstdint>
#include <vector>

#include "trace/tick_scale.h"
#include "trace/trace_file.h"

namespace rondo {

class Timeline {
 public:
  explicit Timeline(const std::vector<TraceFile>& files);
  /// Nanoseconds since origin_realtime_ns().
  int64_t ns(size_t file, uint64_t at_ticks) const {
    return placed_[file].first_ns + static_cast<int64_t>(placed_[file].scale.since_first_ns(at_ticks));
  }
  int64_t origin_realtime_ns() const { return origin_realtime_ns_; }
  /// True if the file shares one line with all others of its host.
  bool is_shared(size_t file) const { return placed_[file].shared; }

 private:
  struct Placed {
    TickScale scale;
    int64_t first_ns = 0;
    bool shared = false;
  };
  std::vector<Placed> placed_;
  int64_t origin_realtime_ns_ = 0;
};

/// One message: the records of its send and its receive, as indices of files and records.
struct MessageFlow {
  uint32_t send_file, send_record;
  uint32_t recv_file, recv_record;
  int32_t writer, reader;
};

struct MessageFlows {
  std::vector<MessageFlow> flows;
  uint64_t unmatched_sends = 0, unmatched_recvs = 0;  // the other end was overwritten, or its file is missing
};

/// Pairs sends and receives by connection and message number. O(n log n) for n messages.
MessageFlows match_messages(const std::vector<TraceFile>& files);

}  // namespace rondo
