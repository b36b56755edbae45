// Binding of threads to the places of ranks, as RONDO_BIND asks. What a launcher or the caller has set is narrowed and
// never widened: a thread's new mask is the part of its old one that lies in the place.
//
// choose_binding is pure; the others look at this process and this machine.
#pragma once

#include <sched.h>

#include <span>
#include <string>
#include <string_view>

#include "topology/host.h"

namespace rondo {

enum class BindTo : uint8_t { kNone, kCore, kNuma };
/// "none", "core" or "numa"; nothing else gets here. Empty: none.
BindTo bind_from_name(std::string_view name);

struct Binding {
  cpu_set_t cpus{};
  std::string text;  // "core 1 (CPU 1) of NUMA node 0"
};

/// What binding needs to know of a rank. Ranks with equal masks and equal NUMA nodes of their GPUs share what these
/// allow; a rank whose launcher gave it a mask of its own stays in that.
struct RankCpus {
  cpu_set_t cpus{};
  int gpu_numa = -1;  // the kernel's number of the NUMA node of its GPU; -1: no GPU, or unknown
};

/// Of rank `rank` among the ranks of its host. Errors: kInvalidArgument (the mask allows none of the host's CPUs).
Expected<Binding> choose_binding(const HostTopology& host, std::span<const RankCpus> ranks, size_t rank, BindTo to);

/// The calling thread onto the binding's CPUs, as far as its mask has them. Errors: kSystem, and kUnsupported where its
/// mask has none of them: the mask then stays as it was.
Status bind_this_thread(const Binding& binding);

}  // namespace rondo
