// FlightWatch: writes flight records of all communicators of this process on the signal that RONDO_FLIGHT names.
//
// A signal handler may do very little. Therefore it writes to an eventfd, and a separate thread does the rest. Handler
// and thread exist only while a communicator needs them. Afterwards the previous handler is restored. One FlightWatch
// serves the whole process, because signals belong to the process. Thread safety: any thread.
#pragma once

#include "rondo/status.h"

namespace rondo {

class Tracing;

class FlightWatch {
 public:
  /// Makes the signal of tracing.settings() write its flight record. A process has one such signal, which its first
  /// communicator sets. Errors: kSystem; kInvalidArgument if another signal is in use.
  static Status add(Tracing& tracing);
  /// Ends this. Returns when the last record of `tracing` has been written.
  static void remove(Tracing& tracing);
};

}  // namespace rondo
