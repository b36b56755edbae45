// The places of a host's ranks: PUs, GPU and NIC. Pure functions of a description, equal on all ranks with equal
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

#include "topology/host.h"

namespace rondo {

/// The place of a rank. Indices are HostTopology's.
struct Placement {
  int gpu = -1;
  int core = -1;
  int package = -1, numa = -1;  // the core's
  std::vector<int> pus;         // of the core: all of them if the rank has it to itself, else the rank's share
  bool shared = false;          // another rank uses the same PUs
  bool away = false;            // its GPU's NUMA node has no allowed core
  int nic = -1;                 // the nearest, see below
};

struct PlaceRequest {
  int num_ranks = 0;
  std::span<const int> gpus = {};  // one per rank; empty: no GPUs
};

/// By rank. The NIC is an RDMA device, if there are any: the one with the shortest PCI path to the rank's GPU, else on
/// the core's NUMA node, else in its package; among equals the one with the fewest ranks. Errors: kInvalidArgument (no
/// rank, no allowed PU, a nonexistent GPU). O(ranks * NICs + PUs).
Expected<std::vector<Placement>> place_ranks(const HostTopology& host, const PlaceRequest& request);

/// The allowed PUs of the rank's NUMA node; without nodes, all allowed PUs.
std::vector<int> node_pus(const HostTopology& host, const Placement& place);

/// The GPUs for one rank each: gpu_machine's, or all if that is unknown.
std::vector<int> usable_gpus(const HostTopology& host);

}  // namespace rondo
