// The order of a host's ranks in rings and trees. It depends on the topology between the CPUs to which the launcher has
// bound the ranks (topology/local_order.h). One rank of each host reads the topology and sends the order.
//
// Thread safety: that of the Bootstrap's collective calls.
#pragma once

#include "bootstrap/bootstrap.h"
#include "plan/settings.h"

namespace rondo {

/// Returns `hosts` in this order; with one host, also with places. Returns it unchanged if ranks are not bound, if all
/// are equally near, or if hwloc is missing. Collective. Ranks exchange messages only if a host has more than two ranks
/// and not all their masks are equal. Errors: those of the Bootstrap.
Expected<HostLayout> order_by_places(Bootstrap& bootstrap, const AllSettings& all, const HostLayout& hosts);

}  // namespace rondo
