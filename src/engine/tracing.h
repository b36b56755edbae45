// Tracing: decides when one rank's trace and flight records are kept and written.
//
// RONDO_TRACE or a call starts the full trace (step_trace.h). It is written when it ends, when the communicator fails,
// and at the latest when the communicator is destroyed. The flight record (flight_record.h) needs no start. It is
// written on a failure if RONDO_FLIGHT names a folder, on the signal that RONDO_FLIGHT names, and on request.
//
// Thread safety: start, stop and the observer's calls belong to the driver. Any thread may call write_flight, is_on,
// add_span and device_failing.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/setting_table.h"
#include "engine/queue.h"
#include "rondo/status.h"
#include "trace/flight_record.h"
#include "trace/step_trace.h"

namespace rondo {

struct TraceSettings {
  std::string trace_directory;   // RONDO_TRACE; empty: no trace
  std::string flight_directory;  // RONDO_FLIGHT; empty: no file
  int flight_signal = 0;         // RONDO_FLIGHT, after a comma; 0: none
};
/// Reads RONDO_TRACE and RONDO_FLIGHT. Errors: kInvalidArgument (RONDO_FLIGHT names no folder, or a signal that is not
/// allowed).
Expected<TraceSettings> trace_settings(const SettingFields& settings);

class Tracing {
 public:
  /// Starts what the settings request. Failures are printed on stderr, because no operation depends on it.
  Tracing(OperationQueue& queue, TraceSettings settings);
  /// No operation of the queue may be running.
  ~Tracing();

  /// Starts the trace. num_records 0: StepTrace::kDefaultRecords.
  Status start(const std::string& directory, uint64_t num_records);
  Status stop();
  /// Ends the trace if there is one, and stops observing the queue.
  void finish();
  /// Writes a flight record. For up to a second it tries to take the driver role, or waits for the driver to write the
  /// record. After a second it writes the record without the lanes.
  Status write_flight(const std::string& directory, std::string_view trigger);
  const TraceSettings& settings() const { return settings_; }
  StepTrace* trace() { return trace_.get(); }
  /// Ends the trace without a file.
  void discard();
  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  void add_span(TraceSpan span);
  /// Prints an error on stderr. No operation depends on it.
  void complain(const Status& s) const;

  /// Sets the source of the current calls for communicators of device memory, whose calls are not in the queue.
  using DeviceCalls = std::function<std::vector<FlightCurrent>()>;
  void set_device_calls(DeviceCalls calls) {
    const std::lock_guard one_at_a_time(want_mutex_);
    device_calls_ = std::move(calls);
  }
  /// Writes the records of a failure. The device engine's watcher calls it.
  void device_failing(const Status& status, std::vector<FlightCurrent> calls);

  // The queue's driver calls these.
  /// Writes the records of a failure, before the running operations end with it.
  void failing(const Status& status);
  void flight_wanted();

 private:
  Status write_trace(std::string_view why);
  void keep_failure(const Status& written);
  Status write_look(const std::string& directory, std::string_view trigger, const Status* failing, bool lanes,
                    std::optional<std::vector<FlightCurrent>> calls = {});

  OperationQueue& queue_;
  const TraceSettings settings_;
  DeviceCalls device_calls_;
  std::mutex trace_mutex_;  // the driver sets trace_, the device engine's watcher writes its file
  std::unique_ptr<StepTrace> trace_;
  std::atomic<bool> on_{false};
  std::string directory_;  // of trace_
  uint32_t sessions_ = 0;  // traces ended so far
  std::string wanted_directory_, wanted_trigger_;  // of the flight record that another thread requested
  Status wanted_status_;
  std::atomic<bool> has_failure_record_{false};
  std::atomic<int> wanted_{0};  // 0: none, 1: requested, 2: being written, 3: done
  std::mutex want_mutex_;       // one request at a time
};

/// Makes the signal of tracing.settings() write its flight record. A process has one such signal, which its first
/// communicator sets. Any thread may call it. Errors: kSystem; kInvalidArgument if another signal is in use.
Status watch_flight_signal(Tracing& tracing);
/// Ends this. Returns when the last record of `tracing` has been written.
void ignore_flight_signal(Tracing& tracing);

}  // namespace rondo
