// What fully sharded training does with a model, before anything runs: who owns which rows, which buffers are shared by
// which units, what is gathered and reduced when, how much memory and traffic that takes. Pure functions of a model's
// shapes and a few options; the engine does what stands here, and its log can be compared with it.
//
// A *unit* is what is gathered and released together, a layer as a rule. Its tensors lie one after the other, without
// padding, in *segments* of equal types. Ranks own ragged, contiguous parts of a segment, cut between rows, so that a
// part is where all_gather_v and reduce_scatter_v put it: nothing is copied.
//
//   segment   | w: 4 x 3      | b: 4 | norm |      17 elements, 3 ranks: cuts near 5.7 and 11.3, at the next row
//   rank 0    |======|                              w rows 0, 1
//   rank 1           |======|                       w rows 2, 3
//   rank 2                  |=============|         b, norm
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rondo/rondo.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo::fsdp {

/// What ranks share out among themselves. Named in papers as none (DDP), ZeRO-1, ZeRO-2, ZeRO-3.
enum class Strategy : uint8_t { kReplicate, kShardOptimizer, kShardGradients, kShardAll };

/// When the gather of the next unit in backward is issued: before the current unit's gradients are computed (more
/// overlap, one more buffer in use), or after.
enum class BackwardPrefetch : uint8_t { kPre, kPost };

struct Tensor {
  std::string name;
  std::vector<uint64_t> shape;    // rows are its first dimension; {}: one element
  Dtype dtype = Dtype::kFloat32;  // of the owned copy that the optimizer changes
  bool trainable = true;
  uint64_t rows_together = 1;  // this many rows stay on one rank (blocks of a quantised optimizer)
  std::string tied_to = {};    // the same memory as that tensor of the same unit
};

struct Unit {
  std::string name;
  std::vector<Tensor> tensors;
  /// Other units are used while this one is: its parameters stay from forward to the end of its backward, in a buffer
  /// of its own.
  bool encloses = false;
};

/// units: in the order of forward.
struct Model {
  std::vector<Unit> units;
  /// The first unit is around all others: it encloses them.
  bool has_root = false;
};

/// What a pass over the model is for.
enum class PassKind : uint8_t {
  kTrain,        // forward, backward, reductions, optimizer
  kAccumulate,   // a micro-batch before the last: no optimizer, and gradients that stay whole are not reduced
  kForwardOnly,  // evaluation
};

/// The order in which units are used, where it is not the model's. A unit may come several times in forward; those that
/// are left out come last.
struct Order {
  std::vector<int> forward, backward;
};

struct Options {
  int nranks = 1;
  /// Hybrid: ranks shard among so many neighbours and replicate across; divides nranks. 0: among all.
  int shard_ranks = 0;
  Strategy strategy = Strategy::kShardAll;
  /// In which parameters are gathered and used, and gradients computed and reduced; unset: as the tensors are.
  std::optional<Dtype> param_dtype = {}, reduce_dtype = {};
  /// Units gathered ahead. 0: each is waited for.
  int forward_prefetch = 1, backward_prefetch = 1;
  BackwardPrefetch backward_order = BackwardPrefetch::kPre;
  /// Keeps the last unit's parameters from forward to backward, where it comes first: one gather less.
  bool keep_last = false;
  /// Buffers for units to take turns in; 0: as many as prefetch needs.
  int data_buffers = 0, grad_buffers = 0;
  /// What the optimizer keeps for each element it changes. 8: two moments in fp32, as of Adam.
  uint32_t optimizer_bytes = 8;
  /// What ranks own, reduced gradients and optimizer state among it, is kept in host memory, where the optimizer runs;
  /// whole parameters and gradients lie on the device. For engines on a device alone.
  bool offload = false;
};

/// Where a tensor lies in its segment.
struct Placed {
  size_t segment = 0;
  uint64_t offset_elems = 0, num_elems = 0;
  uint64_t row_elems = 1;  // what is never cut
};

/// Elements of one set of types of a unit.
struct Segment {
  Dtype master = Dtype::kFloat32, param = Dtype::kFloat32, reduce = Dtype::kFloat32;
  bool trainable = true;
  uint64_t num_elems = 0;
  std::vector<uint64_t> counts, offsets;                  // in elements, by rank of the shard group
  uint64_t data_offset_bytes = 0, grad_offset_bytes = 0;  // in the unit's buffers, multiples of 64
};

struct UnitPlan {
  std::string name;
  std::vector<Tensor> tensors;
  std::vector<Placed> placed;  // of each tensor; tied ones lie where their partners do
  std::vector<Segment> segments;
  uint64_t data_bytes = 0, grad_bytes = 0;  // whole, of parameters and of trainable ones' gradients
  int data_buffer = 0, grad_buffer = -1;    // which it uses; -1: no gradients
  bool resident = false;                    // its data buffer is its own
  bool keeps_grads = false;                 // so is its gradient buffer: micro-batches add up there
};

/// Under which name checkpoints have it: "unit.tensor", or "tensor" where the unit has no name.
RONDO_API std::string full_name(const UnitPlan& unit, const Tensor& tensor);

/// One thing that a rank does. Gathers and reductions are issued, and run in this order; computing is the caller's.
enum class Act : uint8_t {
  kGather,  // its parameters, into its data buffer
  kWaitGather,
  kForward,
  kRelease,  // the data buffer may be another unit's
  kBackward,
  kReduce,      // its gradients, to their owners
  kWaitReduce,  // the gradient buffer may be another unit's
  kStep,        // the optimizer, on what the rank owns of the unit
};
struct Action {
  Act act;
  int unit;
  friend bool operator==(const Action&, const Action&) = default;
};

/// One collective of a step, as one rank sees it.
struct Communication {
  Act act;  // kGather or kReduce
  int unit;
  size_t segment;
  const char* collective;  // all_gather, reduce_scatter, all_reduce
  bool across;             // between replicas, not within the shard group
  uint64_t payload_bytes;  // of this rank's part
  uint64_t whole_bytes;    // of all parts
};

/// Bytes that a rank holds for good.
struct Memory {
  uint64_t master = 0;  // what it owns; 0 for what lies in a resident buffer of the same type
  uint64_t grads = 0;   // reduced gradients of what it owns, in the master's type
  uint64_t optimizer = 0;
  uint64_t data_buffers = 0, grad_buffers = 0;
  uint64_t staging = 0;  // offload: where a part is cast, or waits for its way to the host
  uint64_t host = 0;     // of all of these, what offload keeps in host memory
  uint64_t total() const { return master + grads + optimizer + data_buffers + grad_buffers + staging; }
  uint64_t device() const { return total() - host; }
};

class RONDO_API Plan {
 public:
  /// Errors: kInvalidArgument, which names unit, tensor or option. O(tensors * ranks).
  static Expected<Plan> build(const Model& model, const Options& options);

  const std::vector<UnitPlan>& units() const { return units_; }
  const Options& options() const { return options_; }
  int shard_ranks() const { return options_.shard_ranks; }
  int num_data_buffers() const { return static_cast<int>(data_buffer_bytes_.size()); }
  int num_grad_buffers() const { return static_cast<int>(grad_buffer_bytes_.size()); }
  uint64_t data_buffer_bytes(int buffer) const { return data_buffer_bytes_[static_cast<size_t>(buffer)]; }
  uint64_t grad_buffer_bytes(int buffer) const { return grad_buffer_bytes_[static_cast<size_t>(buffer)]; }

  /// What happens in a pass, in order. Units of `order` that the plan does not have are passed over, as are further
  /// places of one in backward. O(units^2).
  std::vector<Action> pass(PassKind kind, const Order& order = {}) const;
  /// A training step; `reduces` is false for a micro-batch before the last.
  std::vector<Action> step(bool reduces = true) const {
    return pass(reduces ? PassKind::kTrain : PassKind::kAccumulate);
  }
  /// The collectives of a list of actions, as rank r of the job sees them.
  std::vector<Communication> communications(Rank r, const std::vector<Action>& actions) const;
  std::vector<Communication> communications(Rank r, bool reduces = true) const {
    return communications(r, step(reduces));
  }
  Memory memory(Rank r) const;
  /// Equal for equal plans: ranks compare it when they begin.
  uint64_t hash() const;
  /// All of it, as text.
  std::string describe() const;

 private:
  Options options_;
  std::vector<UnitPlan> units_;
  std::vector<uint64_t> data_buffer_bytes_, grad_buffer_bytes_;
};

/// Checks of a list of actions what makes shared buffers safe: a unit computes on what has been gathered; nothing is
/// gathered into a buffer before its unit has released it; no gradients are written into a buffer that is still being
/// reduced; none is reduced before it is computed. Errors: kInternal, which names both units.
RONDO_API Status check_actions(const Plan& plan, const std::vector<Action>& actions);

/// The arithmetic by which sharded training is discussed, for units of equal size. Payload: what a rank contributes to
/// one collective. A step has three per unit: a gather in forward, one in backward, a reduction.
constexpr uint64_t payload_bytes(uint64_t params, uint32_t elem_bytes, int nranks) {
  return params / static_cast<uint64_t>(nranks) * elem_bytes;
}
constexpr int communications_of_step(int num_units) { return 3 * num_units; }
struct BufferBytes {
  uint64_t sharded, whole;
};
/// Of `buffers` units at once: what is sent from, and what is gathered into.
constexpr BufferBytes buffer_bytes(uint64_t params, uint32_t elem_bytes, int nranks, int buffers = 2) {
  const auto n = static_cast<uint64_t>(buffers);
  return {n * payload_bytes(params, elem_bytes, nranks), n * params * elem_bytes};
}

}  // namespace rondo::fsdp
