#include "topology/local_order.h"

#include <algorithm>
#include <numeric>

#include "topology/order.h"

namespace rondo {
namespace {

std::optional<Placement> place_of(const HostTopology& host, const cpu_set_t& mask) {
  Placement place;
  for (const Pu& pu : host.pus) {
    if (pu.os < 0 || pu.os >= CPU_SETSIZE || !CPU_ISSET(pu.os, &mask) || pu.core < 0) continue;
    const Core& core = host.cores[pu.core];
    if (place.core < 0) {
      place.core = pu.core;
      place.package = core.package;
      place.numa = core.numa;
    } else if (core.package != place.package) {
      return std::nullopt;
    }
  }
  return place.core >= 0 ? std::optional(place) : std::nullopt;
}

// Groups of ranks joined by hops faster than the slowest kind.
std::vector<int> groups_of(const Hops& hops) {
  const int n = hops.num_ranks();
  Crossing slowest = Crossing::kNothing;
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b) slowest = std::max(slowest, hops.at(a, b).crossing);
  std::vector<int> group(static_cast<size_t>(n));
  std::iota(group.begin(), group.end(), 0);
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b) {
      const int mine = group[a], theirs = group[b];
      if (hops.at(a, b).crossing < slowest && mine != theirs)
        std::replace(group.begin(), group.end(), std::max(mine, theirs), std::min(mine, theirs));
    }
  return group;
}

}  // namespace

std::optional<LocalOrder> local_order(const HostTopology& host, std::span<const cpu_set_t> masks) {
  std::vector<Placement> places;
  for (const cpu_set_t& mask : masks) {
    const auto place = place_of(host, mask);
    if (!place) return std::nullopt;
    places.push_back(*place);
  }
  return local_order(host, places);
}

std::optional<LocalOrder> local_order(const HostTopology& host, std::span<const Placement> places) {
  if (places.empty()) return std::nullopt;
  const Hops hops(host, places);
  LocalOrder order{ring_order(hops), groups_of(hops)};
  auto group_at = [&](size_t i) { return order.groups[order.ring[i % order.ring.size()]]; };
  const size_t n = order.ring.size();
  size_t borders = 0;
  for (size_t i = 0; i < n; ++i) borders += group_at(i) != group_at(i + n - 1) ? 1 : 0;
  const auto groups =
      static_cast<size_t>(std::count_if(order.groups.begin(), order.groups.end(), [&, r = 0](int g) mutable {
        return g == r++;  // groups are named by their first rank
      }));
  // One group, or only groups of one: no structure. More borders than groups: the ring enters a group twice, which is
  // possible if nearness is not a tree.
  if (groups < 2 || groups == n || borders != groups) return std::nullopt;
  // Rotates the ring to the border where rank 0's group begins; reverses it if rank 0 is then first.
  const auto from_own_border = [&] {
    size_t i = 0;
    while (group_at(i) != order.groups[0] || group_at(i + n - 1) == order.groups[0]) ++i;
    std::rotate(order.ring.begin(), order.ring.begin() + static_cast<ptrdiff_t>(i), order.ring.end());
  };
  from_own_border();
  if (order.ring[static_cast<size_t>(std::count(order.groups.begin(), order.groups.end(), order.groups[0])) - 1] == 0) {
    std::reverse(order.ring.begin(), order.ring.end());
    from_own_border();
  }
  return order;
}

}  // namespace rondo
