// The file of one rank's trace, *.rtrace: little endian, as the records lie in memory.
//
//   "RONDOTR2" | header: identity, clocks, counts | host | why | plans | spans | records, the oldest first
//
// "RONDOTR1" had no spans, and is read too.
//
// The reader trusts nothing: sizes, indices and enum values are checked, so that a file that was cut off, is of another
// version or was made by hand gives an error and no crash.
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

inline constexpr std::string_view kTraceMagic = "RONDOTR2", kTraceMagicWithoutSpans = "RONDOTR1";
inline constexpr std::string_view kTraceSuffix = ".rtrace";

struct TraceFile {
  TraceIdentity identity;
  int64_t pid = 0;
  std::string host;       // host name and boot id: what has this in common shares a time stamp counter
  std::string why;        // the error at which it was written; empty: the trace was ended
  ClockPair start, end;
  int64_t clock_offset_ns = 0;  // to be added to this host's CLOCK_REALTIME; ranks on one host: 0
  uint64_t num_written = 0;     // records.size() of them are here, the others were overwritten
  std::vector<TracedPlan> plans;
  std::vector<TraceSpan> spans;  // the caller's own, the newest
  uint64_t spans_lost = 0;
  std::vector<StepRecord> records;

  uint64_t num_lost() const { return num_written - records.size(); }
  /// The instruction of a step's record; nullptr of the plans for which there was no number. Else valid after decoding.
  const TracedInstruction* instruction(const StepRecord& r) const {
    const TracedPlan& p = plans[r.plan];
    return p.lanes.empty() ? nullptr : &p.lanes[r.lane][r.pc];
  }
  /// The message number on the step's port of the flat list recv[0..], send[0..]; nothing when it has been overwritten
  /// or the instruction has no connections. `index` is the step's place in `records`.
  std::optional<uint32_t> message_number(size_t index, size_t port) const;
};

/// "node7 <boot id>" of this machine.
std::string this_host();

/// The bytes of a file. Records in one or two pieces, as a ring has them.
std::string encode_trace_head(const TraceFile& head, uint64_t num_records);
/// Errors: kInvalidArgument, saying what is wrong at which byte. O(bytes).
Expected<TraceFile> decode_trace(std::string_view bytes);
/// Errors: kSystem (cannot be read), kInvalidArgument (no trace, or damaged), both with the path.
Expected<TraceFile> read_trace(const std::string& path);
/// All *.rtrace files of a directory, sorted by communicator and rank; or the one file that `path` names.
/// Errors: those of read_trace; kInvalidArgument when there is none.
Expected<std::vector<TraceFile>> read_traces(const std::string& path);

/// write_whole_file, in a folder that is made where it is missing. Errors: kSystem, kExhausted.
Status write_file(const std::string& path, std::span<const std::string_view> pieces);

}  // namespace rondo
