// The file of one rank's trace, *.rtrace: little endian, with the records' memory layout.
//
//   "RONDOTR2" | header: identity, clocks, counts | host | why | plans | spans | records, the oldest first
//
// Its reader is tools/trace/read_trace.h. Thread safety: values.
#pragma once

#include <cstdint>
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
  /// Returns the instruction of a step's record; nullptr for plans beyond the limit of numbers. Decoding ensures that
  /// all other records have a valid one.
  const TracedInstruction* instruction(const StepRecord& r) const {
    const TracedPlan& p = plans[r.plan];
    return p.lanes.empty() ? nullptr : &p.lanes[r.lane][r.pc];
  }
};

/// Returns "node7 <boot id>" for this machine.
std::string this_host();

/// Returns the bytes before the records. The records follow in one or two pieces of the ring.
std::string encode_trace_head(const TraceFile& head, uint64_t num_records);
/// Creates missing directories and calls write_whole_file. Errors: kSystem, kExhausted.
Status write_file(const std::string& path, std::span<const std::string_view> pieces);

// --- the fields of the file, for writing and reading (base/codec.h) ---

template <class C>
void fields(C& c, TracedConnection& t) {
  c(t.writer, t.reader, t.tag, t.group, t.form);
}

template <class C>
void fields(C& c, TracedInstruction& i) {
  c(i.verb, i.flags, i.src_buffer, i.dst_buffer, i.src_chunk, i.dst_chunk, i.recv, i.send, i.recv_peers, i.send_peers);
  if constexpr (C::kDecodes)
    if (verb_name(i.verb) == "?" || i.src_buffer > Buffer::kScratch || i.dst_buffer > Buffer::kScratch) {
      i = {};  // an enum must not keep a value outside its type
      c.fail();
    }
}

template <class C>
void fields(C& c, TracedPlan& p) {
  uint64_t shape = p.shape.packed(), count_elems = p.shape.count_elems;
  c(shape, count_elems);
  if constexpr (C::kDecodes) p.shape = OperationShape::unpack(shape, count_elems);
  c(p.algorithm, p.protocol, p.reason, p.loop_elems, p.num_loops, p.lanes);
  if constexpr (C::kDecodes)
    if (static_cast<int>(p.shape.collective) >= kNumCollectives || static_cast<int>(p.shape.dtype) >= kNumDtypes ||
        static_cast<int>(p.shape.op) >= kNumOps || p.shape.row >= kNumRows)
      c.fail();
}

template <class C>
void fields(C& c, TraceSpan& s) {
  c(s.track, s.name, s.begin, s.end);
}

template <class C>
void fields(C& c, ClockPair& p) {
  c(p.ticks, p.monotonic_ns, p.realtime_ns);
}

/// The fields of the header that TraceFile does not have.
struct TraceLayout {
  char magic[8] = {};
  uint32_t record_bytes = 0, reserved = 0;
  uint64_t num_records = 0;
};
template <class C, class File>
void header_fields(C& c, File& f, TraceLayout& l) {
  c(l.magic, l.record_bytes, f.identity.rank, f.identity.nranks, l.reserved, f.identity.communicator, f.pid,
    f.clock_offset_ns, f.start, f.end, f.num_written, l.num_records);
}

}  // namespace rondo
