#include "bootstrap/local_peers.h"

#include <algorithm>

namespace rondo {

LocalPeers::LocalPeers(Bootstrap& bootstrap, bool may_pull) : bootstrap_(bootstrap), may_pull_(may_pull) {
  for (Rank r = 0; r < bootstrap.nranks(); ++r)
    if (bootstrap.same_host(r)) ranks_.push_back(r);
}

Status LocalPeers::all_gather(std::string_view mine, std::span<const int> descriptors, std::vector<FromRank>* all) {
  std::vector<FromRank> of_all;
  RONDO_TRY(bootstrap_.all_gather_here(mine, descriptors, &of_all));
  all->clear();
  for (const Rank r : ranks_) all->push_back(std::move(of_all[static_cast<size_t>(r)]));
  return {};
}

std::optional<Bootstrap::Loss> LocalPeers::find_lost() {
  auto loss = bootstrap_.find_lost();
  if (!loss) return std::nullopt;
  const auto place = std::find(ranks_.begin(), ranks_.end(), loss->rank);
  if (place == ranks_.end()) return std::nullopt;
  return Bootstrap::Loss{static_cast<Rank>(place - ranks_.begin()), std::move(loss->how)};
}

}  // namespace rondo
