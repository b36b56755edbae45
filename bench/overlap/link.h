// An injected link between the ranks of a crew: each rank sends over a line of a given rate and latency
// (tests/support/link_transport.h).
#pragma once

#include <memory>

#include "rondo/communicator.h"
#include "startup/ranks.h"

namespace rondo::bench {

/// Ends the process with the reason on stderr if it cannot be made.
std::unique_ptr<Communicator> make_linked_communicator(Crew& crew, double bytes_per_us, double latency_us);

}  // namespace rondo::bench
