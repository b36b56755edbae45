// Binds threads to the places of ranks (RONDO_BIND). The mask of a launcher or caller is narrowed and never widened: a
// thread's new mask is the part of its old one within the place.
//
// choose_binding is pure; the others read this process and this machine.
#pragma once

#include <sched.h>

#include <span>
#include <string>
#include <string_view>

#include "rondo/status.h"
#include "topology/host.h"

namespace rondo {

enum class BindTo : uint8_t { kNone, kCore, kNuma };
/// "none", "core" or "numa", already validated. Empty: none.
BindTo bind_from_name(std::string_view name);

struct Binding {
  cpu_set_t cpus{};
  std::string text;  // "core 1 (CPU 1) of NUMA node 0"
};

/// The CPUs of a rank for binding. Ranks with equal masks and equal NUMA nodes of their GPUs share these CPUs; a rank
/// with its own mask from the launcher stays in it.
struct RankCpus {
  cpu_set_t cpus{};
  int gpu_numa = -1;  // the kernel's number of its GPU's NUMA node; -1: no GPU, or unknown
};

/// The binding of rank `rank` among the ranks of its host. Errors: kInvalidArgument (the mask allows none of the host's
/// CPUs).
Expected<Binding> choose_binding(const HostTopology& host, std::span<const RankCpus> ranks, size_t rank, BindTo to);

/// Binds the calling thread to the binding's CPUs within its mask. Errors: kSystem; kUnsupported if the mask has none
/// of them (the mask is then unchanged).
Status bind_this_thread(const Binding& binding);

}  // namespace rondo
