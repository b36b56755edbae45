#include "rondo/fsdp/plan.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/round_up.h"

namespace rondo::fsdp {
namespace {

Status bad_option(std::string_view name, int64_t value, std::string_view expected) {
  return invalid_argument("options.{} = {}: expected {}", name, value, expected);
}

Status check_options(const Options& o) {
  if (o.nranks < 1) return bad_option("nranks", o.nranks, "at least 1");
  if (o.shard_ranks < 0 || o.shard_ranks > o.nranks || (o.shard_ranks > 0 && o.nranks % o.shard_ranks != 0))
    return bad_option("shard_ranks", o.shard_ranks, fmt::format("a divisor of nranks = {}", o.nranks));
  if (o.strategy == Strategy::kReplicate && o.shard_ranks > 1)
    return bad_option("shard_ranks", o.shard_ranks, "0 or 1 where nothing is sharded (kReplicate)");
  if (o.forward_prefetch < 0) return bad_option("forward_prefetch", o.forward_prefetch, "0 or more");
  if (o.backward_prefetch < 0) return bad_option("backward_prefetch", o.backward_prefetch, "0 or more");
  if (o.data_buffers < 0) return bad_option("data_buffers", o.data_buffers, "0 or more");
  if (o.grad_buffers < 0) return bad_option("grad_buffers", o.grad_buffers, "0 or more");
  return {};
}

// Sizes of the buffers: first the shared ones, which units use in turn, then the buffers of single units.
struct Buffers {
  std::vector<uint64_t>* bytes;
  int shared = 0;  // number of shared buffers

  int take_turn(int turn, uint64_t need) {
    const int b = turn % shared;
    (*bytes)[static_cast<size_t>(b)] = std::max((*bytes)[static_cast<size_t>(b)], need);
    return b;
  }
  int add_own(uint64_t need) {
    bytes->push_back(need);
    return static_cast<int>(bytes->size()) - 1;
  }
};

bool has_gradients(const UnitPlan& u) {
  return std::ranges::any_of(u.segments, [](const Segment& s) { return s.trainable; });
}

constexpr uint64_t kAlignBytes = 64;  // alignment of a segment in a buffer: a cache line

template <class... Args>
Status wrong(const Unit& unit, const Tensor& tensor, fmt::format_string<Args...> why, Args&&... args) {
  return invalid_argument("unit '{}', tensor '{}': {}", unit.name, tensor.name,
                          fmt::format(why, std::forward<Args>(args)...));
}

Expected<uint64_t> count_elems(const Unit& unit, const Tensor& t) {
  uint64_t n = 1;
  for (const uint64_t d : t.shape)
    if (__builtin_mul_overflow(n, d, &n) || n > UINT64_MAX / 8 / 64)
      return wrong(unit, t, "its shape has more elements than memory has bytes");
  return n;
}

bool has_gradients(Dtype t) {
  return t == Dtype::kFloat64 || t == Dtype::kFloat32 || t == Dtype::kFloat16 || t == Dtype::kBfloat16;
}

// Integer tensors are buffers (positions, counters): they are never cast and have no gradients.
Expected<Segment> types_of(const Unit& unit, const Tensor& t, const Options& o) {
  Segment s;
  s.master = s.param = s.reduce = t.dtype;
  s.trainable = t.trainable;
  if (!has_gradients(t.dtype)) {
    if (t.trainable) return wrong(unit, t, "{} has no gradients: it cannot be trainable", dtype_name(t.dtype));
    return s;
  }
  s.param = o.param_dtype.value_or(t.dtype);
  s.reduce = o.reduce_dtype.value_or(s.param);
  const TypeRow gather{s.master, s.param, Dtype::kFloat32, s.param};
  const TypeRow reduce{s.param, s.reduce, Dtype::kFloat32, s.master};
  if (s.param != s.master && !row_index(gather))
    return wrong(unit, t, "{} cannot be gathered as {}", dtype_name(s.master), dtype_name(s.param));
  if (t.trainable && !(s.param == s.reduce && s.reduce == s.master) && !row_index(reduce))
    return wrong(unit, t, "gradients in {} cannot be reduced as {} into {}", dtype_name(s.param), dtype_name(s.reduce),
                 dtype_name(s.master));
  return s;
}

bool same_types(const Segment& a, const Segment& b) {
  return a.master == b.master && a.param == b.param && a.reduce == b.reduce && a.trainable == b.trainable;
}

// The allowed cut nearest to `wanted`: a boundary between rows of the tensor that contains it.
uint64_t nearest_cut(const std::vector<Placed>& placed, size_t segment, uint64_t wanted) {
  for (const Placed& p : placed) {
    if (p.segment != segment || wanted < p.offset_elems || wanted >= p.offset_elems + p.num_elems) continue;
    const uint64_t into = wanted - p.offset_elems, below = into / p.row_elems * p.row_elems;
    const uint64_t above = std::min(below + p.row_elems, p.num_elems);
    return p.offset_elems + (into - below <= above - into ? below : above);
  }
  return wanted;  // at the end of the segment
}

void cut(const std::vector<Placed>& placed, size_t index, int ranks, Segment* s) {
  uint64_t from = 0;
  for (int r = 0; r < ranks; ++r) {
    const auto n = static_cast<uint64_t>(ranks), next = static_cast<uint64_t>(r) + 1;
    const uint64_t even = s->num_elems / n * next + s->num_elems % n * next / n;
    const uint64_t to = r + 1 == ranks ? s->num_elems : std::max(from, nearest_cut(placed, index, even));
    s->offsets.push_back(from);
    s->counts.push_back(to - from);
    from = to;
  }
}

// Places the tensors of a unit in segments, and assigns rows to owners: fills tensors, placed, segments and bytes.
Expected<UnitPlan> lay_out(const Unit& unit, const Options& options) {
  UnitPlan plan;
  plan.name = unit.name;
  plan.tensors = unit.tensors;
  std::unordered_map<std::string, size_t> by_name;
  for (const Tensor& t : unit.tensors) {
    if (!by_name.emplace(t.name, plan.placed.size()).second) return wrong(unit, t, "two tensors have this name");
    RONDO_TRY_ASSIGN(const uint64_t elems, count_elems(unit, t));
    if (!t.tied_to.empty()) {
      const auto partner = by_name.find(t.tied_to);
      if (partner == by_name.end() || partner->second == plan.placed.size())
        return wrong(unit, t,
                     "it is tied to '{}', which is not an earlier tensor of this unit: tied tensors "
                     "are gathered together",
                     t.tied_to);
      const Placed at = plan.placed[partner->second];
      if (at.num_elems != elems || unit.tensors[partner->second].dtype != t.dtype)
        return wrong(unit, t, "it is tied to '{}', which has another size or type", t.tied_to);
      plan.placed.push_back(at);
      continue;
    }
    RONDO_TRY_ASSIGN(const Segment types, types_of(unit, t, options));
    auto s = std::ranges::find_if(plan.segments, [&](const Segment& o) { return same_types(o, types); });
    if (s == plan.segments.end()) s = plan.segments.insert(s, types);
    const uint64_t rows = t.shape.empty() ? 1 : t.shape[0], together = std::max<uint64_t>(1, t.rows_together);
    const uint64_t row = rows == 0 ? 1 : std::max<uint64_t>(1, elems / rows) * std::min(together, rows);
    plan.placed.push_back({static_cast<size_t>(s - plan.segments.begin()), s->num_elems, elems, row});
    s->num_elems += elems;
  }
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    Segment& s = plan.segments[i];
    cut(plan.placed, i, options.shard_ranks, &s);
    s.data_offset_bytes = plan.data_bytes;
    plan.data_bytes = round_up(plan.data_bytes + s.num_elems * dtype_bytes(s.param), kAlignBytes);
    if (!s.trainable) continue;
    s.grad_offset_bytes = plan.grad_bytes;
    plan.grad_bytes = round_up(plan.grad_bytes + s.num_elems * dtype_bytes(s.param), kAlignBytes);
  }
  return plan;
}

}  // namespace

std::string full_name(const UnitPlan& unit, const Tensor& tensor) {
  return unit.name.empty() ? tensor.name : unit.name + "." + tensor.name;
}

Expected<Plan> Plan::build(const Model& model, const Options& options) {
  RONDO_TRY(check_options(options));
  if (model.units.empty()) return invalid_argument("model.units is empty: there is nothing to train");
  Plan plan;
  plan.options_ = options;
  Options& o = plan.options_;
  if (o.shard_ranks == 0) o.shard_ranks = o.nranks;
  if (o.strategy == Strategy::kReplicate) o.shard_ranks = 1;
  if (o.data_buffers == 0)
    o.data_buffers =
        1 + std::max(o.forward_prefetch, o.backward_order == BackwardPrefetch::kPre ? o.backward_prefetch : 0);
  if (o.grad_buffers == 0) o.grad_buffers = 2;

  const bool whole_parameters = o.strategy != Strategy::kShardAll;
  const bool whole_gradients = o.strategy == Strategy::kReplicate || o.strategy == Strategy::kShardOptimizer;
  auto encloses = [&](size_t i) { return model.units[i].encloses || (model.has_root && i == 0); };
  int takers = 0;
  for (size_t i = 0; i < model.units.size(); ++i) takers += !encloses(i);
  Buffers data{&plan.data_buffer_bytes_}, grad{&plan.grad_buffer_bytes_};
  if (!whole_parameters) data.shared = std::min(o.data_buffers, takers);
  if (!whole_gradients) grad.shared = std::min(o.grad_buffers, takers);
  plan.data_buffer_bytes_.resize(static_cast<size_t>(data.shared));
  plan.grad_buffer_bytes_.resize(static_cast<size_t>(grad.shared));
  int turn = 0, grad_turn = 0;
  for (size_t i = 0; i < model.units.size(); ++i) {
    RONDO_TRY_ASSIGN(UnitPlan u, lay_out(model.units[i], o));
    u.resident = encloses(i) || whole_parameters;
    u.data_buffer = u.resident ? data.add_own(u.data_bytes) : data.take_turn(turn++, u.data_bytes);
    u.keeps_grads = encloses(i) || whole_gradients;
    if (has_gradients(u))
      u.grad_buffer = u.keeps_grads ? grad.add_own(u.grad_bytes) : grad.take_turn(grad_turn++, u.grad_bytes);
    plan.units_.push_back(std::move(u));
  }
  return plan;
}

Memory Plan::memory(Rank r) const {
  const auto part = static_cast<size_t>(r % options_.shard_ranks);
  Memory m;
  for (const UnitPlan& u : units_) {
    for (const Segment& s : u.segments) {
      const uint64_t owned = s.counts[part], bytes = owned * dtype_bytes(s.master);
      const bool one_type = s.param == s.master;
      if (!u.resident || !one_type || options_.offload) m.master += bytes;  // else they are in the buffer
      if (options_.offload && (s.trainable || !one_type)) m.staging = std::max(m.staging, bytes);
      if (!s.trainable) continue;
      if (options_.shard_ranks > 1 || !one_type || !u.keeps_grads || options_.offload)
        m.grads += bytes;  // else they stay where they were computed
      m.optimizer += owned * options_.optimizer_bytes;
    }
  }
  if (options_.offload) m.host = m.master + m.grads + m.optimizer;
  for (const uint64_t b : data_buffer_bytes_) m.data_buffers += b;
  for (const uint64_t b : grad_buffer_bytes_) m.grad_buffers += b;
  return m;
}

std::vector<Communication> Plan::communications(Rank r, const std::vector<Action>& actions) const {
  const auto part = static_cast<size_t>(r % options_.shard_ranks);
  const bool sharded = options_.shard_ranks > 1, replicated = options_.nranks > options_.shard_ranks;
  std::vector<Communication> all;
  for (const Action& a : actions) {
    if (a.act != Act::kGather && a.act != Act::kReduce) continue;
    const UnitPlan& u = units_[static_cast<size_t>(a.unit)];
    for (size_t i = 0; i < u.segments.size(); ++i) {
      const Segment& s = u.segments[i];
      const bool gather = a.act == Act::kGather;
      if (s.num_elems == 0 || (!gather && !s.trainable)) continue;
      const uint64_t bytes = dtype_bytes(gather ? s.param : s.reduce), owned = s.counts[part];
      if (sharded)
        all.push_back(
            {a.act, a.unit, i, gather ? "all_gather" : "reduce_scatter", false, owned * bytes, s.num_elems * bytes});
      if (replicated && !gather) all.push_back({a.act, a.unit, i, "all_reduce", true, owned * bytes, owned * bytes});
    }
  }
  return all;
}

uint64_t Plan::hash() const {
  std::string text = describe();
  for (const UnitPlan& u : units_) {
    for (const Tensor& t : u.tensors) {
      text += fmt::format("|{} {} {} {} {}", t.name, dtype_name(t.dtype), t.trainable, t.rows_together, t.tied_to);
      for (const uint64_t d : t.shape) text += fmt::format(" {}", d);
    }
    for (const Segment& s : u.segments) {
      text += fmt::format("|{} {} {}", dtype_name(s.master), dtype_name(s.param), dtype_name(s.reduce));
      for (const uint64_t n : s.counts) text += fmt::format(" {}", n);
    }
  }
  uint64_t h = 0xcbf29ce484222325;
  for (const char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return h;
}

}  // namespace rondo::fsdp
