// Algorithms from outside of the library, as communicators see them (rondo/algorithm.h is the public side).
//
// Thread safety: as the registry, any thread.
#pragma once

#include "rondo/algorithm.h"

namespace rondo {

/// Proves every algorithm that was registered from outside for ranks on such hosts, once. Errors: kInvalidArgument as
/// of prove_algorithm, naming the algorithm.
Status prove_own_algorithms(const HostLayout& hosts);

/// All that register_algorithm proves of a row: 1 to 8 ranks, alone, and before and after every other row. Errors:
/// kInvalidArgument as of prove_algorithm.
Status prove_for_registration(const Algorithm& algorithm);

/// From now on register_algorithm takes rows without a proof, so that `rondo explain --unproven` can draw them. This
/// process makes no communicator any more: prove_own_algorithms refuses all of them.
void register_without_proof();

}  // namespace rondo
