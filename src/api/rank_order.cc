#include "api/rank_order.h"

#include <algorithm>

#include "base/codec.h"
#include "topology/host_reader.h"
#include "topology/local_order.h"

namespace rondo {
namespace {

std::vector<cpu_set_t> masks_of(const AllSettings& all, const HostLayout& hosts, int host) {
  std::vector<cpu_set_t> masks;
  for (int l = 0; l < hosts.num_ranks(host); ++l) masks.push_back(all[hosts.rank(host, l)]->cpus);
  return masks;
}

// Two ranks have only one order.
bool may_have_order(const std::vector<cpu_set_t>& masks) {
  return masks.size() > 2 &&
         std::any_of(masks.begin(), masks.end(), [&](const cpu_set_t& m) { return CPU_EQUAL(&m, &masks[0]) == 0; });
}

// Returns the order on this rank's host: first its ring, then its groups, as local ranks. Empty if there is none.
std::vector<int32_t> look(const std::vector<cpu_set_t>& masks) {
  if (!may_have_order(masks)) return {};
  const auto host = read_processors();
  if (!host.ok()) return {};
  const auto order = local_order(*host, masks);
  if (!order) return {};
  std::vector<int32_t> found(order->ring.begin(), order->ring.end());
  found.insert(found.end(), order->groups.begin(), order->groups.end());
  return found;
}

bool is_order(const std::vector<int32_t>& found, int num_ranks) {
  const auto n = static_cast<size_t>(num_ranks);
  if (found.size() != 2 * n) return false;
  std::vector<bool> seen(n);
  for (size_t i = 0; i < n; ++i) {
    if (found[i] < 0 || found[i] >= num_ranks || seen[found[i]]) return false;
    seen[found[i]] = true;
  }
  return true;
}

}  // namespace

Expected<HostLayout> order_by_places(Bootstrap& bootstrap, const AllSettings& all, const HostLayout& hosts) {
  bool any = false;
  for (int h = 0; h < hosts.num_hosts(); ++h) any |= may_have_order(masks_of(all, hosts, h));
  if (!any) return hosts;
  const Rank rank = bootstrap.rank();
  const int here = hosts.host(rank);
  std::vector<int32_t> mine;
  if (hosts.local(rank) == 0) mine = look(masks_of(all, hosts, here));
  std::vector<std::string> blobs;
  const std::string said = encode(mine);
  RONDO_TRY(bootstrap.all_gather(said.data(), said.size(), &blobs));
  std::vector<Rank> order;
  std::vector<int> groups(static_cast<size_t>(hosts.nranks()));
  bool found_any = false;
  for (int h = 0; h < hosts.num_hosts(); ++h) {
    const auto found = decode<std::vector<int32_t>>(blobs[hosts.rank(h, 0)]).value_or(std::vector<int32_t>());
    const int n = hosts.num_ranks(h);
    const bool ordered = is_order(found, n);
    found_any |= ordered;
    for (int l = 0; l < n; ++l) {
      order.push_back(hosts.rank(h, ordered ? found[l] : l));
      if (ordered) groups[hosts.rank(h, l)] = found[n + l];
    }
  }
  if (!found_any) return hosts;
  if (!hosts.one_host()) return hosts.in_order(order);
  RONDO_TRY_ASSIGN(HostLayout places, HostLayout::of(groups).in_order(order));
  return hosts.with_places(std::move(places));
}

}  // namespace rondo
