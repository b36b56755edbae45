// State of an Engine. Its functions are in engine.cc (calls on a unit), engine_memory.cc (allocation and ownership),
// engine_collectives.cc (gathers and reductions) and pass.cc (a pass driven by the caller's uses).
//
// Invariants: a shared buffer has at most one holder and one writer. A unit's parameters are read only while it holds
// its data buffer. Its gradients are written only while it is the writer of its gradient buffer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "fsdp/host_calls.h"
#include "rondo/fsdp/engine.h"
#include "rondo/trace.h"

namespace rondo::fsdp {

struct DestroyEvent {
  Device* device = nullptr;
  void operator()(Device::Event* e) const { device->destroy(e); }
};
using Event = std::unique_ptr<Device::Event, DestroyEvent>;

/// The part of one segment that this rank owns.
struct Owned {
  std::byte* master = nullptr;  // own_master, or a part of the unit's buffer
  std::byte* grad = nullptr;    // reduced, in the master's type: own_grad, or where it was computed
  Block own_master, own_grad;
  Block sum;                  // gradients of a later micro-batch, until they are added
  std::vector<Block> states;  // optimizer states
};

enum class Where : uint8_t { kAway, kComing, kHere };

struct UnitState {
  std::vector<Owned> owned;  // by segment
  std::vector<Work> gathers, reductions;
  Where where = Where::kAway;
  bool writing = false;  // its gradients may be written
  bool reducing = false;
  bool has_sum = false;    // the owners hold gradients of an earlier micro-batch
  bool whole_sum = false;  // the whole gradient buffer holds such a sum, too
  // Events on the device's lines: the parameters were gathered; the gradients were reduced; the gathered values were
  // changed.
  Event gathered, reduced, changed;
};

class Engine::Impl {
 public:
  Impl(const Plan& plan, Communicator& comm, const EngineOptions& o)
      : plan(plan),
        comm(comm),
        options(o),
        place(o.device != nullptr ? o.device : host_device()),
        device(*place),
        owner(plan.options().offload ? device.host() : device),
        calls(comm, device),
        part(static_cast<size_t>(comm.rank() % plan.shard_ranks())) {}
  ~Impl();

  Status open();
  Status agree();
  Status make_groups();
  Status make_unit(size_t u);
  Status gather_segment(int u, size_t s);
  Status reduce_segment(int u, size_t s);
  Status reduce_across(int u, size_t s, Work* work);
  Status reduce_across(int u);
  Status add_sum(int u);
  Status make_lanes();
  Status scale_grads();
  /// Records on every unit an event after all changes that the caller or the optimizer has made.
  Status mark_changed();
  /// On a device: the error after which its communicators refuse work. On the host the works report errors.
  Status line_error() const;
  /// On a device: waits for the issued reductions and returns their result.
  Status settled();
  Expected<Event> make_event();
  void note(const Communication& c);
  /// Adds a span to the communicator's trace, if it is traced. begin: start time on trace_clock().
  void span(std::string track, std::string_view what, int u, uint64_t begin);
  std::vector<Part> parts();

  UnitState& state(int u) { return states[static_cast<size_t>(u)]; }
  const UnitPlan& unit(int u) const { return plan.units()[static_cast<size_t>(u)]; }
  std::string name(int u) const { return fmt::format("unit {} '{}'", u, unit(u).name); }
  template <class... Args>
  Status misuse(fmt::format_string<Args...> why, Args&&... args) const {
    return invalid_argument("rank {}: {}", comm.rank(), fmt::format(why, std::forward<Args>(args)...));
  }
  Status check_idle() const {
    if (!run_failed) return {};
    return misuse("the last run failed in the middle: call cancel_pass first, on all ranks");
  }
  Status check_unit(int u) const {
    if (u >= 0 && static_cast<size_t>(u) < plan.units().size()) return {};
    return misuse("there is no unit {}: the plan has {}", u, plan.units().size());
  }
  std::byte* buffer(int u) { return data_buffers[static_cast<size_t>(unit(u).data_buffer)].get(); }
  std::byte* grad_buffer(int u) { return grad_buffers[static_cast<size_t>(unit(u).grad_buffer)].get(); }
  int& holder_of(int u) { return holder[static_cast<size_t>(unit(u).data_buffer)]; }
  int& writer_of(int u) { return writer[static_cast<size_t>(unit(u).grad_buffer)]; }
  /// True if calls are issued to streams and return before they are done.
  bool streams() const { return device.memory() != rondo::Memory::kHost; }
  bool offloads() const { return plan.options().offload; }
  /// True if the owners keep the reduced gradients in the gradient buffer itself.
  bool sums_where_computed(int u) {
    for (const Owned& o : state(u).owned)
      if (o.grad != nullptr && o.own_grad == nullptr) return true;
    return false;
  }
  /// True if a pass gathers the parameters and releases them.
  bool releases() const {
    return plan.options().strategy == Strategy::kShardAll || plan.options().strategy == Strategy::kShardGradients;
  }
  bool sharded() const { return plan.shard_ranks() > 1; }
  bool replicated() const { return plan.options().nranks > plan.shard_ranks(); }
  uint32_t promises() const { return options.deterministic ? RONDO_PROMISE_RANK_ORDER : 0; }
  CallOptions call(TypeRow* row, uint32_t promises) const {
    CallOptions o;
    if (row->input != row->output || row->wire != row->input) o.row = row;
    o.promises = promises;
    o.stream = device.stream(Line::kCommunication);
    return o;
  }
  const Plan plan;
  Communicator& comm;
  EngineOptions options;
  const std::shared_ptr<Device> place;
  Device& device;  // holds the gathered parameters and the gradients
  Device& owner;   // holds the parts that this rank owns
  HostCalls calls;
  const size_t part;
  std::unique_ptr<Communicator> shard_group, replica_group;  // null if comm itself serves
  Communicator* shards = nullptr;
  Communicator* replicas = nullptr;
  std::optional<HostCalls> shard_calls;
  std::vector<Block> data_buffers, grad_buffers;
  std::vector<Event> released;                      // by data buffer: the compute on it is done
  Event handed_over;                                // gradients, from the compute line to the communication line
  Block staging;                                    // offload: the part being copied, on the communication line
  Block lanes;                                      // partial sums of squares; not in the plan
  std::optional<Work> last_reduction;               // on a device, if the host does not wait for it
  std::vector<int> holder, writer;                  // by buffer: the unit that has it, or -1
  std::vector<uint64_t> held_since, written_since;  // by buffer, on trace_clock()
  std::vector<UnitState> states;
  Log log;
  uint64_t bytes = 0;
  int64_t steps = 0;
  bool in_step = false;
  bool run_failed = false;  // failed in the middle of a list
  bool log_ends = true;     // the next log entry begins a new step
  float scale = 1;
  Stats stats;
  std::unique_ptr<Pass> pass;
  Order order;  // of passes, if it differs from the model's
};

}  // namespace rondo::fsdp
