// In which order a ring goes through the ranks of a host, and which of them are near to each other, by the CPUs that
// they are bound to.
//
//   ranks bound by turns to two packages     0 2 | 1 3     the ring goes 0 2 1 3: twice between packages, not four
//   times
//
// Thread safety: pure.
#pragma once

#include <sched.h>

#include <optional>
#include <span>
#include <vector>

#include "topology/host.h"

namespace rondo {

struct LocalOrder {
  std::vector<int> ring;    // the ranks (by their index) as ring_order has them (order.h), rank 0's group first
  std::vector<int> groups;  // by rank: equal for those whom nothing as slow parts as what parts the others
};

/// `masks`: of each rank. A rank counts as being where the first of its CPUs is. Nothing where that says little: a rank
/// may run on several packages, or on no CPU of this host; all are equally near, or each is a group of its own; or the
/// ring enters a group twice, as it may where nearness is no tree. O(ring_order).
std::optional<LocalOrder> local_order(const HostTopology& host, std::span<const cpu_set_t> masks);

}  // namespace rondo
