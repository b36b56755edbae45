// The order in which rings and trees go through the ranks of a host: by what lies between the CPUs that their launcher
// has bound them to (topology/local_order.h), instead of by rank. One rank of each host looks, and tells all.
//
// Thread safety: as Bootstrap's collective calls.
#pragma once

#include <vector>

#include "bootstrap/bootstrap.h"
#include "plan/settings.h"

namespace rondo {

/// `hosts` in that order, or with places where there is one host. As it was where masks say nothing: ranks are not
/// bound, or all are equally near, or hwloc is missing. Collective, and a message exchange only where ranks of a host
/// have different masks and are more than two. Errors: those of the Bootstrap.
Expected<HostLayout> order_by_places(Bootstrap& bootstrap, const std::vector<Settings>& all, const HostLayout& hosts);

}  // namespace rondo
