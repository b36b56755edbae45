#include "engine/tracing.h"

#include <signal.h>
#include <time.h>

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "trace/trace_file.h"

namespace rondo {
namespace {

struct SignalName {
  std::string_view name;
  int number;
};
// Signals whose meaning the application defines.
constexpr SignalName kSignals[] = {{"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"HUP", SIGHUP},
                                   {"QUIT", SIGQUIT}, {"WINCH", SIGWINCH}, {"URG", SIGURG}};

Status make_directory(const std::string& directory) {
  if (directory.empty()) return invalid_argument("directory is empty");
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return make_error(StatusCode::kSystem, "cannot make {}: {}", directory, error.message());
  return {};
}

}  // namespace

Expected<TraceSettings> trace_settings(const SettingFields& settings) {
  const std::string_view flight = settings.flight;
  const size_t comma = std::min(flight.find(','), flight.size());
  TraceSettings s{settings.trace, std::string(flight.substr(0, comma))};
  if (comma == flight.size()) return s;
  std::string_view name = flight.substr(comma + 1);
  if (name.starts_with("SIG")) name.remove_prefix(3);
  for (const SignalName& known : kSignals)
    if (name == known.name) s.flight_signal = known.number;
  if (s.flight_signal == 0 || s.flight_directory.empty())
    return invalid_argument(
        "RONDO_FLIGHT={}: expected a folder, or folder,SIGNAL with USR1, USR2, HUP, QUIT, WINCH or URG", flight);
  return s;
}

Tracing::Tracing(OperationQueue& queue, TraceSettings settings) : queue_(queue), settings_(std::move(settings)) {
  queue_.set_observer(this);
  if (!settings_.trace_directory.empty()) complain(start(settings_.trace_directory, 0));
  if (settings_.flight_signal != 0) complain(watch_flight_signal(*this));
}

void Tracing::complain(const Status& s) const {
  if (!s.ok()) std::fprintf(stderr, "rondo: rank %d: %s\n", queue_.rank(), s.to_string().c_str());
}

Tracing::~Tracing() {
  if (settings_.flight_signal != 0) ignore_flight_signal(*this);
  finish();
}

void Tracing::finish() {
  if (trace_ != nullptr) complain(stop());
  queue_.set_observer(nullptr);
}

Status Tracing::start(const std::string& directory, uint64_t num_records) {
  if (trace_ != nullptr) return invalid_argument("rank {} is already traced to {}", queue_.rank(), directory_);
  RONDO_TRY(make_directory(directory));
  const TraceIdentity identity{0, queue_.rank(), queue_.nranks()};  // the id is set with the file
  const std::lock_guard lock(trace_mutex_);
  RONDO_TRY_ASSIGN(trace_, StepTrace::create(identity, num_records != 0 ? num_records : StepTrace::kDefaultRecords));
  directory_ = directory;
  on_ = true;
  queue_.executor().set_trace(trace_.get());
  return {};
}

Status Tracing::stop() {
  if (trace_ == nullptr) return invalid_argument("rank {} is not traced", queue_.rank());
  queue_.executor().set_trace(nullptr);
  const std::lock_guard lock(trace_mutex_);
  const Status s = write_trace(queue_.failure().message());
  on_ = false;
  trace_.reset();
  ++sessions_;
  return s;
}

void Tracing::discard() {
  queue_.executor().set_trace(nullptr);
  const std::lock_guard lock(trace_mutex_);
  on_ = false;
  trace_.reset();
}

void Tracing::add_span(TraceSpan span) {
  if (!is_on()) return;
  const std::lock_guard lock(trace_mutex_);
  if (trace_ != nullptr) trace_->add_span(std::move(span));
}

Status Tracing::write_trace(std::string_view why) {
  trace_->name(queue_.communicator_id());
  return trace_->write(trace_path(directory_, trace_->identity(), sessions_), why);
}

// calls: the current ones of a communicator of device memory, if the caller knows them. The watcher of the device does,
// and must not call back into it.
Status Tracing::write_look(const std::string& directory, std::string_view trigger, const Status* failing, bool lanes,
                           std::optional<std::vector<FlightCurrent>> calls) {
  FlightRecord record = queue_.flight_record(lanes);
  if (!calls && device_calls_ != nullptr) calls = device_calls_();
  if (calls) {
    record.current = std::move(*calls);
    record.current_known = true;
  }
  record.host = this_host();
  record.trigger = trigger;
  if (failing != nullptr) record.status = *failing;
  return write_flight_record(record, directory);
}

void Tracing::keep_failure(const Status& written) {
  if (written.ok()) has_failure_record_.store(true);
  else complain(written);
}

void Tracing::failing(const Status& status) {
  if (!settings_.flight_directory.empty()) keep_failure(write_look(settings_.flight_directory, "error", &status, true));
  if (trace_ != nullptr) complain(write_trace(status.message()));
}

void Tracing::device_failing(const Status& status, std::vector<FlightCurrent> calls) {
  if (!settings_.flight_directory.empty())
    keep_failure(write_look(settings_.flight_directory, "error", &status, false, std::move(calls)));
  const std::lock_guard lock(trace_mutex_);
  if (trace_ != nullptr) complain(write_trace(status.message()));
}

void Tracing::flight_wanted() {
  int asked = 1;
  if (!wanted_.compare_exchange_strong(asked, 2, std::memory_order_acquire)) return;  // the requester has given up
  wanted_status_ = write_look(wanted_directory_, wanted_trigger_, nullptr, true);
  wanted_.store(3, std::memory_order_release);
}

Status Tracing::write_flight(const std::string& directory, std::string_view trigger) {
  constexpr int kDeadlineMs = 1000;
  // The record of the failure shows the operations. Now they are gone.
  if (has_failure_record_.load() && directory == settings_.flight_directory) return {};
  const std::lock_guard one_at_a_time(want_mutex_);
  wanted_directory_ = directory;
  wanted_trigger_ = trigger;
  wanted_.store(1, std::memory_order_release);
  queue_.want_flight();
  for (int ms = 0; ms < kDeadlineMs; ++ms) {
    if (queue_.drive()) {  // no thread drives
      flight_wanted();
      queue_.leave();
    }
    if (wanted_.load(std::memory_order_acquire) == 3) break;
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
  int asked = 1;
  if (wanted_.compare_exchange_strong(asked, 0)) return write_look(directory, trigger, nullptr, false);
  while (wanted_.load(std::memory_order_acquire) != 3) {  // it is being written right now
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
  wanted_.store(0, std::memory_order_relaxed);
  return std::move(wanted_status_);
}

}  // namespace rondo
