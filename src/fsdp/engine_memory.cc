// Allocations of an engine, made once, and the parts of tensors that its rank owns.
#include <algorithm>

#include "base/error.h"
#include "fsdp/engine_impl.h"
#include "fsdp/pass.h"

namespace rondo::fsdp {

// Waits for all writers of the buffers before they are freed.
Engine::Impl::~Impl() {
  for (UnitState& s : states) {
    for (Work& w : s.gathers) (void)w.wait();
    for (Work& w : s.reductions) (void)w.wait();
  }
  (void)device.synchronize(Line::kCommunication);
  (void)device.synchronize(Line::kCompute);
}

Expected<Event> Engine::Impl::make_event() {
  RONDO_TRY_ASSIGN(Device::Event * made, device.make_event());
  return Event(made, DestroyEvent{&device});
}

Status Engine::Impl::agree() {
  const OptimizerConfig& o = options.optimizer;
  const std::string text =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", static_cast<int>(o.rule), o.lr, o.weight_decay, o.momentum,
                  o.dampening, o.nesterov, o.beta1, o.beta2, o.rho, o.eps, options.deterministic, options.clip_norm);
  uint64_t mine = plan.hash();
  for (const char c : text) mine = (mine ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  std::vector<uint64_t> all(static_cast<size_t>(comm.size()));
  RONDO_TRY(calls.all_gather(&mine, all.data(), 1, Dtype::kUint64));
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r] != mine)
      return make_error(StatusCode::kMismatch,
                        "rank {}: rank {} has a different plan or different options: both must be equal on all ranks",
                        comm.rank(), r);
  return {};
}

// A shard group has consecutive ranks (one rank without sharding). Replicas have equal positions in their groups.
Status Engine::Impl::make_groups() {
  const int n = plan.shard_ranks();
  shards = replicas = &comm;
  if (replicated()) {
    RONDO_TRY_ASSIGN(shard_group, comm.split(comm.rank() / n, comm.rank()));
    shards = shard_group.get();
  }
  shard_calls.emplace(*shards, device);
  if (replicated() && sharded()) {
    RONDO_TRY_ASSIGN(replica_group, comm.split(comm.rank() % n, comm.rank()));
    replicas = replica_group.get();
  }
  return {};
}

Status Engine::Impl::open() {
  if (comm.size() != plan.options().nranks)
    return misuse("comm has {} ranks, the plan is for {}", comm.size(), plan.options().nranks);
  RONDO_TRY(check_optimizer(options.optimizer));
  auto place_name = [](int ordinal) {
    return ordinal < 0 ? std::string("host memory") : fmt::format("CUDA device {}", ordinal);
  };
  if (const int at = device_of(comm); at != device.ordinal())
    return misuse(
        "options.device is {}, and comm's buffers lie in {}: make the communicator with Config::memory and device, and "
        "the engine with cuda_device() of the same device",
        place_name(device.ordinal()), place_name(at));
  if (offloads() && !streams())
    return misuse(
        "the plan has offload but the engine's buffers are already in host memory: build the plan without offload");
  RONDO_TRY(agree());
  RONDO_TRY(make_groups());
  for (int b = 0; b < plan.num_data_buffers(); ++b) {
    RONDO_TRY_ASSIGN(Block block, allocate(device, plan.data_buffer_bytes(b)));
    data_buffers.push_back(std::move(block));
    RONDO_TRY_ASSIGN(Event event, make_event());
    released.push_back(std::move(event));
    bytes += plan.data_buffer_bytes(b);
  }
  for (int b = 0; b < plan.num_grad_buffers(); ++b) {
    RONDO_TRY_ASSIGN(Block block, allocate(device, plan.grad_buffer_bytes(b)));
    grad_buffers.push_back(std::move(block));
    bytes += plan.grad_buffer_bytes(b);
  }
  RONDO_TRY_ASSIGN(handed_over, make_event());
  if (offloads()) {
    const uint64_t need = plan.memory(comm.rank()).staging;
    RONDO_TRY_ASSIGN(staging, allocate(device, need));
    bytes += need;
  }
  holder.assign(data_buffers.size(), -1);
  writer.assign(grad_buffers.size(), -1);
  held_since.resize(data_buffers.size());
  written_since.resize(grad_buffers.size());
  states.resize(plan.units().size());
  if (options.clip_norm > 0) RONDO_TRY(make_lanes());  // allocated here, not in the middle of a step
  for (size_t u = 0; u < states.size(); ++u) RONDO_TRY(make_unit(u));
  return {};
}

// Kept until the end: on a device, allocating or freeing would wait for running work.
Status Engine::Impl::make_lanes() {
  if (lanes != nullptr) return {};
  RONDO_TRY_ASSIGN(lanes, allocate(owner, kNormLanes * sizeof(double)));
  return {};
}

Status Engine::Impl::make_unit(size_t u) {
  const UnitPlan& p = plan.units()[u];
  RONDO_TRY_ASSIGN(states[u].gathered, make_event());
  RONDO_TRY_ASSIGN(states[u].reduced, make_event());
  RONDO_TRY_ASSIGN(states[u].changed, make_event());
  for (const Segment& s : p.segments) {
    if (s.trainable && s.master != Dtype::kFloat32)
      return unsupported("rank {}: unit '{}': trainable tensors must be owned as float, not {}", comm.rank(), p.name,
                         dtype_name(s.master));
    Owned o;
    const uint64_t owned = s.counts[part], size = owned * dtype_bytes(s.master);
    const bool one_type = s.param == s.master;
    auto own = [&](Block* block, std::byte** at, uint64_t need) -> Status {
      RONDO_TRY_ASSIGN(*block, allocate(owner, need));
      *at = block->get();
      bytes += need;
      return {};
    };
    if (p.resident && one_type && !offloads())
      o.master = data_buffers[static_cast<size_t>(p.data_buffer)].get() + s.data_offset_bytes +
                 s.offsets[part] * dtype_bytes(s.param);
    else RONDO_TRY(own(&o.own_master, &o.master, size));
    if (s.trainable) {
      if (sharded() || !one_type || !p.keeps_grads || offloads()) RONDO_TRY(own(&o.own_grad, &o.grad, size));
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

std::vector<Part> Engine::Impl::parts() {
  std::vector<Part> all;
  for (size_t u = 0; u < states.size(); ++u) {
    const UnitPlan& p = plan.units()[u];
    for (size_t t = 0; t < p.tensors.size(); ++t) {
      if (!p.tensors[t].tied_to.empty()) continue;
      const Placed& at = p.placed[t];
      const Segment& s = p.segments[at.segment];
      const Owned& o = states[u].owned[at.segment];
      const uint64_t begin = s.offsets[part], end = begin + s.counts[part];
      const uint64_t from = std::max(begin, at.offset_elems), to = std::min(end, at.offset_elems + at.num_elems);
      if (from >= to) continue;
      auto floats = [&](std::byte* base) { return reinterpret_cast<float*>(base) + (from - begin); };
      Part mine{static_cast<int>(u), t,        from - at.offset_elems,
                to - from,           s.master, o.master + (from - begin) * dtype_bytes(s.master)};
      if (s.trainable) mine.grad = floats(o.grad);
      for (const Block& b : o.states) mine.states.push_back(floats(b.get()));
      all.push_back(std::move(mine));
    }
  }
  return all;
}

}  // namespace rondo::fsdp
