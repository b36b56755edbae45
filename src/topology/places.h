// The places of a host's ranks on its cores. Pure functions of a description, equal on all ranks with equal
// descriptions.
//
// Ranks without GPUs are distributed evenly over the allowed cores in the machine's order: n ranks on C cores get the
// cores 0, C/n, 2C/n, ... Packages, NUMA nodes and caches thus get ranks in proportion to their cores, and consecutive
// ranks are near. Every core has a rank before any has two, and every PU before any has two.
//
// A rank with a GPU gets a share of the cores of the GPU's NUMA node, distributed in the same way among the ranks of
// that node; if none of these is allowed, of its package, and else of all.
//
// Thread safety: pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "rondo/status.h"
#include "topology/host.h"

namespace rondo {

/// The place of a rank. Indices are HostTopology's.
struct Placement {
  int core = -1;
  int package = -1, numa = -1;  // the core's
  std::vector<int> pus = {};    // of the core: all of them if the rank has it to itself, else the rank's share
  bool shared = false;          // another rank uses the same PUs
  bool away = false;            // its GPU's NUMA node has no allowed core
};

/// The place of a rank's GPU; -1: unknown.
struct GpuPlace {
  int package = -1, numa = -1;
};

/// By rank. `gpus`: one per rank; empty: no GPUs. Errors: kInvalidArgument (no rank, no allowed PU). O(ranks + PUs).
Expected<std::vector<Placement>> place_ranks(const HostTopology& host, int num_ranks,
                                             std::span<const GpuPlace> gpus = {});

/// The allowed PUs of the rank's NUMA node; without nodes, all allowed PUs.
std::vector<int> node_pus(const HostTopology& host, const Placement& place);

/// "core 3 (CPUs 3,35) of NUMA node 0"
std::string place_text(const HostTopology& host, const Placement& place);
/// "CPUs 3,35"
std::string cpus_text(const std::vector<int>& os_numbers);

}  // namespace rondo
