#include "work.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>

#include "convert.h"

namespace rondo_c10d {

// Shared with rondo's callbacks, which may run after the Work is gone.
struct Work::State {
  std::vector<Call> calls;
  std::vector<at::Tensor> results;
  std::function<void()> on_error;
  std::function<void()> end_of_profile;

  std::mutex mutex;  // guards the members below, and the end
  std::atomic<bool> done = false;
  std::exception_ptr error;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool has_callback = false;

  ~State() {
    for (const Call& c : calls) rondo_work_free(c.work);
  }

  // Ends the work. The first thread does it, and others wait for it.
  void end(std::exception_ptr failure) {
    std::unique_lock lock(mutex);
    if (done.load(std::memory_order_relaxed)) return;
    if (failure == nullptr) {
      try {
        for (const Call& c : calls) c.buffers.finish();
      } catch (...) {
        failure = std::current_exception();
      }
    }
    if (failure != nullptr && on_error) on_error();
    error = failure;
    if (end_of_profile) end_of_profile();
    const auto completed = future;
    done.store(true, std::memory_order_release);
    lock.unlock();
    if (completed != nullptr) complete(*completed);
  }

  void complete(c10::ivalue::Future& f) const {
    if (error != nullptr) f.setError(error);
    else f.markCompleted(results);
  }

  // Returns true if the work is done.
  bool poll() {
    if (done.load(std::memory_order_acquire)) return true;
    std::exception_ptr failure;
    for (const Call& c : calls) {
      const rondo_status s = rondo_work_test(c.work);
      if (s == RONDO_IN_PROGRESS) return false;
      if (s != RONDO_OK && failure == nullptr) failure = exception_of(s, rondo_last_error(nullptr));
    }
    end(failure);
    return true;
  }
};

namespace {

// For profiles.
std::vector<at::Tensor> inputs_of(const std::vector<Work::Call>& calls, const std::vector<at::Tensor>& results) {
  std::vector<at::Tensor> inputs;
  for (const Work::Call& c : calls)
    if (c.buffers.in.defined()) inputs.push_back(c.buffers.in);
  return inputs.empty() ? results : inputs;
}

thread_local bool is_in_callback = false;

// rondo calls it on a thread of its own when one of the calls is done. The last of them ends the work.
template <class State>
void call_is_done(void* state, rondo_status, const char*) {
  const std::unique_ptr<std::shared_ptr<State>> mine(static_cast<std::shared_ptr<State>*>(state));
  is_in_callback = true;
  (*mine)->poll();
  is_in_callback = false;
}

template <class State>
void call_back(const std::shared_ptr<State>& state) {
  for (const auto& c : state->calls) {
    auto* const mine = new std::shared_ptr<State>(state);
    if (rondo_work_on_done(c.work, &call_is_done<State>, mine) == RONDO_OK) continue;
    delete mine;
    TORCH_WARN("rondo cannot call back: ", rondo_last_error(nullptr));
  }
}

}  // namespace

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
}

// If nobody has waited, the buffers must live until the peers are done.
Work::~Work() {
  if (state_->poll()) return;
  const std::lock_guard lock(state_->mutex);
  if (!std::exchange(state_->has_callback, true)) call_back(state_);
}

bool Work::isCompleted() { return state_->poll(); }

bool Work::isSuccess() const { return state_->poll() && state_->error == nullptr; }

std::exception_ptr Work::exception() const { return state_->poll() ? state_->error : nullptr; }

int Work::sourceRank() const {
  TORCH_CHECK(state_->calls.size() == 1 && state_->calls[0].source != nullptr,
              "source_rank is known only for a receive from any rank");
  TORCH_CHECK(state_->poll(), "source_rank is not known before the receive is done: wait for it first");
  return *state_->calls[0].source;
}

std::vector<at::Tensor> Work::result() { return state_->results; }

bool Work::wait(std::chrono::milliseconds timeout) {
  constexpr double kForever = 1e9;  // each call has its own deadline
  double left = seconds(timeout, kForever);
  const auto begin = std::chrono::steady_clock::now();
  for (const Call& c : state_->calls) {
    if (state_->done.load(std::memory_order_acquire)) break;
    if (timeout.count() > 0 && state_->calls.size() > 1)
      left =
          seconds(timeout, kForever) - std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (rondo_work_wait_for(c.work, std::max(left, 0.0)) == RONDO_IN_PROGRESS)
      C10_THROW_ERROR(DistBackendError, c10::str("rank ", rank_, ": ", c10d::opTypeToString(opType_), " #", sequence_,
                                                 " is not done after ", timeout.count(),
                                                 " ms, the timeout of wait(). It goes on: wait "
                                                 "again, or abort the process group"));
  }
  state_->poll();
  if (state_->error != nullptr) std::rethrow_exception(state_->error);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  const auto state = state_;
  if (is_in_callback) {
    const WithoutGil waits;
    try {
      wait(kNoTimeout);
    } catch (const c10::Error&) {
      // the future has it
    }
  }
  std::unique_lock lock(state->mutex);
  if (state->future != nullptr) return state->future;
  state->future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  const auto future = state->future;
  if (state->done.load(std::memory_order_acquire)) {
    lock.unlock();
    state->complete(*future);
  } else if (!std::exchange(state->has_callback, true)) {
    call_back(state);
  }
  return future;
}

}  // namespace rondo_c10d
