// Connects autograd and the engine. It tracks calls of units and gradients that reach their outputs, and reports the
// use of units to the engine. It also sets each parameter to its current state: a view of the engine's buffer during a
// use, else a tensor without memory.
//
// The end of a unit's backward follows from autograd's order: it runs nodes in reverse order of creation. When
// gradients reach the outputs of a call, all calls that began after its end are over.
//
//   forward    ( root  ( a )  ( b )  ( c ) )            calls, by the times of their begin and end
//   backward   root's outputs: take root's gradients
//              c's outputs: take c's.   b's: reduce c's, take b's.   a's: reduce b's, take a's.
//              end: reduce a's and root's
//
// A unit with several calls is reduced once, with the first call, which backward reaches last. A call without a graph
// in a training pass may be repeated by backward (recomputation). Then it keeps its original position.
//
// autograd saves its inputs as views of the parameters, which point into the engine's buffers. A parameter has another
// version while its buffer does not hold it, so that torch refuses to use the wrong contents.
// Thread safety: one thread at a time.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "collect.h"
#include "rondo/torch/fully_shard.h"

namespace rondo::torch::internal {

void check(const Status& status);  // throws Error
template <class T>
T checked(Expected<T> expected) {
  check(expected.status());
  return std::move(*expected);
}

class Core : public std::enable_shared_from_this<Core> {
 public:
  /// Throws Error, like all following functions.
  static std::shared_ptr<Core> make(Expected<Collected> collected, Communicator& comm, const Options& options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  /// Returns the number of a call, or -1 if the key is not a unit's. The core's own address is the key of a whole pass.
  int enter(const void* key);
  /// Number of the current pass. Numbers of given-up passes are not reused.
  uint64_t pass() const { return pass_; }
  void leave(uint64_t pass, int call, const std::vector<::torch::Tensor>& outputs);
  /// Instead of leave, after an exception. A pass that fails is given up.
  void fail(uint64_t pass, int call) noexcept;
  /// Ends the current pass without its gradients.
  void give_up() noexcept;

  void step();
  void step(::torch::optim::Optimizer& optimizer);
  std::vector<::torch::Tensor> shards();
  std::string describe() const;
  fsdp::Engine& engine() { return *engine_; }

  bool accumulates = false;  // no_sync

 private:
  enum class Phase : uint8_t { kIdle, kForward, kBackward };
  enum class State : uint8_t {
    kRunning,
    kAwaited,  // its outputs have a graph
    kNoGraph,  // backward may repeat it
    kInBackward,
    kDone,
  };
  struct Call {
    int unit;  // -1: a pass whose outermost unit has no parameters
    int64_t begin = 0, end = 0;
    State state = State::kRunning;
    bool is_pass = false;
    bool data_only = false;   // an earlier call takes the gradients
    uint64_t first_node = 0;  // autograd's next node number at its begin
  };

  explicit Core(Collected collected) : all_(std::move(collected)) {}
  void set_up(Communicator& comm, const Options& options);
  void fill(Communicator& comm, const Options& options);
  void check_values(Communicator& comm, const Options& options) const;
  void make_values(const Entry& e, const Options& options, ::torch::Tensor whole, std::string* failure);
  void check_made(Communicator& comm, const std::string& failure) const;
  void compare(Communicator& comm, const std::vector<uint64_t>& sums);
  void take_back();
  void call_links();

  Call& call(int i) { return calls_[static_cast<size_t>(i)]; }
  const std::string& name(int unit) const { return engine_->plan().units()[static_cast<size_t>(unit)].name; }
  [[noreturn]] void misuse(const std::string& why) const;
  std::pair<size_t, size_t> entries_of(int unit) const { return ranges_[static_cast<size_t>(unit)]; }

  void open_pass();
  void check_frozen() const;
  int repeated_call(int unit) const;
  void await_gradients(int i, const std::vector<::torch::Tensor>& outputs);
  void on_gradient(uint64_t pass, int i);
  void begin_backward(int i);
  void end_backward(int i);
  bool takes_gradients(int i) const;
  void settle_calls_after(int this_call, uint64_t repeated_node);
  void take_strays();
  void finish_pass();

  Status begin_use(fsdp::Act act, int unit);
  Status end_use(fsdp::Act act, int unit);
  void follow_buffers();
  void bump_versions();
  void bind(int unit);
  void unbind(int unit);
  void attach_grads(int unit);
  void detach_grads(int unit);
  ::torch::TensorOptions options_of(const Entry& e) const;
  ::torch::Tensor view(void* data, const Entry& e);
  ::torch::Tensor placeholder(const Entry& e);

  Collected all_;
  std::vector<std::pair<size_t, size_t>> ranges_;  // range of entries, by unit
  std::unique_ptr<fsdp::Engine> engine_;
  bool always_here_ = false;  // parameters are never released
  std::vector<std::pair<Link, ::torch::nn::AnyModule>> replaced_;
  std::vector<std::pair<::torch::Tensor, float*>> shards_;  // with their gradients

  Phase phase_ = Phase::kIdle;
  uint64_t pass_ = 0;
  fsdp::PassKind kind_ = fsdp::PassKind::kForwardOnly;
  int64_t clock_ = 0;
  int depth_ = 0;  // nesting of whole-pass calls
  std::vector<Call> calls_;
  std::vector<int> in_backward_;  // calls
  std::vector<int> bound_;        // uses under way, by unit
  std::vector<bool> here_;        // the buffer holds its values, as versions show; by unit
  std::vector<::c10::weak_intrusive_ptr<::torch::autograd::Node>>
      graphs_;  // of the pass's results: without them it has no backward
};

}  // namespace rondo::torch::internal
