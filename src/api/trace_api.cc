#include "rondo/trace.h"

#include "api/communicator_impl.h"
#include "trace/clock.h"

namespace rondo {

Status trace_start(Communicator& comm, const TraceOptions& options) {
  return guarded(impl_of(comm), [&] { return impl_of(comm).start_trace(options.directory, options.num_records); });
}

Status trace_stop(Communicator& comm) {
  return guarded(impl_of(comm), [&] { return impl_of(comm).stop_trace(); });
}

uint64_t trace_clock() { return ticks(); }

bool is_traced(Communicator& comm) { return impl_of(comm).is_of_this_process() && impl_of(comm).tracing().is_on(); }

void trace_span(Communicator& comm, TraceSpan span) {
  if (impl_of(comm).is_of_this_process()) impl_of(comm).tracing().add_span(std::move(span));
}

Status write_flight_record(Communicator& comm, const std::string& directory) {
  return guarded(impl_of(comm), [&] { return impl_of(comm).tracing().write_flight(directory, "request"); });
}

}  // namespace rondo
