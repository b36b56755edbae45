#include "rondo/fsdp/forecast.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace rondo::fsdp {

Expected<Forecast> forecast(const Plan& plan, const std::vector<Action>& actions, const std::vector<UnitCosts>& costs) {
  if (costs.size() != plan.units().size())
    return invalid_argument("costs has {} units: the plan has {}", costs.size(), plan.units().size());
  for (const UnitCosts& c : costs)
    for (const double us : {c.forward_us, c.backward_us, c.step_us, c.gather_us, c.reduce_us})
      if (!(us >= 0) || !std::isfinite(us)) return invalid_argument("a cost is {} us: expected 0 or more", us);
  Forecast f;
  double now = 0, line_free = 0;
  std::vector<double> gathered(costs.size()), reduced(costs.size());
  auto compute = [&](double us) { now += us, f.compute_us += us; };
  auto carry = [&](double us) {
    line_free = std::max(now, line_free) + us;
    f.line_us += us;
    return line_free;
  };
  for (const auto& [act, unit] : actions) {
    const auto u = static_cast<size_t>(unit);
    switch (act) {
      case Act::kGather: gathered[u] = carry(costs[u].gather_us); break;
      case Act::kReduce: reduced[u] = carry(costs[u].reduce_us); break;
      case Act::kWaitGather: now = std::max(now, gathered[u]); break;
      case Act::kWaitReduce: now = std::max(now, reduced[u]); break;
      case Act::kForward: compute(costs[u].forward_us); break;
      case Act::kBackward: compute(costs[u].backward_us); break;
      case Act::kStep: compute(costs[u].step_us); break;
      case Act::kRelease: break;
    }
  }
  f.overlapped_us = now;
  f.serial_us = f.compute_us + f.line_us;
  f.exposed_us = now - f.compute_us;
  return f;
}

std::vector<UnitCosts> line_costs(const Plan& plan, double gigabytes_per_s, double latency_us, double forward_us) {
  const int n = plan.shard_ranks(), all = plan.options().nranks;
  auto ring_us = [&](double bytes, int ranks, int rounds) {
    if (bytes == 0 || ranks == 1) return 0.0;
    return latency_us + rounds * bytes * (ranks - 1) / ranks / (gigabytes_per_s * 1e3);
  };
  std::vector<UnitCosts> costs;
  for (const UnitPlan& u : plan.units()) {
    UnitCosts c{.forward_us = forward_us, .backward_us = 2 * forward_us};
    for (const Segment& s : u.segments) {
      const auto elems = static_cast<double>(s.num_elems);
      c.gather_us += ring_us(elems * dtype_bytes(s.param), n, 1);
      if (!s.trainable) continue;
      const double wire = elems * dtype_bytes(s.reduce);
      c.reduce_us += ring_us(wire, n, 1) + ring_us(wire / n, all / n, 2);  // the all-reduce across replicas
    }
    costs.push_back(c);
  }
  return costs;
}

}  // namespace rondo::fsdp
