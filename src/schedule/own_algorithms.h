// Proofs of algorithms from outside the library, for communicators (rondo/algorithm.h is the public side).
//
// Thread safety: any thread, as for the registry.
#pragma once

#include "rondo/algorithm.h"

namespace rondo {

/// Proves every algorithm registered from outside for these hosts, once. Errors: kInvalidArgument as from
/// prove_algorithm, naming the algorithm.
Status prove_own_algorithms(const HostLayout& hosts);

/// The proofs of register_algorithm: 1 to 8 ranks, by itself, and before and after every other row. Errors:
/// kInvalidArgument as from prove_algorithm.
Status prove_for_registration(const Algorithm& algorithm);

/// From now on register_algorithm accepts rows without a proof, for `rondo explain --unproven`. This process can no
/// longer make a communicator: prove_own_algorithms refuses all.
void register_without_proof();

}  // namespace rondo
