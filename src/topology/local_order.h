// The ring order of a host's ranks, and groups of ranks that are near to each other, by their CPU binding.
//
//   ranks bound round robin to 2 packages    0 2 | 1 3     ring 0 2 1 3: crosses packages twice instead of four times
//
// Thread safety: pure.
#pragma once

#include <sched.h>

#include <optional>
#include <span>
#include <vector>

#include "topology/host.h"
#include "topology/places.h"

namespace rondo {

struct LocalOrder {
  std::vector<int> ring;    // the ranks (by index) in the order of ring_order (order.h), rank 0's group first
  std::vector<int> groups;  // by rank: equal for ranks joined by links faster than the slowest kind
};

/// Returns nothing if the order has no benefit: all ranks are equally near, or every group has one rank; or the ring
/// enters a group twice, which is possible if nearness is not a tree. O(ring_order).
std::optional<LocalOrder> local_order(const HostTopology& host, std::span<const Placement> places);
/// `masks`: one per rank. A rank's place is its first CPU's. Also returns nothing if a rank may run on several
/// packages, or on no CPU of this host.
std::optional<LocalOrder> local_order(const HostTopology& host, std::span<const cpu_set_t> masks);

}  // namespace rondo
