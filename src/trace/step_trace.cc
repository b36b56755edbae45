#include "trace/step_trace.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "trace/trace_file.h"

namespace rondo {

Expected<std::unique_ptr<StepTrace>> StepTrace::create(const TraceIdentity& identity, uint64_t num_records) {
  if (num_records < kMinRecords || num_records > kMaxRecords)
    return invalid_argument("rank {}: num_records is {}: expected {} to {}", identity.rank, num_records, kMinRecords,
                            kMaxRecords);
  const uint64_t capacity = std::bit_ceil(num_records);
  void* memory = mmap(nullptr, capacity * sizeof(StepRecord), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED)
    return make_error(StatusCode::kSystem, "rank {}: {} bytes for a trace: {}", identity.rank,
                      capacity * sizeof(StepRecord), std::strerror(errno));
  return std::unique_ptr<StepTrace>(new StepTrace(identity, static_cast<StepRecord*>(memory), capacity));
}

StepTrace::StepTrace(const TraceIdentity& identity, StepRecord* records, uint64_t capacity)
    : records_(records), mask_(capacity - 1), identity_(identity), serial_(ticks()), start_(read_clock_pair()) {}

StepTrace::~StepTrace() { munmap(records_, capacity() * sizeof(StepRecord)); }

uint16_t StepTrace::add_plan(TracedPlan plan) {
  if (plans_.size() == kMaxPlans) {  // has no lanes: its instructions cannot be identified any more
    TracedPlan rest;
    rest.reason = fmt::format("plan beyond the {} that a trace can number", kMaxPlans);
    plans_.push_back(std::move(rest));
  }
  if (plans_.size() > kMaxPlans) return kMaxPlans;
  plans_.push_back(std::move(plan));
  return static_cast<uint16_t>(plans_.size() - 1);
}

void StepTrace::add_span(TraceSpan span) {
  if (span.end < span.begin) return;
  const std::lock_guard lock(spans_mutex_);
  if (spans_.size() == kMaxSpans) spans_.pop_front(), ++spans_lost_;
  spans_.push_back(std::move(span));
}

Status StepTrace::write(const std::string& path, std::string_view why) const {
  TraceFile head;
  head.identity = identity_;
  head.pid = getpid();
  head.host = this_host();
  head.why = why;
  head.start = start_;
  head.end = read_clock_pair();
  head.num_written = num_written_;
  head.plans = plans_;
  {
    const std::lock_guard lock(spans_mutex_);
    head.spans.assign(spans_.begin(), spans_.end());
    head.spans_lost = spans_lost_;
  }
  const uint64_t kept = num_written_ - num_lost(), first = num_lost() & mask_;
  const uint64_t until_end = std::min(kept, capacity() - first);
  auto piece = [&](uint64_t from, uint64_t count) {
    return std::string_view(reinterpret_cast<const char*>(records_ + from), count * sizeof(StepRecord));
  };
  const std::string bytes = encode_trace_head(head, kept);
  const std::string_view pieces[] = {bytes, piece(first, until_end), piece(0, kept - until_end)};
  return write_file(path, pieces);
}

std::string trace_path(const std::string& directory, const TraceIdentity& identity, uint32_t session) {
  return fmt::format("{}/rank-{}-comm-{:x}{}{}", directory, identity.rank, identity.communicator,
                     session != 0 ? fmt::format(".{}", session + 1) : "", kTraceSuffix);
}

}  // namespace rondo
