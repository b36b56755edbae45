// The plan of fully sharded training, made before anything runs: row ownership, shared buffers, the order of gathers
// and reductions, memory and traffic. Pure functions of a model's shapes and a few options. The engine executes it, and
// its log can be compared with it.
//
// A *unit* is gathered and released as a whole; usually it is a layer. Its tensors follow each other without padding in
// *segments* of equal types. Ranks own ragged, contiguous parts of a segment, cut between rows. all_gather_v and
// reduce_scatter_v place such parts directly, without copies.
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

/// The state that ranks shard. Papers call them none (DDP), ZeRO-1, ZeRO-2, ZeRO-3.
enum class Strategy : uint8_t { kReplicate, kShardOptimizer, kShardGradients, kShardAll };

/// When backward issues the gather of the next unit: before computing the current unit's gradients (more overlap, one
/// more buffer in use), or after.
enum class BackwardPrefetch : uint8_t { kPre, kPost };

struct Tensor {
  std::string name;
  std::vector<uint64_t> shape;    // rows are its first dimension; {}: one element
  Dtype dtype = Dtype::kFloat32;  // of the owned copy that the optimizer updates
  bool trainable = true;
  uint64_t rows_together = 1;  // this many rows stay on one rank (for example blocks of a quantised optimizer)
  std::string tied_to = {};    // shares the memory of that tensor of the same unit
};

struct Unit {
  std::string name;
  std::vector<Tensor> tensors;
  /// Other units run inside this one: its parameters stay from forward to the end of its backward, in a buffer of its
  /// own.
  bool encloses = false;
};

/// units: in the order of forward.
struct Model {
  std::vector<Unit> units;
  /// The first unit encloses all others.
  bool has_root = false;
};

/// The purpose of a pass over the model.
enum class PassKind : uint8_t {
  kTrain,        // forward, backward, reductions, optimizer
  kAccumulate,   // a micro-batch before the last: no optimizer, and unsharded gradients are not reduced
  kForwardOnly,  // evaluation
};

/// The order of units, if it differs from the model's. A unit may occur several times in forward; missing units come
/// last.
struct Order {
  std::vector<int> forward, backward;
};

struct Options {
  int nranks = 1;
  /// Hybrid: groups of this many neighbours shard, and replicate across groups; must divide nranks. 0: one group of
  /// all.
  int shard_ranks = 0;
  Strategy strategy = Strategy::kShardAll;
  /// Types of gathered parameters, and of gradients while they are computed and reduced; unset: the tensors' types.
  std::optional<Dtype> param_dtype = {}, reduce_dtype = {};
  /// Units gathered ahead. 0: no prefetch.
  int forward_prefetch = 1, backward_prefetch = 1;
  BackwardPrefetch backward_order = BackwardPrefetch::kPre;
  /// Keeps the last unit's parameters from forward to backward, where it comes first. Saves one gather.
  bool keep_last = false;
  /// Number of buffers that units share; 0: as many as prefetch needs.
  int data_buffers = 0, grad_buffers = 0;
  /// Optimizer bytes per updated element. 8: two moments in fp32, as for Adam.
  uint32_t optimizer_bytes = 8;
  /// Keeps owned parameters, reduced gradients and optimizer state in host memory and runs the optimizer there. Whole
  /// parameters and gradients stay on the device. Only for engines on a device.
  bool offload = false;
};

/// The place of a tensor in its segment.
struct Placed {
  size_t segment = 0;
  uint64_t offset_elems = 0, num_elems = 0;
  uint64_t row_elems = 1;  // never cut
};

/// The elements of a unit that share one set of types.
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
  std::vector<Placed> placed;  // of each tensor; tied ones share their partner's place
  std::vector<Segment> segments;
  uint64_t data_bytes = 0, grad_bytes = 0;  // of whole parameters, and of whole gradients of trainable ones
  int data_buffer = 0, grad_buffer = -1;    // index of its buffer; -1: no gradients
  bool resident = false;                    // its data buffer is not shared
  bool keeps_grads = false;                 // its gradient buffer is not shared: micro-batches add up there
};

/// The name in checkpoints: "unit.tensor", or "tensor" if the unit has no name.
RONDO_API std::string full_name(const UnitPlan& unit, const Tensor& tensor);

/// One action of a rank. Gathers and reductions are issued, and run in this order; the caller computes.
enum class Act : uint8_t {
  kGather,  // parameters, into the unit's data buffer
  kWaitGather,
  kForward,
  kRelease,  // another unit may now use the data buffer
  kBackward,
  kReduce,      // gradients, to their owners
  kWaitReduce,  // another unit may now use the gradient buffer
  kStep,        // the optimizer, on this rank's part of the unit
};
struct Action {
  Act act;
  int unit;
  friend bool operator==(const Action&, const Action&) = default;
};

/// One collective of a step, from one rank's view.
struct Communication {
  Act act;  // kGather or kReduce
  int unit;
  size_t segment;
  const char* collective;  // all_gather, reduce_scatter, all_reduce
  bool across;             // between replicas, not within the shard group
  uint64_t payload_bytes;  // of this rank's part
  uint64_t whole_bytes;    // of all parts
};

/// Bytes that a rank keeps allocated.
struct Memory {
  uint64_t master = 0;  // owned parameters; 0 for those in a resident buffer of the same type
  uint64_t grads = 0;   // reduced gradients of owned parameters, in the master's type
  uint64_t optimizer = 0;
  uint64_t data_buffers = 0, grad_buffers = 0;
  uint64_t staging = 0;  // offload: for parts that are cast or wait for their copy to the host
  uint64_t host = 0;     // the part of all these in host memory (offload)
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

  /// The actions of a pass, in order. Ignores units of `order` that the plan does not have, and repeats in backward.
  /// O(units^2).
  std::vector<Action> pass(PassKind kind, const Order& order = {}) const;
  /// A training step; `reduces` is false for a micro-batch before the last.
  std::vector<Action> step(bool reduces = true) const {
    return pass(reduces ? PassKind::kTrain : PassKind::kAccumulate);
  }
  /// The collectives of a list of actions, from the view of rank r of the job.
  std::vector<Communication> communications(Rank r, const std::vector<Action>& actions) const;
  std::vector<Communication> communications(Rank r, bool reduces = true) const {
    return communications(r, step(reduces));
  }
  Memory memory(Rank r) const;
  /// Equal for equal plans; ranks compare it when they start.
  uint64_t hash() const;
  /// The whole plan as text.
  std::string describe() const;

 private:
  Options options_;
  std::vector<UnitPlan> units_;
  std::vector<uint64_t> data_buffer_bytes_, grad_buffer_bytes_;
};

/// Checks that a list of actions is safe for shared buffers: a unit computes on gathered parameters; a gather into a
/// buffer follows the release by its previous unit; gradients are not written into a buffer that is still being
/// reduced; no gradient is reduced before it is computed. Errors: kInternal, which names both units.
RONDO_API Status check_actions(const Plan& plan, const std::vector<Action>& actions);

/// Arithmetic of sharded training for units of equal size. Payload: one rank's contribution to one collective. A step
/// has three collectives per unit: a gather in forward, one in backward, a reduction.
constexpr uint64_t payload_bytes(uint64_t params, uint32_t elem_bytes, int nranks) {
  return params / static_cast<uint64_t>(nranks) * elem_bytes;
}
constexpr int communications_of_step(int num_units) { return 3 * num_units; }
struct BufferBytes {
  uint64_t sharded, whole;
};
/// Bytes of `buffers` units at once: of the sent shards and of the gathered wholes.
constexpr BufferBytes buffer_bytes(uint64_t params, uint32_t elem_bytes, int nranks, int buffers = 2) {
  const auto n = static_cast<uint64_t>(buffers);
  return {n * payload_bytes(params, elem_bytes, nranks), n * params * elem_bytes};
}

}  // namespace rondo::fsdp
