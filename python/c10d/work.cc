#include "work.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "convert.h"

namespace rondo_c10d {
namespace {

thread_local bool is_in_callback = false;

// For profiles.
std::vector<at::Tensor> inputs_of(const std::vector<Work::Call>& calls, const std::vector<at::Tensor>& results) {
  std::vector<at::Tensor> inputs;
  for (const Work::Call& c : calls)
    if (c.buffers.in.defined()) inputs.push_back(c.buffers.in);
  return inputs.empty() ? results : inputs;
}

double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

// Shared with rondo's callbacks, which may run after the Work is gone.
struct Work::State : std::enable_shared_from_this<State> {
  std::vector<Call> calls;
  std::vector<std::shared_ptr<State>> earlier;  // must end first
  std::vector<at::Tensor> results;
  std::function<void()> on_error;
  std::function<void()> end_of_profile;
  std::atomic<bool> ends = false;  // a thread has begun to end the work

  std::mutex mutex;  // guards the members below
  std::condition_variable ended;
  std::atomic<bool> done = false;
  std::exception_ptr error;  // written before done
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool has_callback = false;

  ~State() {
    for (const Call& c : calls) rondo_work_free(c.work);
  }

  // Runs without the mutex: hooks and futures run Python code.
  void end(std::exception_ptr failure) noexcept {
    try {
      if (failure == nullptr)
        for (const Call& c : calls) c.buffers.finish();
    } catch (...) {
      failure = std::current_exception();
    }
    if (failure != nullptr && on_error) on_error();
    on_error = nullptr;
    if (end_of_profile) end_of_profile();
    c10::intrusive_ptr<c10::ivalue::Future> completed;
    {
      const std::lock_guard lock(mutex);
      error = failure;
      completed = future;
      done.store(true, std::memory_order_release);
    }
    ended.notify_all();
    if (completed != nullptr) complete(*completed);
  }

  void complete(c10::ivalue::Future& f) const {
    if (error != nullptr) f.setError(error);
    else f.markCompleted(results);
  }

  // Ends the work if its calls are done. Returns true if it has ended.
  bool poll() {
    if (done.load(std::memory_order_acquire)) return true;
    for (const auto& e : earlier)
      if (!e->poll()) return false;
    std::exception_ptr failure;
    for (const Call& c : calls) {
      const rondo_status s = rondo_work_test(c.work);
      if (s == RONDO_IN_PROGRESS) return false;
      if (s != RONDO_OK && failure == nullptr) failure = exception_of(s, rondo_last_error(nullptr));
    }
    if (!ends.exchange(true)) end(failure);
    return done.load(std::memory_order_acquire);
  }

  // Waits for the end, whichever thread makes it. The calls must be done.
  void await_end() {
    if (poll()) return;
    const WithoutGil waits;
    std::unique_lock lock(mutex);
    ended.wait(lock, [this] { return done.load(); });
  }

  // rondo calls it on a thread of its own when one of the calls is done. The last of them ends the work.
  static void call_is_done(void* state, rondo_status, const char*) {
    const std::unique_ptr<std::shared_ptr<State>> mine(static_cast<std::shared_ptr<State>*>(state));
    if (!Py_IsInitialized()) return;  // the process ends
    is_in_callback = true;
    for (const auto& e : (*mine)->earlier) wait_for(*e, kForever);
    (*mine)->poll();
    is_in_callback = false;
  }

  // The mutex is held.
  void call_back() {
    if (std::exchange(has_callback, true)) return;
    for (const Call& c : calls) {
      auto* const mine = new std::shared_ptr<State>(shared_from_this());
      if (rondo_work_on_done(c.work, &call_is_done, mine) == RONDO_OK) continue;
      // `mine` stays: the buffers must not be freed while the call runs.
      TORCH_WARN("rondo cannot call back: ", rondo_last_error(nullptr));
    }
  }
};

Work::Work(int rank, c10d::OpType type, std::vector<at::Tensor> results)
    : c10d::Work(rank, type), sequence_(0), state_(std::make_shared<State>()) {
  state_->results = std::move(results);
  state_->done = true;
}

Work::Work(int rank, c10d::OpType type, uint64_t sequence, const char* title, std::vector<Call> calls,
           std::vector<at::Tensor> results, std::function<void()> on_error)
    : c10d::Work(rank, type, title, title != nullptr ? std::optional(inputs_of(calls, results)) : std::nullopt),
      sequence_(sequence),
      state_(std::make_shared<State>()) {
  state_->calls = std::move(calls);
  state_->results = std::move(results);
  state_->on_error = std::move(on_error);
  state_->end_of_profile = std::exchange(recordFunctionEndCallback_, nullptr);
  if (state_->end_of_profile) {  // the profile shows the end of the call, not of the wait for it
    const std::lock_guard lock(state_->mutex);
    state_->call_back();
  }
}

// If nobody has waited, the buffers must live until the peers are done.
Work::~Work() {
  if (state_->poll()) return;
  const std::lock_guard lock(state_->mutex);
  state_->call_back();
}

void Work::end_after(std::vector<std::shared_ptr<State>> earlier) { state_->earlier = std::move(earlier); }

bool Work::isCompleted() { return state_->poll(); }

bool Work::isSuccess() const { return state_->poll() && state_->error == nullptr; }

std::exception_ptr Work::exception() const { return state_->poll() ? state_->error : nullptr; }

int Work::sourceRank() const {
  TORCH_CHECK(state_->calls.size() == 1 && state_->calls[0].source != nullptr, "rank ", rank_, ": ",
              c10d::opTypeToString(opType_), ": source_rank is known only for a receive from any rank");
  TORCH_CHECK(state_->poll(), "rank ", rank_, ": the receive is not done, so source_rank is not known: wait for it");
  return *state_->calls[0].source;
}

std::vector<at::Tensor> Work::result() { return state_->results; }

bool Work::is_done(const State& state) { return state.done.load(std::memory_order_acquire); }

bool Work::wait_for(State& state, double seconds) {
  if (is_done(state)) return true;
  const bool is_one = state.calls.size() == 1 && state.earlier.empty();  // reads no clock
  const auto begin = is_one ? std::chrono::steady_clock::time_point() : std::chrono::steady_clock::now();
  for (const auto& e : state.earlier)
    if (!wait_for(*e, std::max(seconds - since(begin), 0.0))) return false;
  for (const Call& c : state.calls) {
    const double left = is_one ? seconds : std::max(seconds - since(begin), 0.0);
    if (rondo_work_wait_for(c.work, left) == RONDO_IN_PROGRESS) return false;
  }
  state.await_end();
  return true;
}

bool Work::wait(std::chrono::milliseconds timeout) {
  if (!wait_for(*state_, seconds(timeout, kForever)))
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("rank ", rank_, ": ", c10d::opTypeToString(opType_), " #", sequence_, " is not done after ",
                 timeout.count(), " ms, the timeout of wait(). It goes on: wait again, or abort the process group"));
  if (state_->error != nullptr) std::rethrow_exception(state_->error);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  const auto state = state_;
  if (is_in_callback) {
    const WithoutGil waits;
    wait_for(*state, kForever);
  }
  std::unique_lock lock(state->mutex);
  if (state->future != nullptr) return state->future;
  state->future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  const auto future = state->future;
  if (is_done(*state)) {
    lock.unlock();
    state->complete(*future);
  } else {
    state->call_back();
  }
  return future;
}

}  // namespace rondo_c10d
