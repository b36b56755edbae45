#include "topology/binding.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "topology/places.h"

namespace rondo {
namespace {

std::vector<int> numbers_of(const cpu_set_t& set) {
  std::vector<int> numbers;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) numbers.push_back(cpu);
  return numbers;
}

bool same(const RankCpus& a, const RankCpus& b) { return a.gpu_numa == b.gpu_numa && CPU_EQUAL(&a.cpus, &b.cpus) != 0; }

}  // namespace

BindTo bind_from_name(std::string_view name) {
  return name == "core" ? BindTo::kCore : name == "numa" ? BindTo::kNuma : BindTo::kNone;
}

Expected<Binding> choose_binding(const HostTopology& host, std::span<const RankCpus> ranks, size_t rank, BindTo to) {
  HostTopology mine = host;
  for (Pu& pu : mine.pus)
    pu.allowed = true;  // the ranks' masks define the allowed CPUs; this process's own mask may be narrower
  restrict_pus(mine, numbers_of(ranks[rank].cpus));
  size_t among = 0, index = 0;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (!same(ranks[r], ranks[rank])) continue;
    if (r < rank) ++index;
    ++among;
  }
  std::vector<GpuPlace> gpus;
  if (ranks[rank].gpu_numa >= 0) {
    GpuPlace gpu;
    for (size_t n = 0; n < mine.nodes.size(); ++n)
      if (mine.nodes[n].os == ranks[rank].gpu_numa) gpu = {mine.nodes[n].package, static_cast<int>(n)};
    gpus.assign(among, gpu);
  }
  RONDO_TRY_ASSIGN(const std::vector<Placement> places, place_ranks(mine, static_cast<int>(among), gpus));
  const Placement& place = places[index];
  Binding b;
  CPU_ZERO(&b.cpus);
  const std::vector<int> os = os_numbers(mine, to == BindTo::kNuma ? node_pus(mine, place) : place.pus);
  for (const int cpu : os)
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &b.cpus);
  b.text = to == BindTo::kNuma ? fmt::format("NUMA node {} ({})", place.numa, cpus_text(os)) : place_text(mine, place);
  if (place.away) b.text += ", since the mask has no CPU next to its GPU";
  return b;
}

Status bind_this_thread(const Binding& binding) {
  cpu_set_t mask, narrowed;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0)
    return make_error(StatusCode::kSystem, "sched_getaffinity: {}", std::strerror(errno));
  CPU_AND(&narrowed, &mask, &binding.cpus);
  if (CPU_COUNT(&narrowed) == 0)
    return unsupported("not bound to {}: the thread may run on CPUs {} only", binding.text,
                       cpu_list_text(numbers_of(mask)));
  if (sched_setaffinity(0, sizeof narrowed, &narrowed) != 0)
    return make_error(StatusCode::kSystem, "sched_setaffinity: {}", std::strerror(errno));
  return {};
}

}  // namespace rondo
