// The C ABI: argument checks and conversions for the functions of Communicator.
#include <cstddef>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/c_handles.h"
#include "api/communicator_impl.h"
#include "bootstrap/rendezvous.h"
#include "rondo/rondo.h"
#include "rondo/trace.h"

namespace rondo {
namespace {

std::string& thread_error() {
  thread_local std::string text;
  return text;
}

// Returns the code for the caller and stores the text for rondo_last_error.
rondo_status report(const Status& s, LastError* error) {
  if (s.ok()) [[likely]] return RONDO_OK;
  thread_error() = s.to_string();
  if (error != nullptr && error->made_here) {
    std::lock_guard lock(error->mutex);
    error->text = thread_error();
  }
  return static_cast<rondo_status>(s.code());
}

rondo_status report(const Status& s, rondo_comm* comm = nullptr) {
  return report(s, comm != nullptr ? comm->error.get() : nullptr);
}

rondo_status bad_argument(const char* name, const std::string& why, rondo_comm* comm = nullptr) {
  std::string text;
  if (comm != nullptr) text.append("rank ").append(std::to_string(comm->comm->rank())).append(": ");
  return report(Status(StatusCode::kInvalidArgument, text.append(name).append(" ").append(why)), comm);
}
rondo_status null_argument(const char* name, rondo_comm* comm = nullptr) {
  return bad_argument(name, "is a null pointer", comm);
}

// Names the field in an error.
Status check_memory(const char* field, rondo_memory value) {
  if (value == RONDO_MEMORY_HOST || value == RONDO_MEMORY_CUDA) return {};
  return Status(StatusCode::kInvalidArgument, std::string(field) + " is " + std::to_string(value) +
                                                  ": expected RONDO_MEMORY_HOST or RONDO_MEMORY_CUDA");
}

// nullptr: the defaults.
Expected<Config> config_of(const rondo_config* c) {
  if (c == nullptr) return Config{};
  if (c->size_bytes != sizeof(rondo_config))
    return Status(StatusCode::kInvalidArgument, "config.size_bytes is " + std::to_string(c->size_bytes) +
                                                    ", not the size of this release's rondo_config (" +
                                                    std::to_string(sizeof(rondo_config)) + "); use RONDO_CONFIG_INIT");
  for (const auto& [name, seconds] : {std::pair{"deadline_s", c->deadline_s}, {"init_deadline_s", c->init_deadline_s}})
    if (!(seconds >= 0))
      return Status(StatusCode::kInvalidArgument,
                    std::string("config.") + name + " is " + std::to_string(seconds) + ": not a time");
  Config config;
  config.deadline_s = c->deadline_s;
  config.init_deadline_s = c->init_deadline_s;
  if (c->abort != nullptr) config.abort = c->abort->token;
  if (c->settings != nullptr) config.settings = c->settings;
  RONDO_TRY(check_memory("config.memory", c->memory));
  config.memory = static_cast<Memory>(c->memory);
  config.device = c->device;
  return config;
}

// Makes a communicator with the config, and reports the status. *to may become nullptr.
template <class Make>
rondo_status make_comm(const rondo_config* config, rondo_comm* parent, rondo_comm** to, Make make) {
  auto c = config_of(config);
  if (!c.ok()) return report(c.status(), parent);
  Expected<std::unique_ptr<Communicator>> made = make(*c);
  if (made.ok()) *to = *made != nullptr ? new rondo_comm{std::move(*made)} : nullptr;
  return report(made.status(), parent);
}

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
using rondo::Config;
using rondo::make_comm;
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

rondo_status rondo_get_unique_id(rondo_unique_id* id) {
  if (id == nullptr) return null_argument("id");
  auto made = rondo::Communicator::make_unique_id();
  if (made.ok()) *id = *made;
  return report(made.status());
}

rondo_status rondo_comm_init_rank(rondo_comm** comm, int nranks, const rondo_unique_id* id, int rank,
                                  const rondo_config* config) {
  if (comm == nullptr) return null_argument("comm");
  if (id == nullptr) return null_argument("id");
  return make_comm(config, nullptr, comm,
                   [=](const Config& c) { return rondo::Communicator::init_rank(nranks, *id, rank, c); });
}

rondo_status rondo_comm_init_all(rondo_comm** comms, int nranks, const rondo_config* config) {
  if (comms == nullptr) return null_argument("comms");
  auto c = rondo::config_of(config);
  if (!c.ok()) return report(c.status());
  if (config != nullptr && config->devices != nullptr && nranks > 0 && nranks <= rondo::kMaxRanks)
    c->devices.assign(config->devices, config->devices + nranks);
  auto made = rondo::Communicator::init_all(nranks, *c);
  if (made.ok())
    for (size_t r = 0; r < made->size(); ++r) comms[r] = new rondo_comm{std::move((*made)[r])};
  return report(made.status());
}

rondo_status rondo_comm_init_env(rondo_comm** comm, const rondo_config* config) {
  if (comm == nullptr) return null_argument("comm");
  return make_comm(config, nullptr, comm, rondo::Communicator::init_env);
}

rondo_status rondo_comm_rank(const rondo_comm* comm, int* rank) {
  if (comm == nullptr || rank == nullptr) return null_argument(comm == nullptr ? "comm" : "rank");
  *rank = comm->comm->rank();
  return RONDO_OK;
}

rondo_status rondo_comm_size(const rondo_comm* comm, int* nranks) {
  if (comm == nullptr || nranks == nullptr) return null_argument(comm == nullptr ? "comm" : "nranks");
  *nranks = comm->comm->size();
  return RONDO_OK;
}

const char* rondo_comm_transport(const rondo_comm* comm) {
  return comm != nullptr ? comm->comm->transport().data() : nullptr;
}

rondo_status rondo_comm_error(rondo_comm* comm) {
  if (comm == nullptr) return null_argument("comm");
  return report(comm->comm->error(), comm);
}

rondo_status rondo_comm_abort(rondo_comm* comm) {
  if (comm == nullptr) return null_argument("comm");
  comm->comm->abort();
  return report(impl_of(*comm->comm).check_process(), comm);
}

rondo_status rondo_comm_destroy(rondo_comm* comm) {
  delete comm;
  return RONDO_OK;
}

rondo_status rondo_abort_create(rondo_abort** abort) {
  if (abort == nullptr) return null_argument("abort");
  *abort = new rondo_abort;
  return RONDO_OK;
}

rondo_status rondo_abort_raise(rondo_abort* abort) {
  if (abort == nullptr) return null_argument("abort");
  abort->token.raise();
  return RONDO_OK;
}

rondo_status rondo_abort_free(rondo_abort* abort) {
  delete abort;
  return RONDO_OK;
}

rondo_status rondo_comm_finalize(rondo_comm* comm) {
  if (comm == nullptr) return null_argument("comm");
  return report(comm->comm->finalize(), comm);
}

rondo_status rondo_comm_split(rondo_comm* comm, int colour, int key, rondo_comm** part, const rondo_config* config) {
  if (comm == nullptr || part == nullptr) return null_argument(comm == nullptr ? "comm" : "part", comm);
  return make_comm(config, comm, part, [=](const Config& c) { return comm->comm->split(colour, key, c); });
}

rondo_status rondo_comm_shrink(rondo_comm* comm, const int* excluded, int num_excluded, rondo_comm** smaller,
                               const rondo_config* config) {
  if (comm == nullptr || smaller == nullptr) return null_argument(comm == nullptr ? "comm" : "smaller", comm);
  if (num_excluded < 0 || num_excluded > comm->comm->size())
    return rondo::bad_argument("num_excluded",
                               "is " + std::to_string(num_excluded) +
                                   ": expected 0 to the communicator's number of ranks, " +
                                   std::to_string(comm->comm->size()),
                               comm);
  if (num_excluded > 0 && excluded == nullptr) return null_argument("excluded", comm);
  const std::vector<rondo::Rank> ranks(excluded, excluded + num_excluded);
  return make_comm(config, comm, smaller, [&](const Config& c) { return comm->comm->shrink(ranks, c); });
}

rondo_status rondo_comm_grow(rondo_comm* comm, int new_nranks, const rondo_unique_id* id, rondo_comm** larger,
                             const rondo_config* config) {
  if (comm == nullptr || larger == nullptr) return null_argument(comm == nullptr ? "comm" : "larger", comm);
  return make_comm(config, comm, larger, [=](const Config& c) { return comm->comm->grow(new_nranks, id, c); });
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
  return report(work->work.on_done([fn, arg](const rondo::Status& s) {
                  fn(arg, static_cast<rondo_status>(s.code()), std::string(s.message()).c_str());
                }),
                work->error.get());
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
  if (const rondo::Status s = impl_of(*comm->comm).check_planned({c, count_elems}); !s.ok()) return report(s, comm);
  const std::string why = comm->comm->explain_plan(c, count_elems, static_cast<rondo::Dtype>(dtype),
                                                   static_cast<rondo::Op>(op));
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
  if (rondo::is_traced(*comm->comm)) rondo::trace_span(*comm->comm, {track, name, begin, end});
  return RONDO_OK;
}

rondo_status rondo_flight_record(rondo_comm* comm, const char* directory) {
  if (comm == nullptr || directory == nullptr) return null_argument(comm == nullptr ? "comm" : "directory", comm);
  return report(rondo::write_flight_record(*comm->comm, directory), comm);
}

}  // extern "C"
