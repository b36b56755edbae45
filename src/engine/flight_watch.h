// FlightWatch: writes flight records of all communicators of this process on the signal that RONDO_FLIGHT names.
//
// A signal handler may do very little, so it writes to an eventfd and a separate thread does the rest. Handler and
// thread exist only while a communicator needs them. Then the previous handler is restored. This is rondo's only
// process-wide state, because signals belong to the process. Thread safety: any thread.
#pragma once

#include "rondo/status.h"

namespace rondo {

class Tracing;

class FlightWatch {
 public:
  /// From now on the signal of tracing.settings() writes its flight record. A process has one such signal, set by the
  /// first communicator. Errors: kSystem; kInvalidArgument if another signal is in use.
  static Status add(Tracing& tracing);
  /// Returns after the last record of it has been written.
  static void remove(Tracing& tracing);
};

}  // namespace rondo
