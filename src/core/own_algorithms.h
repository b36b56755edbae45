// Algorithms from outside of the library, as communicators see them (rondo/algorithm.h is the public side).
//
// Thread safety: as the registry, any thread.
#pragma once

#include "rondo/algorithm.h"

namespace rondo {

/// Proves every algorithm that was registered from outside for ranks on such hosts, once. Errors: kInvalidArgument as
/// of prove_algorithm, naming the algorithm.
Status prove_own_algorithms(const HostLayout& hosts);

}  // namespace rondo
