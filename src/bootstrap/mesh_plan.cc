#include "bootstrap/mesh_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

namespace rondo {

size_t MeshPlan::columns(size_t n) { return static_cast<size_t>(std::ceil(std::sqrt(static_cast<double>(n)))); }

MeshPlan::MeshPlan(std::vector<uint32_t> hosts, int most_full) : most_full_(most_full), hosts_(std::move(hosts)) {
  const size_t n = hosts_.size();
  order_.resize(n);
  std::iota(order_.begin(), order_.end(), 0);
  std::unordered_map<uint32_t, uint32_t> first_rank, size;  // by host
  for (size_t r = 0; r < n; ++r) {
    first_rank.emplace(hosts_[r], static_cast<uint32_t>(r));
    ++size[hosts_[r]];
  }
  if (!is_full())  // hosts in the order of their first ranks
    std::stable_sort(order_.begin(), order_.end(),
                     [&](Rank a, Rank b) { return first_rank[hosts_[a]] < first_rank[hosts_[b]]; });
  places_.resize(n);
  host_first_.resize(n);
  host_size_.resize(n);
  for (size_t place = 0; place < n; ++place) places_[order_[place]] = static_cast<uint32_t>(place);
  for (size_t r = 0; r < n; ++r) {
    host_first_[r] = places_[first_rank[hosts_[r]]];
    host_size_[r] = size[hosts_[r]];
  }
}

bool MeshPlan::joined(size_t place_a, size_t place_b, size_t num_places) const {
  if (num_places <= static_cast<size_t>(most_full_)) return true;
  const size_t c = columns(num_places);
  return place_a / c == place_b / c || place_a % c == place_b % c;
}

bool MeshPlan::linked(Rank a, Rank b) const {
  if (a == b) return false;
  if (joined(places_[a], places_[b], hosts_.size())) return true;
  const uint32_t first = host_first_[a];
  return hosts_[a] == hosts_[b] && joined(places_[a] - first, places_[b] - first, host_size_[a]);
}

std::vector<Rank> MeshPlan::neighbours(Rank r) const {
  std::vector<Rank> ranks;
  const size_t n = hosts_.size(), place = places_[r], c = columns(n);
  if (is_full()) {
    for (Rank peer = 0; peer < nranks(); ++peer)
      if (peer != r) ranks.push_back(peer);
    return ranks;
  }
  const size_t row = place - place % c;
  for (size_t p = row; p < std::min(row + c, n); ++p) ranks.push_back(order_[p]);
  for (size_t p = place % c; p < n; p += c) ranks.push_back(order_[p]);
  const size_t first = host_first_[r], size = host_size_[r];
  for (size_t p = first; p < first + size && size < n; ++p)  // one host has the same grid
    if (linked(r, order_[p])) ranks.push_back(order_[p]);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::erase(ranks, r);
  return ranks;
}

Rank MeshPlan::corner(Rank a, Rank b) const {
  const size_t c = columns(hosts_.size());
  const size_t place = places_[a] / c * c + places_[b] % c;
  return place < hosts_.size() ? order_[place] : -1;
}

}  // namespace rondo
