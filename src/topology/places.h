// Where the ranks of a host should run: which PUs, near which GPU, by which NIC. Pure functions of a description, equal
// on all ranks that start from equal descriptions.
//
// Ranks without GPUs are dealt out over the allowed cores in the machine's order, evenly: n ranks on C cores stand on
// the cores 0, C/n, 2C/n, ... So packages, NUMA nodes and caches get ranks in proportion to their cores, and ranks
// that follow one another are near. Every core has a rank before any has two, and every PU before any has two.
//
// A rank with a GPU gets a share of the cores of the NUMA node next to it, dealt out in the same way among the ranks of
// that node; where none of those is allowed, of the package's, and else of all.
//
// Thread safety: pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "topology/host.h"

namespace rondo {

/// Where a rank runs. Indices are HostTopology's.
struct Placement {
  int gpu = -1;
  int core = -1;
  int package = -1, numa = -1;  // the core's
  std::vector<int> pus;         // of the core: all where it is the rank's alone, else the rank's share
  bool shared = false;          // another rank has them too
  bool away = false;            // its GPU's NUMA node has no allowed core
  int nic = -1;                 // the nearest, see below
};

struct PlaceRequest {
  int num_ranks = 0;
  std::span<const int> gpus = {};  // of each rank; empty: ranks have none
};

/// By rank. The NIC: of the RDMA devices, or where there are none of all, the one with the shortest way through PCI to
/// the rank's GPU, else of the core's NUMA node, else of its package; of equal ones that with the fewest ranks.
/// Errors: kInvalidArgument (no rank, no allowed PU, a GPU that there is not). O(ranks * NICs + PUs).
Expected<std::vector<Placement>> place_ranks(const HostTopology& host, const PlaceRequest& request);

/// The allowed PUs of the rank's NUMA node; of a machine without nodes, all that are allowed.
std::vector<int> node_pus(const HostTopology& host, const Placement& place);

/// The GPUs to place one rank on each: gpu_machine's, or where that is not known, all.
std::vector<int> usable_gpus(const HostTopology& host);

}  // namespace rondo
