// Costs of the definitions that take a HostLayout, stated as rank arithmetic. The checker compares them with the
// schedules.
//
// Pure functions. O(ranks * hosts) at most.
#pragma once

#include "algorithms/two_levels.h"
#include "rondo/algorithm.h"

namespace rondo::algorithms {

Cost ring_all_reduce_cost(const HostLayout& hosts);
Cost ring_half_cost(const HostLayout& hosts);
Cost chain_cost(const HostLayout& hosts);
Cost tree_cost(const HostLayout& hosts);
Cost tree_broadcast_cost(const HostLayout& hosts);
Cost tree_reduce_cost(const HostLayout& hosts);

Cost hierarchical_all_reduce_cost(const HostLayout& hosts);
Cost hierarchical_reduce_scatter_cost(const HostLayout& hosts);
Cost hierarchical_all_gather_cost(const HostLayout& hosts);
Cost hierarchical_one_shot_cost(const HostLayout& hosts);
Cost hierarchical_broadcast_cost(const HostLayout& hosts);
Cost hierarchical_reduce_cost(const HostLayout& hosts);

}  // namespace rondo::algorithms
