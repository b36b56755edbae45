// The order of a host's ranks in rings and trees. It depends on the topology between the CPUs to which the launcher has
// bound the ranks (topology/local_order.h). One rank of each host reads the topology and sends the order.
//
// Thread safety: that of the Bootstrap's collective calls.
#pragma once

#include "bootstrap/bootstrap.h"
#include "plan/settings.h"

namespace rondo {

/// Several hosts: returns `hosts` in this order. One host: returns `hosts` with places that have this order. Returns
/// `hosts` unchanged if hwloc is missing, or if local_order() finds no useful order: for example, ranks are not bound,
/// or all are equally near. Collective. Ranks exchange messages only if a host has more than two ranks and not all
/// their masks are equal. Errors: those of the Bootstrap.
Expected<HostLayout> order_by_places(Bootstrap& bootstrap, const AllSettings& all, const HostLayout& hosts);

}  // namespace rondo
