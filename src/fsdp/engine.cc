#include "rondo/fsdp/engine.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace rondo::fsdp {
namespace {

struct Freed {
  void operator()(std::byte* p) const { ::free(p); }
};
using Block = std::unique_ptr<std::byte, Freed>;

Expected<Block> allocate(uint64_t bytes) {
  const uint64_t whole = std::max<uint64_t>(64, (bytes + 63) / 64 * 64);
  Block block(static_cast<std::byte*>(::aligned_alloc(64, whole)));
  if (block == nullptr) return Status(StatusCode::kSystem, fmt::format("no memory for {} bytes of a unit", bytes));
  std::memset(block.get(), 0, whole);
  return block;
}

// Of one segment, on this rank.
struct Owned {
  std::byte* master = nullptr;  // own, or its part of the unit's buffer
  std::byte* grad = nullptr;    // reduced, in the master's type: own, or where it was computed
  Block own_master, own_grad;
  Block sum;                  // of a later micro-batch, until it is added
  std::vector<Block> states;  // the optimizer's
};

enum class Where : uint8_t { kAway, kComing, kHere };

struct UnitState {
  std::vector<Owned> owned;  // by segment
  std::vector<Work> gathers, reductions;
  Where where = Where::kAway;
  bool writing = false;  // its gradients may be written
  bool reducing = false;
  bool has_sum = false;    // owners have gradients of an earlier micro-batch
  bool whole_sum = false;  // so has the whole buffer
};

}  // namespace

class Engine::Impl {
 public:
  Impl(const Plan& plan, Communicator& comm, const EngineOptions& options)
      : plan(plan), comm(comm), options(options), part(static_cast<size_t>(comm.rank() % plan.shard_ranks())) {}
  ~Impl();

  Status open();
  Status agree();
  Status make_groups();
  Status make_unit(size_t u);
  Status gather_segment(int u, size_t s);
  Status reduce_segment(int u, size_t s);
  Status reduce_across(int u);
  void add_sum(int u);

  UnitState& state(int u) { return states[static_cast<size_t>(u)]; }
  const UnitPlan& unit(int u) const { return plan.units()[static_cast<size_t>(u)]; }
  std::string name(int u) const { return fmt::format("unit {} '{}'", u, unit(u).name); }
  Status misuse(std::string why) const {
    return Status(StatusCode::kInvalidArgument, fmt::format("rank {}: {}", comm.rank(), why));
  }
  Status check_unit(int u) const {
    if (u >= 0 && static_cast<size_t>(u) < plan.units().size()) return {};
    return misuse(fmt::format("there is no unit {}: the plan has {}", u, plan.units().size()));
  }
  std::byte* buffer(int u) { return data_buffers[static_cast<size_t>(unit(u).data_buffer)].get(); }
  std::byte* grad_buffer(int u) { return grad_buffers[static_cast<size_t>(unit(u).grad_buffer)].get(); }
  int& holder_of(int u) { return holder[static_cast<size_t>(unit(u).data_buffer)]; }
  int& writer_of(int u) { return writer[static_cast<size_t>(unit(u).grad_buffer)]; }
  bool sharded() const { return plan.shard_ranks() > 1; }
  bool replicated() const { return plan.options().nranks > plan.shard_ranks(); }
  CallOptions call(TypeRow* row) const {
    CallOptions o;
    if (row->input != row->output || row->wire != row->input) o.row = row;
    if (options.deterministic) o.promises = RONDO_PROMISE_RANK_ORDER;
    return o;
  }
  template <class F>
  void each_stretch(F&& use) const;

  const Plan plan;
  Communicator& comm;
  const EngineOptions options;
  const size_t part;
  std::unique_ptr<Communicator> shard_group, replica_group;  // where they are not comm itself
  Communicator* shards = nullptr;
  Communicator* replicas = nullptr;
  std::vector<Block> data_buffers, grad_buffers;
  std::vector<int> holder, writer;  // by buffer: the unit that has it, or -1
  std::vector<UnitState> states;
  Log log;
  uint64_t bytes = 0;
  int64_t steps = 0;
  bool in_step = false;
  float scale = 1;
};

// Nothing may write to buffers that are gone.
Engine::Impl::~Impl() {
  for (UnitState& s : states) {
    for (Work& w : s.gathers) (void)w.wait();
    for (Work& w : s.reductions) (void)w.wait();
  }
}

Status Engine::Impl::agree() {
  const uint64_t mine = plan.hash();
  std::vector<uint64_t> all(static_cast<size_t>(comm.size()));
  RONDO_TRY(comm.all_gather(&mine, all.data(), 1, Dtype::kUint64));
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r] != mine)
      return Status(StatusCode::kMismatch, fmt::format("rank {}: rank {} has another plan: model and options must be "
                                                       "equal on all ranks",
                                                       comm.rank(), r));
  return {};
}

// Ranks of a shard group are neighbours, a rank alone where nothing is sharded; replicas have the same place in theirs.
Status Engine::Impl::make_groups() {
  const int n = plan.shard_ranks();
  shards = replicas = &comm;
  if (replicated()) {
    RONDO_TRY_ASSIGN(shard_group, comm.split(comm.rank() / n, comm.rank()));
    shards = shard_group.get();
  }
  if (replicated() && sharded()) {
    RONDO_TRY_ASSIGN(replica_group, comm.split(comm.rank() % n, comm.rank()));
    replicas = replica_group.get();
  }
  return {};
}

Status Engine::Impl::open() {
  if (comm.size() != plan.options().nranks)
    return misuse(fmt::format("comm has {} ranks, the plan is for {}", comm.size(), plan.options().nranks));
  RONDO_TRY(check_optimizer(options.optimizer));
  RONDO_TRY(agree());
  RONDO_TRY(make_groups());
  for (int b = 0; b < plan.num_data_buffers(); ++b) {
    RONDO_TRY_ASSIGN(Block block, allocate(plan.data_buffer_bytes(b)));
    data_buffers.push_back(std::move(block));
    bytes += plan.data_buffer_bytes(b);
  }
  for (int b = 0; b < plan.num_grad_buffers(); ++b) {
    RONDO_TRY_ASSIGN(Block block, allocate(plan.grad_buffer_bytes(b)));
    grad_buffers.push_back(std::move(block));
    bytes += plan.grad_buffer_bytes(b);
  }
  holder.assign(data_buffers.size(), -1);
  writer.assign(grad_buffers.size(), -1);
  states.resize(plan.units().size());
  for (size_t u = 0; u < states.size(); ++u) RONDO_TRY(make_unit(u));
  return {};
}

Status Engine::Impl::make_unit(size_t u) {
  const UnitPlan& p = plan.units()[u];
  for (const Segment& s : p.segments) {
    if (s.trainable && s.master != Dtype::kFloat32)
      return Status(StatusCode::kUnsupported, fmt::format("rank {}: unit '{}': what is trained must be owned as float, "
                                                          "not {}",
                                                          comm.rank(), p.name, dtype_name(s.master)));
    Owned o;
    const uint64_t owned = s.counts[part], size = owned * dtype_bytes(s.master);
    const bool one_type = s.param == s.master;
    auto own = [&](Block* block, std::byte** at, uint64_t need) -> Status {
      RONDO_TRY_ASSIGN(*block, allocate(need));
      *at = block->get();
      bytes += need;
      return {};
    };
    if (p.resident && one_type)
      o.master = data_buffers[static_cast<size_t>(p.data_buffer)].get() + s.data_offset_bytes +
                 s.offsets[part] * dtype_bytes(s.param);
    else RONDO_TRY(own(&o.own_master, &o.master, size));
    if (s.trainable) {
      if (sharded() || !one_type || !p.keeps_grads) RONDO_TRY(own(&o.own_grad, &o.grad, size));
      else o.grad = grad_buffers[static_cast<size_t>(p.grad_buffer)].get() + s.grad_offset_bytes;
      for (int i = 0; i < optimizer_states(options.optimizer); ++i) {
        std::byte* at;
        RONDO_TRY(own(&o.states.emplace_back(), &at, owned * sizeof(float)));
      }
    }
    states[u].owned.push_back(std::move(o));
  }
  return {};
}

// The stretches of tensors that this rank owns.
template <class F>
void Engine::Impl::each_stretch(F&& use) const {
  for (size_t u = 0; u < states.size(); ++u) {
    const UnitPlan& p = plan.units()[u];
    for (size_t t = 0; t < p.tensors.size(); ++t) {
      if (!p.tensors[t].tied_to.empty()) continue;
      const Placed& at = p.placed[t];
      const Segment& s = p.segments[at.segment];
      const uint64_t begin = s.offsets[part], end = begin + s.counts[part];
      const uint64_t from = std::max(begin, at.offset_elems), to = std::min(end, at.offset_elems + at.num_elems);
      if (from < to)
        use(p.tensors[t], from - at.offset_elems, to - from,
            states[u].owned[at.segment].master + (from - begin) * dtype_bytes(s.master));
    }
  }
}

Status Engine::Impl::gather_segment(int u, size_t i) {
  const Segment& s = unit(u).segments[i];
  std::byte* to = buffer(u) + s.data_offset_bytes;
  const Owned& o = state(u).owned[i];
  if (s.num_elems == 0 || (!sharded() && o.master == to)) return {};
  TypeRow row{s.master, s.param, Dtype::kFloat32, s.param};
  CallOptions options_of_call;
  if (s.param != s.master) options_of_call.row = &row;
  Work work;
  RONDO_TRY(shards->all_gather_v(o.master, to, s.counts.data(), s.offsets.data(), s.master, &options_of_call, &work));
  state(u).gathers.push_back(std::move(work));
  if (sharded())
    log.push_back({Act::kGather, u, i, "all_gather", false, s.counts[part] * dtype_bytes(s.param),
                   s.num_elems * dtype_bytes(s.param)});
  return {};
}

Status Engine::Impl::reduce_segment(int u, size_t i) {
  const Segment& s = unit(u).segments[i];
  if (s.num_elems == 0 || !s.trainable) return {};
  UnitState& st = state(u);
  Owned& o = st.owned[i];
  std::byte* from = grad_buffer(u) + s.grad_offset_bytes;
  const uint64_t owned = s.counts[part], wire = dtype_bytes(s.reduce);
  TypeRow row{s.param, s.reduce, Dtype::kFloat32, s.master};
  const CallOptions how = call(&row);
  std::byte* to = o.grad;
  if (st.has_sum) {
    if (o.sum == nullptr) {
      RONDO_TRY_ASSIGN(o.sum, allocate(owned * dtype_bytes(s.master)));
      bytes += owned * dtype_bytes(s.master);
    }
    to = o.sum.get();
  }
  Work work;
  if (sharded()) {
    RONDO_TRY(shards->reduce_scatter_v(from, to, s.counts.data(), s.offsets.data(), s.param, Op::kAvg, &how, &work));
    log.push_back({Act::kReduce, u, i, "reduce_scatter", false, owned * wire, s.num_elems * wire});
    if (replicated()) log.push_back({Act::kReduce, u, i, "all_reduce", true, owned * wire, owned * wire});
  } else {
    RONDO_TRY(replicas->all_reduce(from, to, s.num_elems, s.param, Op::kAvg, &how, &work));
    if (replicated()) log.push_back({Act::kReduce, u, i, "all_reduce", true, owned * wire, owned * wire});
  }
  st.reductions.push_back(std::move(work));
  return {};
}

// Hybrid: owners of the same part add what their groups have.
Status Engine::Impl::reduce_across(int u) {
  UnitState& st = state(u);
  for (size_t i = 0; i < unit(u).segments.size(); ++i) {
    const Segment& s = unit(u).segments[i];
    const uint64_t owned = s.counts[part];
    if (!s.trainable || owned == 0) continue;
    std::byte* at = st.has_sum ? st.owned[i].sum.get() : st.owned[i].grad;
    TypeRow row{s.master, s.reduce, Dtype::kFloat32, s.master};
    const CallOptions how = call(&row);
    RONDO_TRY(replicas->all_reduce(at, at, owned, s.master, Op::kAvg, &how));
  }
  return {};
}

void Engine::Impl::add_sum(int u) {
  for (size_t i = 0; i < unit(u).segments.size(); ++i) {
    const Segment& s = unit(u).segments[i];
    Owned& o = state(u).owned[i];
    if (!s.trainable || o.sum == nullptr) continue;
    auto* to = reinterpret_cast<float*>(o.grad);
    const auto* from = reinterpret_cast<const float*>(o.sum.get());
    for (uint64_t e = 0; e < s.counts[part]; ++e) to[e] += from[e];
  }
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;
const Plan& Engine::plan() const { return impl_->plan; }
const Log& Engine::log() const { return impl_->log; }
void Engine::clear_log() { impl_->log.clear(); }
uint64_t Engine::owned_bytes() const { return impl_->bytes; }

Expected<std::unique_ptr<Engine>> Engine::create(const Plan& plan, Communicator& comm, const EngineOptions& options) {
  auto impl = std::make_unique<Impl>(plan, comm, options);
  RONDO_TRY(impl->open());
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

// Where parameters are always here, they are gathered once now.
Status Engine::init(const Fill& fill) {
  impl_->each_stretch([&](const Tensor& t, uint64_t first, uint64_t n, std::byte* at) { fill(t, first, n, at); });
  const Strategy s = impl_->plan.options().strategy;
  if (s != Strategy::kReplicate && s != Strategy::kShardOptimizer) return {};
  const int num_units = static_cast<int>(impl_->states.size());
  for (int u = 0; u < num_units; ++u) RONDO_TRY(gather(u));
  for (int u = 0; u < num_units; ++u) RONDO_TRY(wait_gather(u));
  return {};
}

Status Engine::read_owned(const Read& read) const {
  impl_->each_stretch([&](const Tensor& t, uint64_t first, uint64_t n, const std::byte* at) { read(t, first, n, at); });
  return {};
}

void* Engine::data(int u, size_t tensor) {
  if (!impl_->check_unit(u).ok() || tensor >= impl_->unit(u).placed.size()) return nullptr;
  if (impl_->state(u).where != Where::kHere) return nullptr;
  const Placed& at = impl_->unit(u).placed[tensor];
  const Segment& s = impl_->unit(u).segments[at.segment];
  return impl_->buffer(u) + s.data_offset_bytes + at.offset_elems * dtype_bytes(s.param);
}

void* Engine::grad(int u, size_t tensor) {
  if (!impl_->check_unit(u).ok() || tensor >= impl_->unit(u).placed.size()) return nullptr;
  if (!impl_->state(u).writing) return nullptr;
  const Placed& at = impl_->unit(u).placed[tensor];
  const Segment& s = impl_->unit(u).segments[at.segment];
  if (!s.trainable) return nullptr;
  return impl_->grad_buffer(u) + s.grad_offset_bytes + at.offset_elems * dtype_bytes(s.param);
}

Status Engine::gather(int u) {
  RONDO_TRY(impl_->check_unit(u));
  UnitState& s = impl_->state(u);
  int& held = impl_->holder_of(u);
  if (held >= 0 && held != u)
    return impl_->misuse(fmt::format("{} cannot be gathered: {} has its buffer and was not released", impl_->name(u),
                                     impl_->name(held)));
  if (s.where == Where::kComing) return {};
  held = u;
  s.where = Where::kComing;
  for (size_t i = 0; i < impl_->unit(u).segments.size(); ++i) RONDO_TRY(impl_->gather_segment(u, i));
  return {};
}

Status Engine::wait_gather(int u) {
  RONDO_TRY(impl_->check_unit(u));
  UnitState& s = impl_->state(u);
  if (s.where == Where::kAway)
    return impl_->misuse(fmt::format("{} is waited for, and was not gathered", impl_->name(u)));
  for (Work& w : s.gathers) RONDO_TRY(w.wait());
  s.gathers.clear();
  s.where = Where::kHere;
  return {};
}

Status Engine::release(int u) {
  RONDO_TRY(impl_->check_unit(u));
  UnitState& s = impl_->state(u);
  if (s.where != Where::kHere) return impl_->misuse(fmt::format("{} is released, and is not here", impl_->name(u)));
  s.where = Where::kAway;
  impl_->holder_of(u) = -1;
  return {};
}

Status Engine::begin_grads(int u) {
  RONDO_TRY(impl_->check_unit(u));
  if (impl_->unit(u).grad_buffer < 0) return {};
  UnitState& s = impl_->state(u);
  int& has = impl_->writer_of(u);
  if (s.reducing || (has >= 0 && has != u))
    return impl_->misuse(
        fmt::format("gradients of {} cannot be written: those of {} are in the buffer, and their reduction "
                    "was not waited for",
                    impl_->name(u), impl_->name(has >= 0 ? has : u)));
  has = u;
  s.writing = true;
  if (!s.whole_sum) std::memset(impl_->grad_buffer(u), 0, impl_->unit(u).grad_bytes);
  s.whole_sum = impl_->unit(u).keeps_grads;
  return {};
}

Status Engine::reduce(int u) {
  RONDO_TRY(impl_->check_unit(u));
  if (impl_->unit(u).grad_buffer < 0) return {};
  UnitState& s = impl_->state(u);
  if (!s.writing)
    return impl_->misuse(fmt::format("{} is reduced, and has no gradients: call begin_grads first", impl_->name(u)));
  s.writing = false;
  s.whole_sum = false;
  s.reducing = true;
  for (size_t i = 0; i < impl_->unit(u).segments.size(); ++i) RONDO_TRY(impl_->reduce_segment(u, i));
  return {};
}

Status Engine::wait_reduce(int u) {
  RONDO_TRY(impl_->check_unit(u));
  if (impl_->unit(u).grad_buffer < 0) return {};
  UnitState& s = impl_->state(u);
  if (!s.reducing)
    return impl_->misuse(fmt::format("the reduction of {} is waited for, and is not under way", impl_->name(u)));
  for (Work& w : s.reductions) RONDO_TRY(w.wait());
  s.reductions.clear();
  if (impl_->sharded() && impl_->replicated()) RONDO_TRY(impl_->reduce_across(u));
  if (s.has_sum) impl_->add_sum(u);
  s.has_sum = true;
  s.reducing = false;
  impl_->writer_of(u) = -1;
  return {};
}

Status Engine::step(int u) {
  RONDO_TRY(impl_->check_unit(u));
  UnitState& s = impl_->state(u);
  if (impl_->unit(u).grad_buffer < 0) return {};
  if (s.reducing || s.writing)
    return impl_->misuse(fmt::format("{} is changed before its gradients are reduced", impl_->name(u)));
  if (!impl_->in_step) ++impl_->steps;
  impl_->in_step = true;
  for (size_t i = 0; i < impl_->unit(u).segments.size(); ++i) {
    const Segment& seg = impl_->unit(u).segments[i];
    if (!seg.trainable) continue;
    Owned& o = s.owned[i];
    float* states[2] = {};
    for (size_t k = 0; k < o.states.size(); ++k) states[k] = reinterpret_cast<float*>(o.states[k].get());
    optimizer_step(impl_->options.optimizer, impl_->steps, impl_->scale, seg.counts[impl_->part],
                   reinterpret_cast<float*>(o.master), reinterpret_cast<const float*>(o.grad), states);
  }
  return {};
}

Status Engine::finish_step() {
  for (size_t u = 0; u < impl_->states.size(); ++u) {
    UnitState& s = impl_->states[u];
    if (s.reducing)
      return impl_->misuse(fmt::format("the step ends while {} is being reduced", impl_->name(static_cast<int>(u))));
    s.writing = s.has_sum = s.whole_sum = false;
  }
  std::fill(impl_->writer.begin(), impl_->writer.end(), -1);
  impl_->in_step = false;
  impl_->scale = 1;
  return {};
}

Status Engine::run(const std::vector<Action>& actions, const Compute& compute) {
  bool stepped = false;
  for (const auto& [act, u] : actions) {
    switch (act) {
      case Act::kGather: RONDO_TRY(gather(u)); break;
      case Act::kWaitGather: RONDO_TRY(wait_gather(u)); break;
      case Act::kForward: RONDO_TRY(compute(act, u)); break;
      case Act::kRelease: RONDO_TRY(release(u)); break;
      case Act::kBackward:
        RONDO_TRY(begin_grads(u));
        RONDO_TRY(compute(act, u));
        break;
      case Act::kReduce: RONDO_TRY(reduce(u)); break;
      case Act::kWaitReduce: RONDO_TRY(wait_reduce(u)); break;
      case Act::kStep:
        if (!stepped && impl_->options.clip_norm > 0) RONDO_TRY(clip_grad_norm(impl_->options.clip_norm));
        stepped = true;
        RONDO_TRY(step(u));
        break;
    }
  }
  return stepped ? finish_step() : Status();
}

Expected<double> Engine::grad_norm() {
  double square = 0;
  for (size_t u = 0; u < impl_->states.size(); ++u)
    for (size_t i = 0; i < impl_->plan.units()[u].segments.size(); ++i) {
      const Segment& s = impl_->plan.units()[u].segments[i];
      const auto* g = reinterpret_cast<const float*>(impl_->states[u].owned[i].grad);
      for (uint64_t e = 0; s.trainable && e < s.counts[impl_->part]; ++e)
        square += static_cast<double>(g[e]) * static_cast<double>(g[e]);
    }
  RONDO_TRY(impl_->shards->all_reduce(&square, &square, 1, Dtype::kFloat64, Op::kSum));
  return std::sqrt(square);
}

Status Engine::clip_grad_norm(double most) {
  RONDO_TRY_ASSIGN(const double norm, grad_norm());
  impl_->scale = norm > most ? static_cast<float>(most / (norm + 1e-6)) : 1;
  return {};
}

}  // namespace rondo::fsdp
