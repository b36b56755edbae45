#include "rondo/trace.h"

#include "core/communicator_impl.h"

namespace rondo {

Status trace_start(Communicator& comm, const TraceOptions& options) {
  return comm.impl().start_trace(options.directory, options.num_records);
}

Status trace_stop(Communicator& comm) { return comm.impl().stop_trace(); }

Status write_flight_record(Communicator& comm, const std::string& directory) {
  return comm.impl().tracing().write_flight(directory, "request");
}

}  // namespace rondo
