// LocalPeers: the ranks of this host among a Bootstrap's, numbered from 0, and what they exchange to share memory.
//
// Thread safety: as Bootstrap.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "transport/transport.h"

namespace rondo {

class LocalPeers {
 public:
  /// may_pull: false if this rank must not read the others' memory (setting cma); then none does.
  LocalPeers(Bootstrap& bootstrap, bool may_pull);
  int nranks() const { return static_cast<int>(ranks_.size()); }
  /// Returns this rank's number.
  Rank rank() const { return numbers_[static_cast<size_t>(bootstrap_.rank())]; }
  /// Returns the numbers by the Bootstrap's rank; -1: on another host.
  const std::vector<int>& numbers() const { return numbers_; }
  bool may_pull() const { return may_pull_; }
  /// Collective: sends this rank's descriptors to all other ranks; (*all)[r] are r's as opened here, owned by the
  /// caller.
  Status exchange_descriptors(std::span<const int> mine, std::vector<std::vector<int>>* all);
  /// Collective: every rank's bytes, by rank.
  Status all_gather(std::string_view mine, std::vector<std::string>* all);
  /// Returns a peer whose process is gone. Never blocks.
  std::optional<PeerLoss> find_lost();

 private:
  template <class T>
  void pick(std::vector<T>* all) const {
    std::vector<T> picked;
    for (const Rank r : ranks_) picked.push_back(std::move((*all)[static_cast<size_t>(r)]));
    *all = std::move(picked);
  }
  Bootstrap& bootstrap_;
  const bool may_pull_;
  std::vector<Rank> ranks_;  // the Bootstrap's, ascending
  std::vector<int> numbers_;
};

}  // namespace rondo
