// The file of one rank's trace, *.rtrace: little endian, with the records' memory layout.
//
//   "RONDOTR2" | header: identity, clocks, counts | host | why | plans | spans | records, the oldest first
//
// The reader checks sizes, indices and enum values: a truncated file, another version or a handmade file gives an error
// and never a crash.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.h"
#include "trace/step_trace.h"

namespace rondo {

inline constexpr std::string_view kTraceMagic = "RONDOTR2";
inline constexpr std::string_view kTraceSuffix = ".rtrace";

struct TraceFile {
  TraceIdentity identity;
  int64_t pid = 0;
  std::string host;  // host name and boot id: equal values share a time stamp counter
  std::string why;   // the error that caused it; empty: the trace was stopped
  ClockPair start, end;
  int64_t clock_offset_ns = 0;  // add it to this host's CLOCK_REALTIME; ranks on one host: 0
  uint64_t num_written = 0;     // records.size() of them are here, the others were overwritten
  std::vector<TracedPlan> plans;
  std::vector<TraceSpan> spans;  // the caller's own, the newest
  uint64_t spans_lost = 0;
  std::vector<StepRecord> records;

  uint64_t num_lost() const { return num_written - records.size(); }
  /// The instruction of a step's record; nullptr for plans beyond the limit of numbers. Otherwise valid after decoding.
  const TracedInstruction* instruction(const StepRecord& r) const {
    const TracedPlan& p = plans[r.plan];
    return p.lanes.empty() ? nullptr : &p.lanes[r.lane][r.pc];
  }
  /// The message number on the step's port of the flat list recv[0..], send[0..]; nothing if it was overwritten or the
  /// instruction has no connections. `index` is the step's place in `records`.
  std::optional<uint32_t> message_number(size_t index, size_t port) const;
};

/// "node7 <boot id>" of this machine.
std::string this_host();

/// The bytes before the records. The records follow in one or two pieces of the ring.
std::string encode_trace_head(const TraceFile& head, uint64_t num_records);
/// Errors: kInvalidArgument with the fault and its byte. O(bytes).
Expected<TraceFile> decode_trace(std::string_view bytes);
/// Errors: kSystem (cannot be read), kInvalidArgument (not a trace, or damaged), both with the path.
Expected<TraceFile> read_trace(const std::string& path);
/// All *.rtrace files of a directory, sorted by communicator and rank; or the single file `path`. Errors: those of
/// read_trace; kInvalidArgument if there is none.
Expected<std::vector<TraceFile>> read_traces(const std::string& path);

/// write_whole_file, creating missing directories. Errors: kSystem, kExhausted.
Status write_file(const std::string& path, std::span<const std::string_view> pieces);

}  // namespace rondo
