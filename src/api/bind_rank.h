// Binding of threads to CPUs, as RONDO_BIND requests, when a communicator is made. A rank that joins others (a process,
// or a thread that calls init_rank) binds the thread that makes the communicator, before it touches memory. Threads
// that this thread starts later inherit the mask. Ranks of init_all have no thread yet, so only their progress threads
// are bound. The binding stays when the communicator ends. A caller that needs the old mask must save it.
//
// Each rank prints one line to stderr: what was bound, or the reason why not. If the CPUs are not available, this is
// not an error. If the setting cannot be used at all, making the communicator fails (settings_from).
//
// Thread safety: any thread.
#pragma once

#include <optional>
#include <vector>

#include "plan/settings.h"
#include "topology/binding.h"

namespace rondo {

/// Binds the calling thread to the CPUs of host[self]. `host`: the settings of the ranks of this host. `rank`: its
/// number in the communicator, for the printed line. Returns nothing if the thread could not be bound.
std::optional<Binding> bind_calling_thread(Rank rank, const AllSettings& host, size_t self);
/// Returns the bindings of the progress threads of ranks that are threads of this process, by rank. An entry is empty
/// without RONDO_BIND, or if the rank cannot be bound.
std::vector<std::optional<Binding>> bindings_of_threads(const AllSettings& all);

}  // namespace rondo
