// Backend: torch.distributed's collectives on one rondo communicator of host memory.
//
// A call with async_op=False runs on the caller's thread. Other calls return at once, and rondo's progress thread
// drives them while nobody waits. Tensors may have any strides: a tensor that is not contiguous is copied to staging
// memory and back.
//
// The class knows c10d; the rest of rondo does not. It is compiled for one minor release of torch, because the virtual
// functions of c10d::Backend change with each. It overrides the older names (_allgather_base, ...), to which the newer
// ones (all_gather_single, ...) forward.
//
// Thread safety: as rondo's. All ranks must make the calls of a group in the same order.
#pragma once

#include <c10/util/FunctionRef.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "convert.h"
#include "work.h"

namespace rondo_c10d {

using ListOfLists = std::vector<std::vector<at::Tensor>>;
using c10::intrusive_ptr;

class Backend final : public c10d::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options("rondo", timeout) {}
    intrusive_ptr<c10d::Backend::Options> clone() const override { return c10::make_intrusive<Options>(*this); }

    std::string settings;                       // lines "key = value" (docs/settings.md)
    std::optional<at::ScalarType> accumulator;  // of all sums; default: rondo's
    uint32_t promises = 0;                      // RONDO_PROMISE_*
  };

  /// Makes the backend of one rank. All ranks of the group call it with the same store. Waits for them, at most for the
  /// options' timeout; for rank 0's id, for the store's. Errors: DistBackendError; ValueError (a wrong setting).
  static intrusive_ptr<Backend> create(const intrusive_ptr<c10d::Store>& store, int rank, int size,
                                       const intrusive_ptr<Options>& options);
  /// Owns the communicator. store: of the group, or nullptr.
  Backend(int rank, int size, intrusive_ptr<Options> options, rondo_comm* comm);
  ~Backend() override;
  /// Waits for asynchronous calls that nobody has waited for, at most this long. If some are not done then, aborts the
  /// group. Ends the communicator.
  void close(double longest_wait_s = 10);
  void shutdown() override { close(); }
  void release_resources() override { close(); }

  const std::string getBackendName() const override { return "rondo"; }
  intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  /// Sets the name in the titles of profiles: for tests that expect another backend's.
  void set_title(std::string title) { title_ = std::move(title); }

  intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>&, const c10d::BroadcastOptions&) override;
  intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override;
  intrusive_ptr<c10d::Work> allreduce_sparse(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override;
  intrusive_ptr<c10d::Work> allreduce_coalesced(std::vector<at::Tensor>&,
                                                const c10d::AllreduceCoalescedOptions&) override;
  intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>&, const c10d::ReduceOptions&) override;
  intrusive_ptr<c10d::Work> allgather(ListOfLists&, std::vector<at::Tensor>&, const c10d::AllgatherOptions&) override;
  intrusive_ptr<c10d::Work> _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override;
  intrusive_ptr<c10d::Work> allgather_coalesced(ListOfLists&, std::vector<at::Tensor>&,
                                                const c10d::AllgatherOptions&) override;
  intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(std::vector<at::Tensor>&, std::vector<at::Tensor>&,
                                                            const c10d::AllgatherOptions&) override;
  intrusive_ptr<c10d::Work> gather(ListOfLists&, std::vector<at::Tensor>&, const c10d::GatherOptions&) override;
  intrusive_ptr<c10d::Work> gather_into_tensor(at::Tensor&, at::Tensor&, const c10d::GatherOptions&) override;
  intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>&, ListOfLists&, const c10d::ScatterOptions&) override;
  intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>&, ListOfLists&,
                                           const c10d::ReduceScatterOptions&) override;
  intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&) override;
  intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(std::vector<at::Tensor>&, std::vector<at::Tensor>&,
                                                            const c10d::ReduceScatterOptions&) override;
  intrusive_ptr<c10d::Work> alltoall_base(at::Tensor&, at::Tensor&, std::vector<int64_t>&, std::vector<int64_t>&,
                                          const c10d::AllToAllOptions&) override;
  intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>&, std::vector<at::Tensor>&,
                                     const c10d::AllToAllOptions&) override;
  intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>&, int peer, int tag) override;
  intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>&, int peer, int tag) override;
  intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>&, int tag) override;
  /// Its work ends after this rank's earlier collectives.
  intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override;
  /// A barrier through the store. Rank 0 reports the ranks that are late: all of them, or the first.
  void monitoredBarrier(const c10d::BarrierOptions&, bool wait_all_ranks) override;

  bool supportsCoalescing() const override { return true; }
  /// Between these two the calls of this thread run as always. endCoalescing returns one Work for all of them.
  void startCoalescing() override;
  intrusive_ptr<c10d::Work> endCoalescing() override;

  bool supportsSplitting() const override { return true; }
  /// The ranks of `ranks`, and no others, call it.
  intrusive_ptr<c10d::Backend> split(const intrusive_ptr<c10d::Store>&, const std::vector<int>& ranks,
                                     const intrusive_ptr<c10d::Backend::Options>&) override;
  bool supportsShrinking() const override { return true; }
  intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& ranks_to_exclude, int flags,
                                      const intrusive_ptr<c10d::Backend::Options>&) override;

  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }
  c10d::ErrorType getError() override;
  void abort() override;
  bool supportsAbortHooks() const override { return true; }
  void registerAbortHook(int64_t id, c10d::AbortHook) override;
  void unregisterAbortHook(int64_t id) override;

  // For rondo's Python functions:
  std::string explain(const std::string& collective, uint64_t count_elems, at::ScalarType, const c10d::ReduceOp&);
  double forecast_us(const std::string& collective, uint64_t count_elems, at::ScalarType, const c10d::ReduceOp&,
                     int root);
  std::string transport();
  void start_trace(const std::string& folder, uint64_t num_records);
  void stop_trace();
  void flight_record(const std::string& folder);

 private:
  /// What all calls have in common.
  struct Request {
    c10d::OpType type;
    const char* name;
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
    bool is_async = true;
  };
  /// Makes one call of rondo. It must not throw.
  using Launch = c10::function_ref<rondo_status(rondo_comm*, rondo_call&, rondo_work**)>;
  /// One of several calls that run together.
  struct Part {
    Buffers buffers;
    std::function<rondo_status(rondo_comm*, rondo_call&, rondo_work**)> launch;
  };

  using Comm = std::shared_ptr<rondo_comm>;
  Comm comm() const;  // throws after shutdown
  intrusive_ptr<Options> child_options(const intrusive_ptr<c10d::Backend::Options>& given) const;
  Reduction planned(const std::string& collective, at::ScalarType type, const c10d::ReduceOp& op) const;
  void remember(const intrusive_ptr<Work>& work, bool is_message);
  std::vector<std::shared_ptr<Work::State>> open_calls(bool with_messages);
  rondo_call call_of(const Request& request) const;
  intrusive_ptr<c10d::Work> run(const Request& request, Buffers buffers, at::ArrayRef<at::Tensor> results,
                                Launch launch, std::shared_ptr<int> source = nullptr);
  intrusive_ptr<c10d::Work> run_all(const Request& request, std::vector<Part> parts, std::vector<at::Tensor> results);
  intrusive_ptr<Work> make_work(const Request& request, std::vector<Work::Call> calls, std::vector<at::Tensor> results);
  void failed(rondo_status status = RONDO_ABORTED);

  // collectives.cc:
  [[noreturn]] void refuse(const Request& r, const std::string& why) const;
  void check_tensor(const Request& r, const at::Tensor& t) const;
  void check_parts(const Request& r, const std::vector<at::Tensor>& parts, const at::Tensor& whole) const;
  const at::Tensor& only(const Request& r, const std::vector<at::Tensor>& tensors) const;
  int check_root(const Request& r, int64_t root) const;
  bool is_root(int64_t root) const { return root == rank_; }
  Part all_reduce_part(const Request& r, const at::Tensor& t, const c10d::ReduceOp& op) const;
  Part all_gather_part(const Request& r, const at::Tensor& out, const at::Tensor& in) const;
  Part all_gather_list_part(const Request& r, const std::vector<at::Tensor>& outputs, const at::Tensor& in) const;
  Part part_message(const at::Tensor& t, int peer, bool sends) const;
  Part reduce_scatter_part(const Request& r, const at::Tensor& out, const at::Tensor& in,
                           const c10d::ReduceOp& op) const;
  intrusive_ptr<c10d::Work> run(const Request& r, Part part, at::ArrayRef<at::Tensor> results);
  void set_reduction(const Reduction& r, rondo_call& call) const;
  intrusive_ptr<c10d::Work> message(const Request& r, const std::vector<at::Tensor>& tensors, int peer, int tag);

  std::string title_ = "rondo";
  const intrusive_ptr<Options> options_;
  mutable std::mutex comm_mutex_;
  Comm comm_;                         // its last user ends it
  intrusive_ptr<c10d::Store> store_;  // of this group, for monitoredBarrier
  std::string barrier_prefix_;        // of its keys there
  std::atomic<int> num_monitored_barriers_ = 0;
  std::atomic<int> num_shrunk_ = 0;
  std::atomic<uint64_t> sequence_ = 0;  // of collectives
  const intrusive_ptr<Work> done_;      // what every blocking call returns
  std::mutex hooks_mutex_;  // the hooks themselves are not copied under it, because that takes Python's lock
  std::map<int64_t, std::shared_ptr<const c10d::AbortHook>> abort_hooks_;
  std::mutex open_mutex_;
  struct OpenCall {
    std::weak_ptr<Work::State> state;
    bool is_message;
  };
  std::vector<OpenCall> open_;  // asynchronous calls that may not be done
  size_t prune_at_ = 64;
};

}  // namespace rondo_c10d
