#include "rondo/trace.h"

#include "core/communicator_impl.h"
#include "trace/clock.h"

namespace rondo {

Status trace_start(Communicator& comm, const TraceOptions& options) {
  return comm.impl().start_trace(options.directory, options.num_records);
}

Status trace_stop(Communicator& comm) { return comm.impl().stop_trace(); }

uint64_t trace_clock() { return ticks(); }

bool is_traced(Communicator& comm) { return comm.impl().tracing().is_on(); }

void trace_span(Communicator& comm, TraceSpan span) { comm.impl().tracing().add_span(std::move(span)); }

Status write_flight_record(Communicator& comm, const std::string& directory) {
  return comm.impl().tracing().write_flight(directory, "request");
}

}  // namespace rondo
