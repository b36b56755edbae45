#include "bootstrap/local_peers.h"

#include <utility>

namespace rondo {

LocalPeers::LocalPeers(Bootstrap& bootstrap, bool may_pull)
    : bootstrap_(bootstrap), may_pull_(may_pull), numbers_(static_cast<size_t>(bootstrap.nranks()), -1) {
  for (Rank r = 0; r < bootstrap.nranks(); ++r) {
    if (!bootstrap.same_host(r)) continue;
    numbers_[r] = nranks();
    ranks_.push_back(r);
  }
}

Status LocalPeers::all_gather(std::string_view mine, std::span<const int> descriptors, std::vector<FromRank>* all) {
  std::vector<FromRank> of_all;
  RONDO_TRY(bootstrap_.all_gather_here(mine, descriptors, &of_all));
  all->clear();
  for (const Rank r : ranks_) all->push_back(std::move(of_all[r]));
  return {};
}

std::optional<Bootstrap::Loss> LocalPeers::find_lost() {
  auto loss = bootstrap_.find_lost();
  if (!loss || numbers_[loss->rank] < 0) return std::nullopt;
  return Bootstrap::Loss{numbers_[loss->rank], std::move(loss->how)};
}

}  // namespace rondo
