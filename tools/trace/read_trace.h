// Reads trace files (trace/trace_file.h).
//
// The reader checks sizes, indices and enum values: a truncated file, another version or a handmade file gives an error
// and never a crash.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.h"
#include "trace/trace_file.h"

namespace rondo {

/// Errors: kInvalidArgument with the fault and its byte. O(bytes).
Expected<TraceFile> decode_trace(std::string_view bytes);
/// Errors: kSystem (cannot be read), kInvalidArgument (not a trace, or damaged), both with the path.
Expected<TraceFile> read_trace(const std::string& path);
/// All *.rtrace files of a directory, sorted by communicator and rank; or the single file `path`. Errors: those of
/// read_trace; kInvalidArgument if there is none.
Expected<std::vector<TraceFile>> read_traces(const std::string& path);

/// The message number on a step's port of the flat list recv[0..], send[0..]; nothing if it was overwritten or the
/// instruction has no connections. `index` is the step's place in `records`.
std::optional<uint32_t> message_number(const TraceFile& file, size_t index, size_t port);

}  // namespace rondo
