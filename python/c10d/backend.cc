#include "backend.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace rondo_c10d {
namespace {

constexpr const char* kIdKey = "rondo_id";

// Rank 0 makes the id, and gives it, or its error, to the others through the store.
rondo_unique_id exchange_id(c10d::Store& store, int rank) {
  rondo_unique_id id{};
  if (rank == 0) {
    const rondo_status s = rondo_get_unique_id(&id);
    const std::string error = s != RONDO_OK ? rondo_last_error(nullptr) : "";
    std::vector<uint8_t> bytes(error.begin(), error.end());
    if (s == RONDO_OK) bytes.assign(id.bytes, id.bytes + sizeof(id.bytes));
    bytes.insert(bytes.begin(), s == RONDO_OK ? 1 : 0);
    store.set(kIdKey, bytes);
    if (s != RONDO_OK) std::rethrow_exception(exception_of(s, error));
    return id;
  }
  const std::vector<uint8_t> bytes = store.get(kIdKey);
  if (bytes.size() != 1 + sizeof(id.bytes) || bytes[0] != 1)
    C10_THROW_ERROR(DistBackendError, c10::str("rank ", rank, ": rank 0 could not make the id of the group: ",
                                               std::string(bytes.begin() + !bytes.empty(), bytes.end())));
  std::copy(bytes.begin() + 1, bytes.end(), id.bytes);
  return id;
}

rondo_config config_of(const Backend::Options& o) {
  rondo_config config = RONDO_CONFIG_INIT;
  config.deadline_s = config.init_deadline_s = seconds(o.timeout, 0);
  config.settings = o.settings.empty() ? nullptr : o.settings.c_str();
  return config;
}

// Works of the calls between startCoalescing and endCoalescing. torch does not close a block that an exception leaves.
// Such a block collects later works of its thread until they are done.
struct OpenBlock {
  const Backend* owner = nullptr;  // nullptr: there is no block
  std::vector<intrusive_ptr<c10d::Work>> works;
};
thread_local OpenBlock open_block;

// One Work for several.
class AllOf final : public c10d::Work {
 public:
  explicit AllOf(int rank, std::vector<intrusive_ptr<c10d::Work>> works)
      : c10d::Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}
  bool isCompleted() override {
    return std::ranges::all_of(works_, [](const auto& w) { return w->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::ranges::all_of(works_, [](const auto& w) { return w->isSuccess(); });
  }
  std::exception_ptr exception() const override {
    for (const auto& w : works_)
      if (w->isCompleted() && w->exception() != nullptr) return w->exception();
    return nullptr;
  }
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> all;
    for (const auto& w : works_)
      for (const at::Tensor& t : w->result()) all.push_back(t);
    return all;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    std::exception_ptr first;
    for (const auto& w : works_) {
      try {
        w->wait(timeout);
      } catch (...) {
        if (first == nullptr) first = std::current_exception();
      }
    }
    if (first != nullptr) std::rethrow_exception(first);
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  intrusive_ptr<c10::ivalue::Future> getFuture() override {
    c10::List<intrusive_ptr<c10::ivalue::Future>> parts(
        c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
    for (const auto& w : works_) parts.push_back(w->getFuture());
    const auto joined = c10::collectAll(parts);
    return joined->then(
        [works = works_](c10::ivalue::Future& f) -> c10::IValue {
          std::vector<at::Tensor> all;
          for (const auto& w : works)
            for (const at::Tensor& t : w->result()) all.push_back(t);
          (void)f.value();  // throws the first error
          return all;
        },
        c10::ListType::create(c10::TensorType::get()));
  }

 private:
  const std::vector<intrusive_ptr<c10d::Work>> works_;
};

}  // namespace

intrusive_ptr<Backend> Backend::create(const intrusive_ptr<c10d::Store>& store, int rank, int size,
                                       const intrusive_ptr<Options>& options) {
  const rondo_unique_id id = exchange_id(*store, rank);
  const rondo_config config = config_of(*options);
  rondo_comm* comm = nullptr;
  check(rondo_comm_init_rank(&comm, size, &id, rank, &config));
  // All ranks have read the id. A later group with the same store must not find it.
  if (rank == 0) store->deleteKey(kIdKey);
  auto made = c10::make_intrusive<Backend>(rank, size, options, comm);
  made->store_ = store;
  made->barrier_prefix_ = c10::str("monitored_barrier/", c10::get_hash(std::string(id.bytes, sizeof(id.bytes))), "/");
  return made;
}

Backend::Backend(int rank, int size, intrusive_ptr<Options> options, rondo_comm* comm)
    : c10d::Backend(rank, size),
      options_(std::move(options)),
      comm_(comm, rondo_comm_destroy),
      done_(c10::make_intrusive<Work>(rank, c10d::OpType::UNKNOWN, std::vector<at::Tensor>())) {
  init();
}

Backend::~Backend() { close(); }

// An operation whose peer never comes would hold the end of the communicator until its deadline.
void Backend::close(double longest_wait_s) {
  const WithoutGil waits;  // for callbacks
  Comm comm;
  {
    const std::lock_guard lock(comm_mutex_);
    comm = std::move(comm_);
    comm_ = nullptr;
  }
  if (comm == nullptr) return;
  bool is_aborted = false;
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& open : open_calls(true)) {
    const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (Work::wait_for(*open, is_aborted ? longest_wait_s : std::max(longest_wait_s - waited, 0.0)) || is_aborted)
      continue;
    TORCH_WARN("rank ", rank_, ": the process group ends, but calls that nobody has waited for are not done after ",
               longest_wait_s, " s: it is aborted on all ranks. Wait for every Work before destroy_process_group");
    rondo_comm_abort(comm.get());
    is_aborted = true;
    Work::wait_for(*open, longest_wait_s);
  }
}

Backend::Comm Backend::comm() const {
  const std::lock_guard lock(comm_mutex_);
  if (comm_ == nullptr)
    C10_THROW_ERROR(DistBackendError, c10::str("rank ", rank_, ": the process group has been shut down"));
  return comm_;
}

void Backend::remember(const intrusive_ptr<Work>& work, bool is_message) {
  const std::lock_guard lock(open_mutex_);
  open_.push_back({work->state(), is_message});
  if (open_.size() < prune_at_) return;
  std::erase_if(open_, [](const OpenCall& c) {
    const auto open = c.state.lock();
    return open == nullptr || Work::is_done(*open);
  });
  prune_at_ = 2 * open_.size() + 64;
}

std::vector<std::shared_ptr<Work::State>> Backend::open_calls(bool with_messages) {
  const std::lock_guard lock(open_mutex_);
  std::vector<std::shared_ptr<Work::State>> found;
  for (const OpenCall& c : open_)
    if (with_messages || !c.is_message)
      if (auto open = c.state.lock(); open != nullptr && !Work::is_done(*open)) found.push_back(std::move(open));
  return found;
}

rondo_call Backend::call_of(const Request& r) const {
  rondo_call c = RONDO_CALL_INIT;
  c.deadline_s = seconds(r.timeout, seconds(options_->timeout, 0));
  return c;
}

intrusive_ptr<c10d::Work> Backend::run(const Request& r, Buffers buffers, at::ArrayRef<at::Tensor> results,
                                       Launch launch, std::shared_ptr<int> source) {
  const Comm comm = this->comm();
  rondo_call call = call_of(r);
  if (!c10d::isP2POp(r.type)) sequence_.fetch_add(1, std::memory_order_relaxed);
  if (!r.is_async && !at::hasCallbacks()) [[likely]] {
    if (const rondo_status s = launch(comm.get(), call, nullptr); s != RONDO_OK) [[unlikely]] {
      const std::exception_ptr error = exception_of(s, rondo_last_error(nullptr));
      failed(s);
      std::rethrow_exception(error);
    }
    buffers.finish();
    return done_;
  }
  Work::Call made{nullptr, std::move(buffers), std::move(source)};
  check(launch(comm.get(), call, &made.work));
  std::vector<Work::Call> calls;
  calls.push_back(std::move(made));
  auto work = make_work(r, std::move(calls), results.vec());
  if (!r.is_async) work->wait(kNoTimeout);  // in a profile: the Work records it
  return work;
}

// The calls are one batch. If one of them is refused, those before it still run on all ranks.
intrusive_ptr<c10d::Work> Backend::run_all(const Request& r, std::vector<Part> parts, std::vector<at::Tensor> results) {
  const Comm comm = this->comm();
  std::vector<Work::Call> calls;
  rondo_status first = RONDO_OK;
  rondo_group_start();
  for (Part& p : parts) {
    rondo_call call = call_of(r);
    Work::Call made{nullptr, std::move(p.buffers), nullptr};
    const rondo_status s = first == RONDO_OK ? p.launch(comm.get(), call, &made.work) : first;
    if (s == RONDO_OK) calls.push_back(std::move(made));
    else if (first == RONDO_OK) first = s;
  }
  const std::string refused = first != RONDO_OK ? rondo_last_error(nullptr) : "";
  const rondo_status ended = rondo_group_end();
  sequence_.fetch_add(1, std::memory_order_relaxed);
  const std::exception_ptr error = first != RONDO_OK   ? exception_of(first, refused)
                                   : ended != RONDO_OK ? exception_of(ended, rondo_last_error(nullptr))
                                                       : nullptr;
  auto work = make_work(r, std::move(calls), std::move(results));
  if (error != nullptr) std::rethrow_exception(error);
  if (!r.is_async) work->wait(kNoTimeout);
  return work;
}

intrusive_ptr<Work> Backend::make_work(const Request& r, std::vector<Work::Call> calls,
                                       std::vector<at::Tensor> results) {
  const bool profiled = at::hasCallbacks();
  const std::string title = profiled ? title_ + ":" + r.name : "";
  auto weak = c10::weak_intrusive_ptr<Backend>(intrusive_ptr<Backend>::unsafe_reclaim_from_nonowning(this));
  auto work = c10::make_intrusive<Work>(rank_, r.type, sequence_.load(std::memory_order_relaxed),
                                        profiled ? title.c_str() : nullptr, std::move(calls), std::move(results),
                                        [weak = std::move(weak)] {
                                          if (const auto self = weak.lock()) self->failed();
                                        });
  remember(work, c10d::isP2POp(r.type));
  if (open_block.owner == this) {
    std::erase_if(open_block.works, [](const auto& w) { return w->isCompleted() && w->isSuccess(); });
    open_block.works.push_back(work);
  }
  return work;
}

// Runs the abort hooks if the group has failed; a refused call is no failure.
void Backend::failed(rondo_status status) {
  if (status == RONDO_INVALID_ARGUMENT || status == RONDO_UNSUPPORTED) return;
  std::vector<std::shared_ptr<const c10d::AbortHook>> hooks;
  {
    const std::lock_guard lock(hooks_mutex_);
    for (const auto& [id, hook] : abort_hooks_) hooks.push_back(hook);
  }
  for (const auto& hook : hooks) {
    try {
      (*hook)();
    } catch (const std::exception& e) {
      TORCH_WARN("rank ", rank_, ": an abort hook has failed: ", e.what());
    }
  }
}

void Backend::registerAbortHook(int64_t id, c10d::AbortHook hook) {
  const std::lock_guard lock(hooks_mutex_);
  TORCH_CHECK_VALUE(abort_hooks_.emplace(id, std::make_shared<const c10d::AbortHook>(std::move(hook))).second,
                    "hook_id ", id, " is registered already");
}

void Backend::unregisterAbortHook(int64_t id) {
  const std::lock_guard lock(hooks_mutex_);
  abort_hooks_.erase(id);
}

void Backend::startCoalescing() { open_block = {this, {}}; }

intrusive_ptr<c10d::Work> Backend::endCoalescing() {
  TORCH_CHECK(open_block.owner == this, "rank ", rank_, ": endCoalescing without startCoalescing in this thread");
  auto works = std::exchange(open_block, {}).works;
  return c10::make_intrusive<AllOf>(rank_, std::move(works));
}

// Returns the options of a child: the given ones, or a copy of this group's.
intrusive_ptr<Backend::Options> Backend::child_options(const intrusive_ptr<c10d::Backend::Options>& given) const {
  const auto own = c10::dynamic_intrusive_pointer_cast<Options>(given != nullptr ? given : options_->clone());
  TORCH_CHECK_TYPE(own != nullptr, "rank ", rank_, ": the options of a rondo group must be a rondo.Options");
  return own;
}

intrusive_ptr<c10d::Backend> Backend::split(const intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                            const intrusive_ptr<c10d::Backend::Options>& options) {
  const auto mine = std::ranges::find(ranks, rank_);
  if (mine == ranks.end()) return nullptr;
  const auto own = child_options(options);
  auto child = create(store->clone(), static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()), own);
  child->set_title(title_);
  return child;
}

intrusive_ptr<c10d::Backend> Backend::shrink(const std::vector<int64_t>& ranks_to_exclude, int flags,
                                             const intrusive_ptr<c10d::Backend::Options>& options) {
  constexpr int kAbortFirst = 1;  // torch's SHRINK_ABORT
  if ((flags & kAbortFirst) != 0) abort();
  const auto own = child_options(options);
  const std::vector<int> excluded(ranks_to_exclude.begin(), ranks_to_exclude.end());
  const rondo_config config = config_of(*own);
  rondo_comm* smaller = nullptr;
  check(rondo_comm_shrink(comm().get(), excluded.data(), static_cast<int>(excluded.size()), &smaller, &config));
  int rank = 0, size = 0;
  rondo_comm_rank(smaller, &rank);
  rondo_comm_size(smaller, &size);
  auto made = c10::make_intrusive<Backend>(rank, size, own, smaller);
  made->store_ = store_;
  made->barrier_prefix_ = c10::str(barrier_prefix_, "shrunk", num_shrunk_++, "/");
  made->set_title(title_);
  return made;
}

c10d::ErrorType Backend::getError() {
  const std::lock_guard lock(comm_mutex_);
  if (comm_ == nullptr) return c10d::ErrorType::SUCCESS;
  switch (rondo_comm_error(comm_.get())) {
    case RONDO_OK: return c10d::ErrorType::SUCCESS;
    case RONDO_TIMEOUT: return c10d::ErrorType::TIMEOUT;
    case RONDO_PEER_LOST: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
  }
}

void Backend::abort() {
  failed();
  check(rondo_comm_abort(comm().get()));
}

// A call that only copies has no operator, and takes types that cannot be reduced.
Reduction Backend::planned(const std::string& collective, at::ScalarType type, const c10d::ReduceOp& op) const {
  const bool reduces = collective.find("reduce") != std::string::npos;
  return reduces ? reduction(collective.c_str(), rank_, type, op) : Reduction{copied(type), RONDO_SUM};
}

std::string Backend::explain(const std::string& collective, uint64_t count_elems, at::ScalarType type,
                             const c10d::ReduceOp& op) {
  const Reduction r = planned(collective, type, op);
  std::string text(4096, '\0');
  check(rondo_explain_plan(comm().get(), collective.c_str(), count_elems * r.elements.per_element, r.elements.dtype,
                           r.op, text.data(), text.size()));
  return text.c_str();
}

double Backend::forecast_us(const std::string& collective, uint64_t count_elems, at::ScalarType type,
                            const c10d::ReduceOp& op, int root) {
  const Reduction r = planned(collective, type, op);
  double us = 0;
  check(rondo_forecast_us(comm().get(), collective.c_str(), count_elems * r.elements.per_element, r.elements.dtype,
                          r.op, root, nullptr, &us));
  return us;
}

std::string Backend::transport() { return rondo_comm_transport(comm().get()); }

void Backend::start_trace(const std::string& folder, uint64_t num_records) {
  check(rondo_trace_start(comm().get(), folder.c_str(), num_records));
}

void Backend::stop_trace() { check(rondo_trace_stop(comm().get())); }

void Backend::flight_record(const std::string& folder) { check(rondo_flight_record(comm().get(), folder.c_str())); }

}  // namespace rondo_c10d
