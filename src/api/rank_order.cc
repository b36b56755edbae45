#include "api/rank_order.h"

#include <algorithm>
#include <optional>

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

// Returns the order on this rank's host, if there is one.
std::optional<LocalOrder> look(const std::vector<cpu_set_t>& masks) {
  if (!may_have_order(masks)) return std::nullopt;
  const auto host = read_processors();
  return host.ok() ? local_order(*host, masks) : std::nullopt;
}

bool is_order(const std::optional<LocalOrder>& found, int num_ranks) {
  const auto n = static_cast<size_t>(num_ranks);
  if (!found || found->ring.size() != n || found->groups.size() != n) return false;
  std::vector<bool> seen(n);
  for (const int rank : found->ring) {
    if (rank < 0 || rank >= num_ranks || seen[rank]) return false;
    seen[rank] = true;
  }
  return true;
}

}  // namespace

template <class C>
void fields(C& c, LocalOrder& order) {
  c(order.ring, order.groups);
}

Expected<HostLayout> order_by_places(Bootstrap& bootstrap, const AllSettings& all, const HostLayout& hosts) {
  bool any = false;
  for (int h = 0; h < hosts.num_hosts(); ++h) any |= may_have_order(masks_of(all, hosts, h));
  if (!any) return hosts;
  const Rank rank = bootstrap.rank();
  const int here = hosts.host(rank);
  std::optional<LocalOrder> mine;
  if (hosts.local(rank) == 0) mine = look(masks_of(all, hosts, here));
  std::vector<std::string> blobs;
  const std::string said = encode(mine);
  RONDO_TRY(bootstrap.all_gather(said.data(), said.size(), &blobs));
  std::vector<Rank> order;
  std::vector<int> groups(static_cast<size_t>(hosts.nranks()));
  bool found_any = false;
  for (int h = 0; h < hosts.num_hosts(); ++h) {
    const auto found = decode<std::optional<LocalOrder>>(blobs[hosts.rank(h, 0)]).value_or(std::nullopt);
    const int n = hosts.num_ranks(h);
    const bool ordered = is_order(found, n);
    found_any |= ordered;
    for (int l = 0; l < n; ++l) {
      order.push_back(hosts.rank(h, ordered ? found->ring[l] : l));
      if (ordered) groups[hosts.rank(h, l)] = found->groups[l];
    }
  }
  if (!found_any) return hosts;
  if (!hosts.one_host()) return hosts.in_order(order);
  RONDO_TRY_ASSIGN(HostLayout places, HostLayout::of(groups).in_order(order));
  return hosts.with_places(std::move(places));
}

}  // namespace rondo
