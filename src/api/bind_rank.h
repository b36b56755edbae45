// What RONDO_BIND asks for is done where communicators are made. A rank that joins others (a process, or a thread that
// calls init_rank) binds the thread that makes the communicator, before it touches memory; threads that this one starts
// later inherit the mask, as Linux has it. Ranks of init_all have no thread of their own yet, so only their progress
// threads are bound. It stays so when the communicator ends: whoever wants the old mask back has to keep it.
//
// One line on stderr for each rank says what was bound, or why nothing was: a place that cannot be had is no reason to
// fail, a setting that cannot be served is one (settings_from).
//
// Thread safety: any thread.
#pragma once

#include <optional>
#include <vector>

#include "plan/settings.h"
#include "topology/binding.h"

namespace rondo {

/// The calling thread to the place of host[self], among the ranks of its host. `rank` is its number in the
/// communicator, for what is said. Nothing when it could not be.
std::optional<Binding> bind_calling_thread(Rank rank, const std::vector<Settings>& host, size_t self);
/// Where the progress threads of ranks that are threads of this process should run; nothing for ranks without
/// RONDO_BIND.
std::vector<std::optional<Binding>> bindings_of_threads(const std::vector<Settings>& all);

}  // namespace rondo
