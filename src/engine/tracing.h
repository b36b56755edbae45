// Tracing: when the records of one rank's communicator are kept, and when and where they are written.
//
// The full trace (step_trace.h) is switched by RONDO_TRACE or by calls; it is written when it ends, when the
// communicator fails, and at the latest when it is destroyed. The flight record (flight_record.h) needs no switch; it
// is written on a failure when RONDO_FLIGHT_DIR names a folder, on the signal of RONDO_FLIGHT_SIGNAL, and on request.
//
// Thread safety: start, stop and the observer's calls belong to the driver; write_flight and device_failing from any
// thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "engine/queue.h"
#include "rondo/status.h"
#include "trace/flight_record.h"
#include "trace/step_trace.h"

namespace rondo {

/// What the environment says.
struct TraceSettings {
  std::string trace_directory;   // RONDO_TRACE; empty: no trace
  uint64_t num_records = StepTrace::kDefaultRecords;  // RONDO_TRACE_RECORDS
  std::string flight_directory;  // RONDO_FLIGHT_DIR; empty: no file
  int flight_signal = 0;         // RONDO_FLIGHT_SIGNAL; 0: none
};
/// Errors: kInvalidArgument naming the variable.
Expected<TraceSettings> read_trace_settings();

class Tracing final : public QueueObserver {
 public:
  /// Starts at once what the settings ask for; what fails is said on stderr, since no operation depends on it.
  Tracing(OperationQueue& queue, TraceSettings settings);
  /// The queue has no operation under way any more.
  ~Tracing();
  Tracing(const Tracing&) = delete;
  Tracing& operator=(const Tracing&) = delete;

  /// num_records 0: as the settings say.
  Status start(const std::string& directory, uint64_t num_records);
  Status stop();
  /// Ends the trace if there is one, and does not hear of the queue's failures any more.
  void finish();
  /// Takes the driver role for up to a second to look at the lanes, or has the driver do it; else writes what can be
  /// seen without.
  Status write_flight(const std::string& directory, std::string_view trigger);
  const TraceSettings& settings() const { return settings_; }
  /// The trace under way; nullptr: none.
  StepTrace* trace() { return trace_.get(); }
  /// Ends the trace without a file.
  void discard();
  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  /// Of the caller's own, into the trace under way.
  void add_span(TraceSpan span);
  /// Says on stderr what went wrong; no operation depends on it.
  void complain(const Status& s) const;

  /// Of communicators of device memory, whose calls the queue does not know.
  using DeviceCalls = std::function<std::vector<FlightCurrent>()>;
  void set_device_calls(DeviceCalls calls) {
    const std::lock_guard one_at_a_time(want_mutex_);
    device_calls_ = std::move(calls);
  }
  /// From the device engine's watcher.
  void device_failing(const Status& status, std::vector<FlightCurrent> calls);

  void failing(const Status& status) override;
  void flight_wanted() override;

 private:
  Status write_trace(std::string_view why);
  Status write_look(const std::string& directory, std::string_view trigger, const Status* failing, bool lanes);
  Status write_record(FlightRecord record, const std::string& directory, std::string_view trigger,
                      const Status* failing) const;

  OperationQueue& queue_;
  const TraceSettings settings_;
  DeviceCalls device_calls_;
  std::mutex trace_mutex_;  // the driver sets trace_, the device engine's watcher writes it
  std::unique_ptr<StepTrace> trace_;
  std::atomic<bool> on_{false};
  std::string directory_;  // of trace_
  uint32_t sessions_ = 0;  // traces ended so far
  std::string wanted_directory_, wanted_trigger_;  // of the flight record that another thread waits for
  Status wanted_status_;
  std::atomic<int> wanted_{0};  // 0: none, 1: asked for, 2: being written, 3: done
  std::mutex want_mutex_;       // one asks at a time
};

}  // namespace rondo
