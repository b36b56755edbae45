// The C ABI: argument checks and conversions for the functions of Communicator.
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "api/c_handles.h"
#include "api/communicator_impl.h"
#include "rondo/rondo.h"
#include "rondo/trace.h"

namespace rondo {
namespace {

std::string& thread_error() {
  thread_local std::string text;
  return text;
}

}  // namespace

rondo_status report(const Status& s, LastError* error) {
  if (s.ok()) [[likely]] return RONDO_OK;
  thread_error() = s.to_string();
  if (error != nullptr && error->made_here) {
    std::lock_guard lock(error->mutex);
    error->text = thread_error();
  }
  return static_cast<rondo_status>(s.code());
}

rondo_status report(const Status& s, rondo_comm* comm) {
  return report(s, comm != nullptr ? comm->error.get() : nullptr);
}

rondo_status bad_argument(const char* name, const std::string& why, rondo_comm* comm) {
  std::string text;
  if (comm != nullptr) text.append("rank ").append(std::to_string(comm->comm->rank())).append(": ");
  return report(Status(StatusCode::kInvalidArgument, text.append(name).append(" ").append(why)), comm);
}
rondo_status null_argument(const char* name, rondo_comm* comm) { return bad_argument(name, "is a null pointer", comm); }

Status check_memory(const char* field, rondo_memory value) {
  if (value == RONDO_MEMORY_HOST || value == RONDO_MEMORY_CUDA) return {};
  return Status(StatusCode::kInvalidArgument, std::string(field) + " is " + std::to_string(value) +
                                                  ": expected RONDO_MEMORY_HOST or RONDO_MEMORY_CUDA");
}

namespace {

// Returns RONDO_OK, or an error that names the invalid argument.
rondo_status check_type(rondo_comm* comm, rondo_dtype dtype, rondo_op op) {
  if (static_cast<unsigned>(dtype) >= kNumDtypes)
    return bad_argument("dtype", "is " + std::to_string(dtype) + ", which is not an element type", comm);
  if (static_cast<unsigned>(op) >= kNumOps)
    return bad_argument("op", "is " + std::to_string(op) + ", which is not an operator", comm);
  return RONDO_OK;
}

Status take_type(const char* field, rondo_dtype value, Dtype* type) {
  if (value == RONDO_DTYPE_DEFAULT) return {};
  if (static_cast<unsigned>(value) >= kNumDtypes)
    return Status(StatusCode::kInvalidArgument,
                  std::string(field) + " is " + std::to_string(value) + ", which is not an element type");
  *type = static_cast<Dtype>(value);
  return {};
}

// Converts a rondo_call to CallOptions. `row` has its types and must outlive the options.
Status options_of(const rondo_call& c, Dtype dtype, TypeRow* row, CallOptions* options) {
  if (c.size_bytes != sizeof(rondo_call))
    return Status(StatusCode::kInvalidArgument, "call.size_bytes is " + std::to_string(c.size_bytes) +
                                                    ", not the size of this release's rondo_call (" +
                                                    std::to_string(sizeof(rondo_call)) + "); use RONDO_CALL_INIT");
  *row = uniform_row(dtype);
  RONDO_TRY(take_type("call.wire", c.wire, &row->wire));
  RONDO_TRY(take_type("call.accumulator", c.accumulator, &row->accumulator));
  RONDO_TRY(take_type("call.output", c.output, &row->output));
  options->row = row;
  options->deadline_s = c.deadline_s;
  options->algorithm = c.algorithm;
  options->premul = c.premul;
  RONDO_TRY(check_memory("call.premul_memory", c.premul_memory));
  options->premul_on_device = c.premul_memory == RONDO_MEMORY_CUDA;
  options->stream = c.stream;
  options->promises = c.promises;
  options->tag = c.tag;
  options->min_blocks = c.min_blocks;
  options->max_blocks = c.max_blocks;
  options->launch_event = c.launch_event;
  options->match_tags = c.match_tags != 0;
  options->source = c.source;
  return {};
}

// Returns RONDO_OK, or an error that names the null argument or the unknown collective.
rondo_status find_collective(rondo_comm* comm, const char* name, Collective* found) {
  if (comm == nullptr || name == nullptr) return null_argument(comm == nullptr ? "comm" : "collective", comm);
  const auto c = collective_from_name(name);
  if (!c) return bad_argument("collective", "is " + std::string(name) + ": there is no such collective", comm);
  *found = *c;
  return RONDO_OK;
}

// The options and the work of a C call. The constructor checks the arguments that only this ABI can get wrong.
class Entry {
 public:
  Entry(rondo_comm* comm, rondo_dtype dtype, rondo_op op, const rondo_call* call, rondo_work** work)
      : comm_(comm), to_(work) {
    code_ = comm != nullptr ? check_type(comm, dtype, op) : null_argument("comm");
    if (call != nullptr && code_ == RONDO_OK) [[unlikely]]
      code_ = report(options_of(*call, static_cast<Dtype>(dtype), &row_, &options_.emplace()), comm);
  }
  bool ok() const { return code_ == RONDO_OK; }
  rondo_status code() const { return code_; }
  rondo_status end(const Status& s) {
    if (to_ != nullptr && s.ok()) [[unlikely]]
      *to_ = new rondo_work{std::move(work_), comm_->error};
    return report(s, comm_);
  }
  Communicator& comm() { return *comm_->comm; }
  const CallOptions* options() const { return options_ ? &*options_ : nullptr; }
  Work* work() { return to_ != nullptr ? &work_ : nullptr; }

 private:
  rondo_comm* const comm_;
  rondo_work** const to_;
  rondo_status code_;
  TypeRow row_;
  std::optional<CallOptions> options_;
  Work work_;
};

CallShape shape(Collective collective, uint64_t count_elems, rondo_dtype dtype, rondo_op op = RONDO_SUM, int root = 0) {
  return {collective, count_elems, root, static_cast<Dtype>(dtype), static_cast<Op>(op)};
}

rondo_status run(Entry&& e, Call&& c) {
  if (!e.ok()) [[unlikely]]
    return e.code();
  Status s = impl_of(e.comm()).prepare(c, e.options(), e.work());
  if (s.ok() && c.backend != nullptr) [[likely]]
    s = c.backend->submit(std::span(&c, 1));
  return e.end(s);
}

}  // namespace
}  // namespace rondo

using rondo::Collective;
using rondo::null_argument;
using rondo::report;

extern "C" {

const char* rondo_version(void) { return RONDO_VERSION; }

const char* rondo_status_string(rondo_status status) {
  return rondo::status_text(static_cast<rondo::StatusCode>(status)).data();
}

const char* rondo_last_error(const rondo_comm* comm) {
  if (comm == nullptr || !comm->error->made_here) return rondo::thread_error().c_str();
  thread_local std::string copy;
  std::lock_guard lock(comm->error->mutex);
  copy = comm->error->text;
  return copy.c_str();
}

rondo_status rondo_all_reduce(rondo_comm* comm, const void* in, void* out, uint64_t count_elems, rondo_dtype dtype,
                              rondo_op op, const rondo_call* call, rondo_work** work) {
  return rondo::run({comm, dtype, op, call, work},
                    {rondo::shape(Collective::kAllReduce, count_elems, dtype, op), in, out});
}

rondo_status rondo_reduce_scatter(rondo_comm* comm, const void* in, void* out, uint64_t count_elems, rondo_dtype dtype,
                                  rondo_op op, const rondo_call* call, rondo_work** work) {
  return rondo::run({comm, dtype, op, call, work},
                    {rondo::shape(Collective::kReduceScatter, count_elems, dtype, op), in, out});
}

rondo_status rondo_all_gather(rondo_comm* comm, const void* in, void* out, uint64_t count_elems, rondo_dtype dtype,
                              const rondo_call* call, rondo_work** work) {
  return rondo::run({comm, dtype, RONDO_SUM, call, work},
                    {rondo::shape(Collective::kAllGather, count_elems, dtype), in, out});
}

rondo_status rondo_broadcast(rondo_comm* comm, const void* in, void* out, uint64_t count_elems, rondo_dtype dtype,
                             int root, const rondo_call* call, rondo_work** work) {
  return rondo::run({comm, dtype, RONDO_SUM, call, work},
                    {rondo::shape(Collective::kBroadcast, count_elems, dtype, RONDO_SUM, root), in, out});
}

rondo_status rondo_reduce(rondo_comm* comm, const void* in, void* out, uint64_t count_elems, rondo_dtype dtype,
                          rondo_op op, int root, const rondo_call* call, rondo_work** work) {
  return rondo::run({comm, dtype, op, call, work},
                    {rondo::shape(Collective::kReduce, count_elems, dtype, op, root), in, out});
}

rondo_status rondo_all_to_all(rondo_comm* comm, const void* in, void* out, uint64_t count_elems, rondo_dtype dtype,
                              const rondo_call* call, rondo_work** work) {
  return rondo::run({comm, dtype, RONDO_SUM, call, work},
                    {rondo::shape(Collective::kAllToAll, count_elems, dtype), in, out});
}

rondo_status rondo_gather(rondo_comm* comm, const void* in, void* out, uint64_t count_elems, rondo_dtype dtype,
                          int root, const rondo_call* call, rondo_work** work) {
  return rondo::run({comm, dtype, RONDO_SUM, call, work},
                    {rondo::shape(Collective::kGather, count_elems, dtype, RONDO_SUM, root), in, out});
}

rondo_status rondo_scatter(rondo_comm* comm, const void* in, void* out, uint64_t count_elems, rondo_dtype dtype,
                           int root, const rondo_call* call, rondo_work** work) {
  return rondo::run({comm, dtype, RONDO_SUM, call, work},
                    {rondo::shape(Collective::kScatter, count_elems, dtype, RONDO_SUM, root), in, out});
}

rondo_status rondo_barrier(rondo_comm* comm, const rondo_call* call, rondo_work** work) {
  return rondo::run({comm, RONDO_UINT8, RONDO_SUM, call, work}, {rondo::shape(Collective::kBarrier, 0, RONDO_UINT8)});
}

rondo_status rondo_send(rondo_comm* comm, const void* buffer, uint64_t count_elems, rondo_dtype dtype, int peer,
                        const rondo_call* call, rondo_work** work) {
  return rondo::run({comm, dtype, RONDO_SUM, call, work},
                    {rondo::shape(Collective::kSend, count_elems, dtype, RONDO_SUM, peer), buffer});
}

rondo_status rondo_recv(rondo_comm* comm, void* buffer, uint64_t count_elems, rondo_dtype dtype, int peer,
                        const rondo_call* call, rondo_work** work) {
  return rondo::run({comm, dtype, RONDO_SUM, call, work},
                    {rondo::shape(Collective::kRecv, count_elems, dtype, RONDO_SUM, peer), nullptr, buffer});
}

rondo_status rondo_all_gather_v(rondo_comm* comm, const void* in, void* out, const uint64_t* counts,
                                const uint64_t* offsets, rondo_dtype dtype, const rondo_call* call, rondo_work** work) {
  rondo::Entry e(comm, dtype, RONDO_SUM, call, work);
  return e.ok() ? e.end(e.comm().all_gather_v(in, out, counts, offsets, static_cast<rondo::Dtype>(dtype), e.options(),
                                              e.work()))
                : e.code();
}

rondo_status rondo_reduce_scatter_v(rondo_comm* comm, const void* in, void* out, const uint64_t* counts,
                                    const uint64_t* offsets, rondo_dtype dtype, rondo_op op, const rondo_call* call,
                                    rondo_work** work) {
  rondo::Entry e(comm, dtype, op, call, work);
  return e.ok() ? e.end(e.comm().reduce_scatter_v(in, out, counts, offsets, static_cast<rondo::Dtype>(dtype),
                                                  static_cast<rondo::Op>(op), e.options(), e.work()))
                : e.code();
}

rondo_status rondo_all_to_all_v(rondo_comm* comm, const void* in, const uint64_t* in_counts, const uint64_t* in_offsets,
                                void* out, const uint64_t* out_counts, const uint64_t* out_offsets, rondo_dtype dtype,
                                const rondo_call* call, rondo_work** work) {
  rondo::Entry e(comm, dtype, RONDO_SUM, call, work);
  return e.ok() ? e.end(e.comm().all_to_all_v(in, in_counts, in_offsets, out, out_counts, out_offsets,
                                              static_cast<rondo::Dtype>(dtype), e.options(), e.work()))
                : e.code();
}

rondo_status rondo_work_wait(rondo_work* work) {
  if (work == nullptr) return null_argument("work");
  const rondo_status s = report(work->work.wait(), work->error.get());
  delete work;
  return s;
}

rondo_status rondo_work_test(rondo_work* work) {
  if (work == nullptr) return null_argument("work");
  const rondo::Status s = work->work.test();
  return s.code() == rondo::StatusCode::kInProgress ? RONDO_IN_PROGRESS : report(s, work->error.get());
}

rondo_status rondo_work_wait_for(rondo_work* work, double seconds) {
  if (work == nullptr) return null_argument("work");
  const rondo::Status s = work->work.wait_for(seconds);
  return s.code() == rondo::StatusCode::kInProgress ? RONDO_IN_PROGRESS : report(s, work->error.get());
}

rondo_status rondo_work_on_done(rondo_work* work, rondo_done_fn fn, void* arg) {
  if (work == nullptr || fn == nullptr) return null_argument(work == nullptr ? "work" : "fn");
  const auto call = [fn, arg](const rondo::Status& s) {
    fn(arg, static_cast<rondo_status>(s.code()), std::string(s.message()).c_str());
  };
  return report(work->work.on_done(call), work->error.get());
}

rondo_status rondo_work_free(rondo_work* work) {
  delete work;
  return RONDO_OK;
}

rondo_status rondo_group_start(void) {
  rondo::group_start();
  return RONDO_OK;
}

rondo_status rondo_group_end(void) { return report(rondo::group_end()); }

rondo_status rondo_alloc(rondo_comm* comm, uint64_t bytes, void** ptr) {
  if (comm == nullptr || ptr == nullptr) return null_argument(comm == nullptr ? "comm" : "ptr", comm);
  auto p = comm->comm->alloc(bytes);
  if (p.ok()) *ptr = *p;
  return report(p.status(), comm);
}

rondo_status rondo_free(rondo_comm* comm, void* ptr) {
  if (comm == nullptr) return null_argument("comm");
  return report(comm->comm->free(ptr), comm);
}

rondo_status rondo_register(rondo_comm* comm, void* ptr, uint64_t bytes) {
  if (comm == nullptr) return null_argument("comm");
  return report(comm->comm->register_memory(ptr, bytes), comm);
}

rondo_status rondo_deregister(rondo_comm* comm, void* ptr) {
  if (comm == nullptr) return null_argument("comm");
  return report(comm->comm->deregister_memory(ptr), comm);
}

rondo_status rondo_explain_plan(rondo_comm* comm, const char* collective, uint64_t count_elems, rondo_dtype dtype,
                                rondo_op op, char* text, size_t capacity) {
  if (text == nullptr) return null_argument("text", comm);
  if (capacity == 0) return rondo::bad_argument("capacity", "is 0: text needs room for a final 0", comm);
  Collective c;
  if (const rondo_status s = rondo::find_collective(comm, collective, &c); s != RONDO_OK) return s;
  if (const rondo_status s = rondo::check_type(comm, dtype, op); s != RONDO_OK) return s;
  if (const rondo::Status s = impl_of(*comm->comm).check_planned(rondo::shape(c, count_elems, dtype, op)); !s.ok())
    return report(s, comm);
  const std::string why =
      comm->comm->explain_plan(c, count_elems, static_cast<rondo::Dtype>(dtype), static_cast<rondo::Op>(op));
  std::strncpy(text, why.c_str(), capacity - 1);
  text[capacity - 1] = '\0';
  return RONDO_OK;
}

rondo_status rondo_forecast_us(rondo_comm* comm, const char* collective, uint64_t count_elems, rondo_dtype dtype,
                               rondo_op op, int root, const rondo_call* call, double* us) {
  if (us == nullptr) return null_argument("us", comm);
  Collective c;
  if (const rondo_status s = rondo::find_collective(comm, collective, &c); s != RONDO_OK) return s;
  const rondo::Entry e(comm, dtype, op, call, nullptr);
  if (!e.ok()) return e.code();
  const auto forecast = comm->comm->forecast_us(c, count_elems, static_cast<rondo::Dtype>(dtype),
                                                static_cast<rondo::Op>(op), root, e.options());
  if (forecast.ok()) *us = *forecast;
  return report(forecast.status(), comm);
}

rondo_status rondo_trace_start(rondo_comm* comm, const char* directory, uint64_t num_records) {
  if (comm == nullptr || directory == nullptr) return null_argument(comm == nullptr ? "comm" : "directory", comm);
  return report(rondo::trace_start(*comm->comm, {directory, num_records}), comm);
}

rondo_status rondo_trace_stop(rondo_comm* comm) {
  if (comm == nullptr) return null_argument("comm");
  return report(rondo::trace_stop(*comm->comm), comm);
}

uint64_t rondo_trace_clock(void) { return rondo::trace_clock(); }

rondo_status rondo_trace_span(rondo_comm* comm, const char* track, const char* name, uint64_t begin, uint64_t end) {
  if (comm == nullptr || track == nullptr || name == nullptr)
    return null_argument(comm == nullptr ? "comm" : track == nullptr ? "track" : "name", comm);
  if (const rondo::Status s = impl_of(*comm->comm).check_process(); !s.ok()) return report(s, comm);
  if (rondo::is_traced(*comm->comm)) rondo::trace_span(*comm->comm, {track, name, begin, end});
  return RONDO_OK;
}

rondo_status rondo_flight_record(rondo_comm* comm, const char* directory) {
  if (comm == nullptr || directory == nullptr) return null_argument(comm == nullptr ? "comm" : "directory", comm);
  return report(rondo::write_flight_record(*comm->comm, directory), comm);
}

}  // extern "C"
