// An engine's gathers and reductions: one collective for each segment of a unit, and the norm of all gradients.
#include <cmath>

#include "fsdp/engine_impl.h"
#include "fsdp/pass.h"

namespace rondo::fsdp {

void Engine::Impl::note(const Communication& c) {
  if (std::exchange(log_ends, false)) log.clear();
  log.push_back(c);
  stats.payload_bytes += c.payload_bytes;
}

void Engine::Impl::span(std::string track, std::string_view what, int u, uint64_t begin) {
  if (!is_traced(comm)) return;
  trace_span(comm, {"fsdp " + track, fmt::format("{}{}", what, unit(u).name), begin, trace_clock()});
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
    note({Act::kGather, u, i, "all_gather", false, s.counts[part] * dtype_bytes(s.param),
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
    note({Act::kReduce, u, i, "reduce_scatter", false, owned * wire, s.num_elems * wire});
    if (replicated()) note({Act::kReduce, u, i, "all_reduce", true, owned * wire, owned * wire});
  } else {
    RONDO_TRY(replicas->all_reduce(from, to, s.num_elems, s.param, Op::kAvg, &how, &work));
    if (replicated()) note({Act::kReduce, u, i, "all_reduce", true, owned * wire, owned * wire});
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

// For an optimizer that is not the engine's.
void Engine::Impl::scale_grads() {
  for (const Part& p : parts())
    for (uint64_t e = 0; p.grad != nullptr && scale != 1 && e < p.num_elems; ++e) p.grad[e] *= scale;
  scale = 1;
}

Expected<double> Engine::grad_norm() {
  double square = 0;
  for (size_t u = 0; u < impl_->states.size(); ++u)
    for (size_t i = 0; i < impl_->plan.units()[u].segments.size(); ++i) {
      const Segment& s = impl_->plan.units()[u].segments[i];
      const auto* g = reinterpret_cast<const float*>(impl_->states[u].owned[i].grad);
      const bool counts = s.trainable && impl_->states[u].has_sum;
      for (uint64_t e = 0; counts && e < s.counts[impl_->part]; ++e)
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
