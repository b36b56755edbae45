// An engine's gathers and reductions (one collective for each segment of a unit), and the norm of all gradients.
#include <algorithm>
#include <cmath>
#include <numeric>

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

Status Engine::Impl::line_error() const {
  if (!streams()) return {};
  RONDO_TRY(shards->error());
  return replicas->error();
}

Status Engine::Impl::settled() {
  if (last_reduction) RONDO_TRY(last_reduction->wait());
  return line_error();
}

Status Engine::Impl::gather_segment(int u, size_t i) {
  const Segment& s = unit(u).segments[i];
  std::byte* const to = buffer(u) + s.data_offset_bytes;
  const Owned& o = state(u).owned[i];
  if (s.num_elems == 0 || (!sharded() && o.master == to)) return {};
  const bool one_type = s.param == s.master;
  const std::byte* from = o.master;
  if (offloads()) {  // copy to its final place, or to the staging buffer from which the gather casts it
    std::byte* const at = one_type ? to + s.offsets[part] * dtype_bytes(s.param) : staging.get();
    RONDO_TRY(device.copy(Line::kCommunication, at, o.master, s.counts[part] * dtype_bytes(s.master)));
    if (!sharded() && one_type) return {};
    from = at;
  }
  TypeRow row{s.master, s.param, Dtype::kFloat32, s.param};
  const CallOptions how = call(&row, 0);
  Work work;
  RONDO_TRY(
      shards->all_gather_v(from, to, s.counts.data(), s.offsets.data(), s.master, &how, streams() ? nullptr : &work));
  if (!streams()) state(u).gathers.push_back(std::move(work));
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
  const uint64_t owned = s.counts[part], wire = dtype_bytes(s.reduce), size = owned * dtype_bytes(s.master);
  TypeRow row{s.param, s.reduce, Dtype::kFloat32, s.master};
  const CallOptions how = call(&row, promises());
  if (st.has_sum && o.sum == nullptr) {
    RONDO_TRY_ASSIGN(o.sum, allocate(owner, size));
    bytes += size;
  }
  std::byte* const home = st.has_sum ? o.sum.get() : o.grad;
  std::byte* const to = offloads() ? staging.get() : home;
  Work work;
  if (sharded()) {
    RONDO_TRY(shards->reduce_scatter_v(from, to, s.counts.data(), s.offsets.data(), s.param, Op::kAvg, &how, &work));
    note({Act::kReduce, u, i, "reduce_scatter", false, owned * wire, s.num_elems * wire});
  } else {
    RONDO_TRY(replicas->all_reduce(from, to, s.num_elems, s.param, Op::kAvg, &how, &work));
  }
  if (replicated()) note({Act::kReduce, u, i, "all_reduce", true, owned * wire, owned * wire});
  if (streams() && sharded() && replicated()) RONDO_TRY(reduce_across(u, i, &work));
  // The host waits only for results that it uses. Of the other reductions it keeps the last, to report its status.
  if (streams() && !offloads()) last_reduction = std::move(work);
  else st.reductions.push_back(std::move(work));
  return offloads() ? device.copy(Line::kCommunication, home, to, size) : Status();
}

// Hybrid sharding: owners of the same part add the sums of their groups.
Status Engine::Impl::reduce_across(int u, size_t i, Work* work) {
  UnitState& st = state(u);
  const Segment& s = unit(u).segments[i];
  const uint64_t owned = s.counts[part];
  if (!s.trainable || owned == 0) return {};
  std::byte* at = st.has_sum ? st.owned[i].sum.get() : st.owned[i].grad;
  if (offloads()) at = staging.get();
  TypeRow row{s.master, s.reduce, Dtype::kFloat32, s.master};
  const CallOptions how = call(&row, promises());
  return replicas->all_reduce(at, at, owned, s.master, Op::kAvg, &how, work);
}

Status Engine::Impl::reduce_across(int u) {
  for (size_t i = 0; i < unit(u).segments.size(); ++i) RONDO_TRY(reduce_across(u, i, nullptr));
  return {};
}

Status Engine::Impl::add_sum(int u) {
  for (size_t i = 0; i < unit(u).segments.size(); ++i) {
    const Segment& s = unit(u).segments[i];
    Owned& o = state(u).owned[i];
    if (s.trainable && o.sum != nullptr)
      RONDO_TRY(
          owner.add(s.counts[part], reinterpret_cast<float*>(o.grad), reinterpret_cast<const float*>(o.sum.get())));
  }
  return {};
}

// For a caller's own optimizer.
Status Engine::Impl::scale_grads() {
  const float by = std::exchange(scale, 1.0f);
  if (by == 1) return {};
  for (const Part& p : parts())
    if (p.grad != nullptr) RONDO_TRY(owner.scale(p.num_elems, by, p.grad));
  return {};
}

Status Engine::Impl::mark_changed() {
  for (UnitState& s : states) RONDO_TRY(device.record(s.changed.get(), Line::kCompute));
  return {};
}

Expected<double> Engine::grad_norm() {
  Impl& e = *impl_;
  RONDO_TRY(e.make_lanes());
  auto* const lanes = reinterpret_cast<double*>(e.lanes.get());
  RONDO_TRY(e.owner.zero(lanes, kNormLanes * sizeof(double)));
  uint64_t used = 0;
  for (size_t u = 0; u < e.states.size(); ++u)
    for (size_t i = 0; i < e.plan.units()[u].segments.size(); ++i) {
      const Segment& s = e.plan.units()[u].segments[i];
      if (!s.trainable || !e.states[u].has_sum) continue;
      const uint64_t owned = s.counts[e.part];
      RONDO_TRY(e.owner.add_squares(owned, reinterpret_cast<const float*>(e.states[u].owned[i].grad), lanes));
      used = std::max(used, std::min<uint64_t>(owned, kNormLanes));
    }
  std::vector<double> sums(used);
  RONDO_TRY(e.owner.read(sums.data(), lanes, used * sizeof(double)));
  double square = std::accumulate(sums.begin(), sums.end(), 0.0);
  RONDO_TRY(e.shard_calls->all_reduce(&square, 1, Dtype::kFloat64, Op::kSum, e.promises()));
  return std::sqrt(square);
}

Status Engine::clip_grad_norm(double most) {
  RONDO_TRY_ASSIGN(const double norm, grad_norm());
  impl_->scale = norm > most ? static_cast<float>(most / (norm + 1e-6)) : 1;
  return {};
}

}  // namespace rondo::fsdp
