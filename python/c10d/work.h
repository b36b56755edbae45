// Work: an asynchronous call as torch.distributed sees it.
//
// The buffers of a call live until the call is done, even if nobody holds the Work or waits for it. When the call is
// done, results that lie in staging memory are copied to the caller's tensors. That happens once: in the thread that
// first sees the end, which is one that waits or polls, or rondo's own if there is a future.
//
// Thread safety: any thread.
#pragma once

#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "buffers.h"
#include "rondo/rondo.h"

namespace rondo_c10d {

/// Releases Python's lock, if this thread has it, while it waits: a callback of another thread may need it.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() && PyGILState_Check()) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

constexpr double kForever = 1e9;  // seconds; each call has its own deadline

class Work final : public c10d::Work {
 public:
  struct Call {
    rondo_work* work = nullptr;
    Buffers buffers;
    std::shared_ptr<int> source;  // recv from any rank: the sender's rank, once the call is done
  };
  /// The part of a Work that lives until its calls are done.
  struct State;

  /// A call that is done.
  Work(int rank, c10d::OpType type, std::vector<at::Tensor> results);
  /// Owns the works of `calls`, of which there is at least one. title: for profiles; nullptr: none is made. on_error is
  /// called once if the work fails, before anybody sees the error.
  Work(int rank, c10d::OpType type, uint64_t sequence, const char* title, std::vector<Call> calls,
       std::vector<at::Tensor> results, std::function<void()> on_error);
  ~Work() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  /// Waits until the work is done. If that takes longer than `timeout`, throws DistBackendError, and the work goes on.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  /// In a callback of another future this waits for the work, because callbacks run one after the other.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }

  std::weak_ptr<State> state() const { return state_; }
  /// Makes this work end after those. Call it before the work is used.
  void end_after(std::vector<std::shared_ptr<State>> earlier);
  /// Waits for a work, at most this long. Returns true if it has ended.
  static bool wait_for(State& state, double seconds);
  static bool is_done(const State& state);

 private:
  const uint64_t sequence_;
  const std::shared_ptr<State> state_;
};

}  // namespace rondo_c10d
