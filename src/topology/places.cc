#include "topology/places.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"

namespace rondo {
namespace {

std::vector<int> allowed_of(const HostTopology& host, const Core& core) {
  std::vector<int> pus;
  for (const int pu : core.pus)
    if (host.pus[pu].allowed) pus.push_back(pu);
  return pus;
}

std::vector<int> allowed_cores(const HostTopology& host) {
  std::vector<int> cores;
  for (size_t c = 0; c < host.cores.size(); ++c)
    if (!allowed_of(host, host.cores[c]).empty()) cores.push_back(static_cast<int>(c));
  // hwloc numbers cores along the machine; a handwritten description may not.
  std::stable_sort(cores.begin(), cores.end(), [&](int a, int b) {
    const Core &x = host.cores[a], &y = host.cores[b];
    return std::tie(x.package, x.numa) < std::tie(y.package, y.numa);
  });
  return cores;
}

// Number of ranks for each core, n in total. In round k every core with more than k PUs gets one; a round with too few
// ranks spreads them evenly. When all PUs have a rank it starts again.
std::vector<int> deal(const HostTopology& host, const std::vector<int>& cores, int n) {
  std::vector<int> quota(cores.size(), 0);
  for (size_t round = 0; n > 0; ++round) {
    std::vector<size_t> open;
    for (size_t c = 0; c < cores.size(); ++c)
      if (allowed_of(host, host.cores[cores[c]]).size() > round) open.push_back(c);
    if (open.empty()) {
      round = static_cast<size_t>(-1);
      continue;
    }
    const auto take = std::min(open.size(), static_cast<size_t>(n));
    for (size_t i = 0; i < take; ++i) ++quota[open[i * open.size() / take]];
    n -= static_cast<int>(take);
  }
  return quota;
}

// Places of n ranks on these cores, in the cores' order.
std::vector<Placement> place_on(const HostTopology& host, const std::vector<int>& cores, int n) {
  std::vector<Placement> places;
  const std::vector<int> quota = deal(host, cores, n);
  for (size_t c = 0; c < cores.size(); ++c) {
    const Core& core = host.cores[cores[c]];
    const std::vector<int> pus = allowed_of(host, core);
    const auto ranks = static_cast<size_t>(quota[c]);
    for (size_t k = 0; k < ranks; ++k) {
      const size_t first = k * pus.size() / ranks, end = std::max(first + 1, (k + 1) * pus.size() / ranks);
      places.push_back({.core = cores[c],
                        .package = core.package,
                        .numa = core.numa,
                        .pus = std::vector<int>(&pus[first], &pus[first] + (end - first)),
                        .shared = ranks > pus.size()});
    }
  }
  return places;
}

struct Near {
  std::vector<int> cores;
  bool away = false;
};
Near cores_near(const HostTopology& host, const std::vector<int>& allowed, const GpuPlace& gpu) {
  const auto those = [&](auto&& belongs) {
    std::vector<int> cores;
    for (const int c : allowed)
      if (belongs(host.cores[c])) cores.push_back(c);
    return cores;
  };
  if (gpu.numa >= 0)
    if (auto cores = those([&](const Core& c) { return c.numa == gpu.numa; }); !cores.empty()) return {cores, false};
  if (gpu.package >= 0)
    if (auto cores = those([&](const Core& c) { return c.package == gpu.package; }); !cores.empty())
      return {cores, gpu.numa >= 0};
  return {allowed, gpu.numa >= 0 || gpu.package >= 0};
}

}  // namespace

Expected<std::vector<Placement>> place_ranks(const HostTopology& host, int num_ranks, std::span<const GpuPlace> gpus) {
  RONDO_CHECK(gpus.empty() || std::ssize(gpus) == num_ranks);
  if (num_ranks < 1) return invalid_argument("{} ranks cannot be placed", num_ranks);
  const std::vector<int> cores = allowed_cores(host);
  if (cores.empty()) return Status(StatusCode::kInvalidArgument, "no CPU is allowed");
  if (gpus.empty()) return place_on(host, cores, num_ranks);
  std::vector<Placement> places(gpus.size());
  std::map<std::vector<int>, std::vector<size_t>> ranks_of;  // by shared cores
  std::vector<bool> away(places.size());
  for (size_t r = 0; r < places.size(); ++r) {
    Near near = cores_near(host, cores, gpus[r]);
    away[r] = near.away;
    ranks_of[std::move(near.cores)].push_back(r);
  }
  for (const auto& [shared, ranks] : ranks_of) {
    std::vector<Placement> theirs = place_on(host, shared, static_cast<int>(ranks.size()));
    for (size_t i = 0; i < ranks.size(); ++i) places[ranks[i]] = std::move(theirs[i]);
  }
  for (size_t r = 0; r < places.size(); ++r) places[r].away = away[r];
  return places;
}

std::vector<int> node_pus(const HostTopology& host, const Placement& place) {
  std::vector<int> pus;
  for (const Core& core : host.cores)
    if (place.numa < 0 || core.numa == place.numa)
      for (const int pu : allowed_of(host, core)) pus.push_back(pu);
  return pus;
}

std::string cpus_text(const std::vector<int>& os_numbers) {
  return fmt::format("CPU{} {}", os_numbers.size() == 1 ? "" : "s", cpu_list_text(os_numbers));
}

std::string place_text(const HostTopology& host, const Placement& place) {
  std::string text = fmt::format("core {} ({})", place.core, cpus_text(os_numbers(host, place.pus)));
  if (place.numa >= 0) text += fmt::format(" of NUMA node {}", place.numa);
  if (place.shared) text += ", shared with other ranks";
  return text;
}

}  // namespace rondo
