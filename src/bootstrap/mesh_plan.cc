#include "bootstrap/mesh_plan.h"

#include <algorithm>
#include <cmath>

namespace rondo {

size_t MeshPlan::columns(size_t n) { return static_cast<size_t>(std::ceil(std::sqrt(static_cast<double>(n)))); }

std::vector<Rank> MeshPlan::order() const {
  std::vector<Rank> ranks;
  for (int place = 0; place < nranks(); ++place) ranks.push_back(is_full() ? place : hosts_.rank_at(place));
  return ranks;
}

bool MeshPlan::joined(int place_a, int place_b, int num_places) const {
  if (num_places <= most_full_) return true;
  const auto c = static_cast<int>(columns(static_cast<size_t>(num_places)));
  return place_a / c == place_b / c || place_a % c == place_b % c;
}

bool MeshPlan::linked(Rank a, Rank b) const {
  if (a == b) return false;
  return joined(hosts_.position(a), hosts_.position(b), nranks()) ||
         (hosts_.same_host(a, b) && joined(hosts_.local(a), hosts_.local(b), hosts_.num_ranks(hosts_.host(a))));
}

std::vector<Rank> MeshPlan::neighbours(Rank r) const {
  std::vector<Rank> ranks;
  const int n = nranks(), place = hosts_.position(r), host = hosts_.host(r);
  const auto c = static_cast<int>(columns(static_cast<size_t>(n)));
  if (is_full()) {
    ranks = order();
  } else {
    const int row = place - place % c;
    for (int p = row; p < std::min(row + c, n); ++p) ranks.push_back(hosts_.rank_at(p));
    for (int p = place % c; p < n; p += c) ranks.push_back(hosts_.rank_at(p));
    for (int l = 0; l < hosts_.num_ranks(host) && !hosts_.one_host(); ++l)  // one host has the same grid
      if (linked(r, hosts_.rank(host, l))) ranks.push_back(hosts_.rank(host, l));
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  }
  std::erase(ranks, r);
  return ranks;
}

Rank MeshPlan::corner(Rank a, Rank b) const {
  const auto c = static_cast<int>(columns(static_cast<size_t>(nranks())));
  const int place = hosts_.position(a) / c * c + hosts_.position(b) % c;
  return place < nranks() ? hosts_.rank_at(place) : -1;
}

}  // namespace rondo
