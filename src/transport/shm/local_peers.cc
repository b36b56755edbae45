#include "transport/shm/local_peers.h"

#include <utility>

namespace rondo {

LocalPeers::LocalPeers(Bootstrap& bootstrap, bool may_pull)
    : bootstrap_(bootstrap), may_pull_(may_pull), numbers_(static_cast<size_t>(bootstrap.nranks()), -1) {
  for (Rank r = 0; r < bootstrap.nranks(); ++r) {
    if (!bootstrap.same_host(r)) continue;
    numbers_[static_cast<size_t>(r)] = nranks();
    ranks_.push_back(r);
  }
}

Status LocalPeers::exchange_descriptors(std::span<const int> mine, std::vector<std::vector<int>>* all) {
  const Status s = bootstrap_.exchange_descriptors(mine, all);
  if (all->size() == numbers_.size()) pick(all);
  return s;
}

Status LocalPeers::all_gather(std::string_view mine, std::vector<std::string>* all) {
  RONDO_TRY(bootstrap_.all_gather_here(mine.data(), mine.size(), all));
  pick(all);
  return {};
}

std::optional<PeerLoss> LocalPeers::find_lost() {
  auto loss = bootstrap_.find_lost();
  if (!loss || numbers_[static_cast<size_t>(loss->rank)] < 0) return std::nullopt;
  return PeerLoss{numbers_[static_cast<size_t>(loss->rank)], std::move(loss->how)};
}

}  // namespace rondo
