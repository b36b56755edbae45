// FlightRecord: the state of one rank's communicator, and its view of the other ranks, at one moment. rondo takes it on
// an error, at a deadline, on a signal or on request, and writes it as JSON. `rondo diagnose` merges the records of all
// ranks.
//
// It uses existing data: the status pages, and the position of each lane of the current operations. In normal operation
// it costs only one time stamp for each operation, on the status page.
//
// Thread safety: plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/schedule.h"
#include "rondo/status.h"
#include "trace/clock.h"
#include "trace/step_trace.h"

namespace rondo {

inline constexpr std::string_view kFlightSuffix = ".flight.json";

struct FlightOperation {
  PostedOperation posted;
  std::string algorithm;
  bool finished = false;
};

/// The position of one lane of a current operation.
struct FlightLane {
  enum class State : uint8_t { kDone, kReady, kData, kRoom, kOrder };
  uint32_t lane = 0, step = 0, num_steps = 0;
  uint64_t loop = 0, num_loops = 0;
  Verb verb = Verb::kWait;
  State state = State::kReady;
  std::vector<int32_t> peers;  // the ranks whose data or space is missing; kOrder: empty
};
constexpr std::string_view lane_state_name(FlightLane::State s) {
  constexpr std::string_view kNames[] = {"done", "ready", "waits for data", "waits for space", "waits for order"};
  return kNames[static_cast<int>(s)];
}

struct FlightCurrent {
  FlightOperation operation;
  std::string protocol, reason;
  bool started = false;
  int64_t waited_ns = 0;  // since a wait was first noticed; 0: no wait
  std::vector<FlightLane> lanes;
};

struct FlightPeer {
  int32_t rank = 0;
  int64_t pid = 0;      // 0: unknown
  std::string process;  // process_state()
  uint64_t last_posted = 0, last_finished = 0;
  std::vector<FlightOperation> operations;  // its last few, the newest first
  bool departed = false;
};

struct FlightRecord {
  TraceIdentity identity;
  int64_t pid = 0;
  std::string host;
  std::string trigger;  // "error", "signal", "request"
  ClockPair time;
  double ns_per_tick = 1;
  Status status;
  std::optional<int32_t> lost_rank;
  std::string lost_how;
  std::optional<int32_t> aborted_by;
  bool current_known =
      true;  // false: another thread drove the communicator all the time, and its lanes could not be read
  uint64_t last_posted = 0, last_finished = 0;
  std::vector<FlightOperation> operations;  // its last ones, the newest first
  std::vector<FlightCurrent> current;       // current ones, in order
  std::vector<FlightPeer> peers;            // all but this rank
};

/// Returns the record as one indented JSON document. O(size).
std::string to_json(const FlightRecord& record);
/// Returns `directory`/rank-R-comm-C.flight.json.
std::string flight_path(const std::string& directory, const TraceIdentity& identity);
/// Writes the record to its path in `directory`. Errors: kSystem.
Status write_flight_record(const FlightRecord& record, const std::string& directory);

/// Returns "running", "stopped" (SIGSTOP, a debugger), "gone" (no such process, or dead and not yet reaped), or
/// "unknown" (no pid, or a pid of another pid namespace).
std::string process_state(uint64_t pid, uint64_t pid_namespace);

}  // namespace rondo
