// FlightWatch: turns the signal of RONDO_FLIGHT_SIGNAL into flight records of all communicators of this process.
//
// A handler may do next to nothing, so it writes to an eventfd and a thread of its own does the rest. Handler and
// thread exist only while some communicator asks for a signal; the handler that stood there before is put back
// afterwards. This is the one place of rondo with state of the process: signals belong to the process.
//
// Thread safety: any thread.
#pragma once

#include "rondo/status.h"

namespace rondo {

class Tracing;

class FlightWatch {
 public:
  /// From now on the signal of tracing.settings() has its flight record written. The process has one such signal: the
  /// first communicator's. Errors: kSystem; kInvalidArgument when another signal is in use.
  static Status add(Tracing& tracing);
  /// Returns when no record of it is being written any more.
  static void remove(Tracing& tracing);
};

}  // namespace rondo
