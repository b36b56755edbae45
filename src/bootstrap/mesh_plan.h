// MeshPlan: the pairs of ranks of a Bootstrap that have a link from the start. If there are few ranks, all pairs have
// one. Otherwise the ranks form a grid of about sqrt(n) columns. A rank has links to the ranks of its row and of its
// column. These are about 2 sqrt(n), and it reaches all ranks in two steps:
//
//   places    0  1  2        A place is a rank's position in the HostLayout. Ranks of a host are adjacent.
//             3  4  5        Place 4 has links to 3 and 5, and to 1 and 7. It reaches 2 through 1 or 5.
//             6  7
//
// The ranks of each host also have the links of a second MeshPlan, made for that host's ranks only. Calls among them
// need no other host.
//
// Complexity: linked() and corner() O(1); neighbours() O(n) if the plan is full, otherwise about O(sqrt n + ranks of
// the host). Thread safety: values.
#pragma once

#include <utility>
#include <vector>

#include "rondo/host_layout.h"
#include "rondo/types.h"

namespace rondo {

class MeshPlan {
 public:
  MeshPlan() : MeshPlan(0, 0) {}
  /// most_full: up to this number of ranks, in the communicator and on a host, all pairs have a link.
  MeshPlan(HostLayout hosts, int most_full) : most_full_(most_full), hosts_(std::move(hosts)) {}

  int nranks() const { return hosts_.nranks(); }
  bool is_full() const { return nranks() <= most_full_; }
  bool linked(Rank a, Rank b) const;
  std::vector<Rank> neighbours(Rank r) const;
  /// Returns all ranks by place, or by rank if the plan is full.
  std::vector<Rank> order() const;

  /// Returns the rank in a's row and b's column, through which a and b can reach each other, or -1 if there is none.
  Rank corner(Rank a, Rank b) const;

  /// Returns the number of columns of a grid of n places.
  static size_t columns(size_t n);

  const HostLayout& hosts() const { return hosts_; }
  int most_full() const { return most_full_; }

 private:
  bool joined(int place_a, int place_b, int num_places) const;

  int most_full_;
  HostLayout hosts_;
};

}  // namespace rondo
