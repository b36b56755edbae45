// MeshPlan: which ranks of a Bootstrap have a link from the start. Few ranks: each with each. Many: a grid of about
// sqrt(n) columns, in which a rank has links along its row and its column, so that it needs 2 sqrt(n) of them and
// reaches everybody in two steps:
//
//   places    0  1  2        a place is a rank's position once the ranks are sorted by host, so that those of a host
//             3  4  5        stand side by side: 4 has links to 3 and 5, and to 1 and 7; it reaches 2 by way of 1 or 5
//             6  7
//
// Ranks of one host have the links of a plan of their own besides: what concerns a host alone stays on it.
//
// Complexity: linked() and corner() O(1), neighbours() O(sqrt n) and O(ranks of the host).
// Thread safety: values.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/types.h"

namespace rondo {

class MeshPlan {
 public:
  MeshPlan() = default;
  /// hosts[r]: a number for rank r's host; equal numbers for ranks of one host. most_full: up to so many ranks, in the
  /// communicator and on a host, each has a link to each.
  MeshPlan(std::vector<uint32_t> hosts, int most_full);

  int nranks() const { return static_cast<int>(hosts_.size()); }
  bool is_full() const { return nranks() <= most_full_; }
  bool same_host(Rank a, Rank b) const { return hosts_[index(a)] == hosts_[index(b)]; }
  bool linked(Rank a, Rank b) const;
  std::vector<Rank> neighbours(Rank r) const;
  /// All ranks by place. Where the plan is full: by rank.
  const std::vector<Rank>& order() const { return order_; }

  /// The rank in a's row and b's column, one of the two by whom a and b reach each other; -1: there is none.
  Rank corner(Rank a, Rank b) const;

  /// Columns of a grid of n places.
  static size_t columns(size_t n);

  const std::vector<uint32_t>& hosts() const { return hosts_; }
  int most_full() const { return most_full_; }

 private:
  static size_t index(Rank r) { return static_cast<size_t>(r); }
  bool joined(size_t place_a, size_t place_b, size_t num_places) const;

  int most_full_ = 0;
  std::vector<uint32_t> hosts_;
  std::vector<Rank> order_;           // rank by place
  std::vector<uint32_t> places_;      // place by rank
  std::vector<uint32_t> host_first_;  // by rank: the first place of its host
  std::vector<uint32_t> host_size_;   // by rank
};

}  // namespace rondo
