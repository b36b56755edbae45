#include "fsdp/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace rondo::fsdp {
namespace {

constexpr uint64_t kAlignBytes = 64;  // alignment of a segment in a buffer: a cache line

uint64_t aligned(uint64_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }

Status wrong(const Unit& unit, const Tensor& tensor, const std::string& why) {
  return Status(StatusCode::kInvalidArgument, fmt::format("unit '{}', tensor '{}': {}", unit.name, tensor.name, why));
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
    if (t.trainable)
      return wrong(unit, t, fmt::format("{} has no gradients: it cannot be trainable", dtype_name(t.dtype)));
    return s;
  }
  s.param = o.param_dtype.value_or(t.dtype);
  s.reduce = o.reduce_dtype.value_or(s.param);
  const TypeRow gather{s.master, s.param, Dtype::kFloat32, s.param};
  const TypeRow reduce{s.param, s.reduce, Dtype::kFloat32, s.master};
  if (s.param != s.master && !row_index(gather))
    return wrong(unit, t, fmt::format("{} cannot be gathered as {}", dtype_name(s.master), dtype_name(s.param)));
  if (t.trainable && !(s.param == s.reduce && s.reduce == s.master) && !row_index(reduce))
    return wrong(unit, t,
                 fmt::format("gradients in {} cannot be reduced as {} into {}", dtype_name(s.param),
                             dtype_name(s.reduce), dtype_name(s.master)));
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

}  // namespace

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
                     fmt::format("it is tied to '{}', which is not an earlier tensor of this unit: tied tensors "
                                 "are gathered together",
                                 t.tied_to));
      const Placed at = plan.placed[partner->second];
      if (at.num_elems != elems || unit.tensors[partner->second].dtype != t.dtype)
        return wrong(unit, t, fmt::format("it is tied to '{}', which has another size or type", t.tied_to));
      plan.placed.push_back(at);
      continue;
    }
    RONDO_TRY_ASSIGN(const Segment types, types_of(unit, t, options));
    auto s = std::find_if(plan.segments.begin(), plan.segments.end(),
                          [&](const Segment& o) { return same_types(o, types); });
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
    plan.data_bytes = aligned(plan.data_bytes + s.num_elems * dtype_bytes(s.param));
    if (!s.trainable) continue;
    s.grad_offset_bytes = plan.grad_bytes;
    plan.grad_bytes = aligned(plan.grad_bytes + s.num_elems * dtype_bytes(s.param));
  }
  return plan;
}

}  // namespace rondo::fsdp
