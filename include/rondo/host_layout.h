// HostLayout: the host of each rank of a communicator.
//
//     2x2       0 1 | 2 3        two hosts of two ranks, one host after the other
//     3+2       0 1 2 | 3 4      hosts of three and of two ranks
//     0,1,0,1   0 2 | 1 3        the host of each rank: round robin
//
// Hosts are numbered in the order of their first ranks, or in a given order of ranks (in_order). Ranks of one host may
// form groups that are near to each other (places), on its packages for example. Ranks agree on the layout when the
// communicator is made; therefore plans may depend on it. An int is a layout too: that many ranks on one host.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/rondo.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

class HostLayout {
 public:
  /// All ranks are on one host. O(1).
  HostLayout(int nranks) : nranks_(nranks) {}  // NOLINT(google-explicit-constructor): where hosts do not matter
  /// keys[r]: equal for ranks of one host, and for no others. At least one rank. O(ranks * log ranks).
  RONDO_API static HostLayout of(const std::vector<std::string>& keys);
  RONDO_API static HostLayout of(const std::vector<int>& keys);
  /// "2x4", "3+2", "0,1,0,1" as above, or "4": four ranks on one host. Errors: kInvalidArgument.
  RONDO_API static Expected<HostLayout> parse(std::string_view text);
  /// Makes num_hosts hosts of ranks_each ranks, one host after the other.
  RONDO_API static HostLayout uniform(int num_hosts, int ranks_each);
  /// The shortest text that parse() accepts. It omits the order.
  RONDO_API std::string text() const;

  /// Returns the same hosts with their ranks in this order. Hosts are renumbered by their first place in it. A layout
  /// of one host is returned unchanged. `order`: all ranks, those of a host contiguous. Errors: kInvalidArgument (not
  /// such an order).
  RONDO_API Expected<HostLayout> in_order(const std::vector<Rank>& order) const;
  /// This layout of one host, with groups of its ranks that are near to each other.
  RONDO_API HostLayout with_places(HostLayout places) const;
  /// The groups that rings and trees follow: the hosts, or on one host the groups of with_places (else the whole host).
  const HostLayout& places() const { return places_ != nullptr ? *places_ : *this; }
  /// The same hosts without order or places, equal to parse(text()).
  RONDO_API HostLayout by_rank() const;

  int nranks() const { return nranks_; }
  int num_hosts() const { return one_host() ? 1 : static_cast<int>(first_.size()) - 1; }
  bool one_host() const { return host_.empty(); }
  int host(Rank rank) const { return one_host() ? 0 : host_[static_cast<size_t>(rank)]; }
  int num_ranks(int host) const {
    return one_host() ? nranks_ : first_[static_cast<size_t>(host) + 1] - first_[static_cast<size_t>(host)];
  }
  /// Returns the number of ranks of the host with the most ranks.
  RONDO_API int most_ranks() const;
  /// `local` numbers the ranks of a host from 0, ascending or in the given order.
  Rank rank(int host, int local) const {
    return rank_at(one_host() ? local : first_[static_cast<size_t>(host)] + local);
  }
  int local(Rank rank) const { return one_host() ? rank : position(rank) - first_[static_cast<size_t>(host(rank))]; }
  bool same_host(Rank a, Rank b) const { return host(a) == host(b); }

  /// All ranks in a row, one host after the other. Rings follow it and enter each host once. It is the identity if no
  /// order was given and the ranks of each host are already contiguous.
  Rank rank_at(int position) const { return one_host() ? position : ranks_[static_cast<size_t>(position)]; }
  int position(Rank rank) const { return one_host() ? rank : position_[static_cast<size_t>(rank)]; }

  /// Returns the host of each rank; empty if all are on one host.
  const std::vector<int32_t>& hosts() const { return host_; }
  friend bool operator==(const HostLayout& a, const HostLayout& b) {
    return a.nranks_ == b.nranks_ && a.host_ == b.host_ && a.ranks_ == b.ranks_ &&
           (a.places_ == b.places_ || (a.places_ != nullptr && b.places_ != nullptr && *a.places_ == *b.places_));
  }

 private:
  void number(const std::vector<Rank>& order);
  int nranks_;
  std::vector<int32_t> host_, position_;  // by rank; all four are empty for one host
  std::vector<int32_t> ranks_;            // by position
  std::vector<int32_t> first_;            // by host: its first position; and the end
  std::shared_ptr<const HostLayout> places_;
};

}  // namespace rondo
