#include "topology/places.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace rondo {
namespace {

std::vector<int> allowed_of(const HostTopology& host, const Core& core) {
  std::vector<int> pus;
  for (const int pu : core.pus)
    if (host.pus[static_cast<size_t>(pu)].allowed) pus.push_back(pu);
  return pus;
}

std::vector<int> allowed_cores(const HostTopology& host) {
  std::vector<int> cores;
  for (size_t c = 0; c < host.cores.size(); ++c)
    if (!allowed_of(host, host.cores[c]).empty()) cores.push_back(static_cast<int>(c));
  // hwloc numbers cores along the machine; a handwritten description may not.
  std::stable_sort(cores.begin(), cores.end(), [&](int a, int b) {
    const Core &x = host.cores[static_cast<size_t>(a)], &y = host.cores[static_cast<size_t>(b)];
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
      if (allowed_of(host, host.cores[static_cast<size_t>(cores[c])]).size() > round) open.push_back(c);
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
    const Core& core = host.cores[static_cast<size_t>(cores[c])];
    const std::vector<int> pus = allowed_of(host, core);
    const auto ranks = static_cast<size_t>(quota[c]);
    for (size_t k = 0; k < ranks; ++k) {
      Placement p;
      p.core = cores[c];
      p.package = core.package;
      p.numa = core.numa;
      const size_t first = k * pus.size() / ranks, end = std::max(first + 1, (k + 1) * pus.size() / ranks);
      p.pus.assign(pus.begin() + static_cast<std::ptrdiff_t>(first), pus.begin() + static_cast<std::ptrdiff_t>(end));
      p.shared = ranks > pus.size();
      places.push_back(std::move(p));
    }
  }
  return places;
}

struct Near {
  std::vector<int> cores;
  bool away = false;
};
Near cores_near(const HostTopology& host, const std::vector<int>& allowed, const HostGpu& gpu) {
  const auto those = [&](auto&& belongs) {
    std::vector<int> cores;
    for (const int c : allowed)
      if (belongs(host.cores[static_cast<size_t>(c)])) cores.push_back(c);
    return cores;
  };
  if (gpu.numa >= 0)
    if (auto cores = those([&](const Core& c) { return c.numa == gpu.numa; }); !cores.empty()) return {cores, false};
  if (gpu.package >= 0)
    if (auto cores = those([&](const Core& c) { return c.package == gpu.package; }); !cores.empty())
      return {cores, gpu.numa >= 0};
  return {allowed, gpu.numa >= 0 || gpu.package >= 0};
}

// Smaller is nearer.
std::tuple<int, int> nic_distance(const HostTopology& host, const Placement& p, const HostNic& nic) {
  if (p.gpu >= 0) {
    const HostGpu& gpu = host.gpus[static_cast<size_t>(p.gpu)];
    if (const PciWay way = pci_way(host, gpu.pci, nic.pci);
        way.path != PciPath::kUnknown && way.path != PciPath::kSystem)
      return {static_cast<int>(way.path), way.num_switches};
    constexpr int kSameNode = static_cast<int>(PciPath::kNumaNode), kFarther = static_cast<int>(PciPath::kSystem);
    if (gpu.numa >= 0 && gpu.numa == nic.numa) return {kSameNode, 0};
    return {kFarther, gpu.package >= 0 && gpu.package == nic.package ? 0 : 1};
  }
  if (nic.numa >= 0 && nic.numa == p.numa) return {0, 0};
  return {1, nic.package >= 0 && nic.package == p.package ? 0 : 1};
}

void choose_nics(const HostTopology& host, std::vector<Placement>& places) {
  const bool any_rdma = std::any_of(host.nics.begin(), host.nics.end(), [](const HostNic& n) { return n.rdma; });
  std::vector<int> users(host.nics.size(), 0);
  for (Placement& p : places) {
    for (size_t i = 0; i < host.nics.size(); ++i) {
      if (any_rdma && !host.nics[i].rdma) continue;
      const auto key = [&](size_t nic) { return std::tuple(nic_distance(host, p, host.nics[nic]), users[nic]); };
      if (p.nic < 0 || key(i) < key(static_cast<size_t>(p.nic))) p.nic = static_cast<int>(i);
    }
    if (p.nic >= 0) ++users[static_cast<size_t>(p.nic)];
  }
}

}  // namespace

Expected<std::vector<Placement>> place_ranks(const HostTopology& host, const PlaceRequest& request) {
  const auto wrong = [](std::string what) { return Status(StatusCode::kInvalidArgument, std::move(what)); };
  if (request.num_ranks < 1) return wrong(fmt::format("{} ranks cannot be placed", request.num_ranks));
  if (!request.gpus.empty() && request.gpus.size() != static_cast<size_t>(request.num_ranks))
    return wrong(fmt::format("{} GPUs are named for {} ranks", request.gpus.size(), request.num_ranks));
  const std::vector<int> cores = allowed_cores(host);
  if (cores.empty()) return wrong("no CPU is allowed");
  std::vector<Placement> places;
  if (request.gpus.empty()) {
    places = place_on(host, cores, request.num_ranks);
  } else {
    places.resize(request.gpus.size());
    std::map<std::vector<int>, std::vector<size_t>> ranks_of;  // by shared cores
    std::vector<bool> away(places.size(), false);
    for (size_t r = 0; r < places.size(); ++r) {
      const int g = request.gpus[r];
      if (g < 0 || static_cast<size_t>(g) >= host.gpus.size())
        return wrong(fmt::format("rank {}: there is no GPU {}: there are {}", r, g, host.gpus.size()));
      Near near = cores_near(host, cores, host.gpus[static_cast<size_t>(g)]);
      away[r] = near.away;
      ranks_of[std::move(near.cores)].push_back(r);
    }
    for (const auto& [shared, ranks] : ranks_of) {
      std::vector<Placement> theirs = place_on(host, shared, static_cast<int>(ranks.size()));
      for (size_t i = 0; i < ranks.size(); ++i) places[ranks[i]] = std::move(theirs[i]);
    }
    for (size_t r = 0; r < places.size(); ++r) {
      places[r].gpu = request.gpus[r];
      places[r].away = away[r];
    }
  }
  choose_nics(host, places);
  return places;
}

std::vector<int> node_pus(const HostTopology& host, const Placement& place) {
  std::vector<int> pus;
  for (const Core& core : host.cores)
    if (place.numa < 0 || core.numa == place.numa)
      for (const int pu : allowed_of(host, core)) pus.push_back(pu);
  return pus;
}

std::vector<int> usable_gpus(const HostTopology& host) {
  std::vector<int> gpus;
  for (size_t g = 0; g < host.gpus.size(); ++g)
    if (host.gpu_machine.devices.empty() || host.gpus[g].device >= 0) gpus.push_back(static_cast<int>(g));
  return gpus;
}

}  // namespace rondo
