// LocalPeers: the ranks of a Bootstrap that are on this host, numbered from 0. They make their shared memory with it.
//
// Thread safety: that of the Bootstrap's collective calls; find_lost() at any time from any thread.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace rondo {

class LocalPeers {
 public:
  /// may_pull: false if this rank must not read the others' memory (setting cma). Then no rank does.
  LocalPeers(Bootstrap& bootstrap, bool may_pull);

  int nranks() const { return static_cast<int>(ranks_.size()); }
  /// Returns this rank's number.
  Rank rank() const { return numbers_[bootstrap_.rank()]; }
  /// Returns the numbers by the Bootstrap's rank; -1: on another host.
  const std::vector<int>& numbers() const { return numbers_; }
  bool may_pull() const { return may_pull_; }
  /// Collective. See Bootstrap::all_gather_here(); `all` has only the ranks of this host.
  Status all_gather(std::string_view mine, std::span<const int> descriptors, std::vector<FromRank>* all);
  /// Returns one of them whose process is gone. Never blocks.
  std::optional<Bootstrap::Loss> find_lost();

 private:
  Bootstrap& bootstrap_;
  const bool may_pull_;
  std::vector<Rank> ranks_;  // the Bootstrap's, ascending
  std::vector<int> numbers_;
};

}  // namespace rondo
