// hwloc's library, opened at run time, and the processors of a topology that it has loaded.
//
// Only for files that are compiled with hwloc's headers (RONDO_HAVE_HWLOC): host_reader.cc, and the reader of
// `rondo topo`, tools/topology/host_source.cc. Thread safety: as hwloc's.
#pragma once

#include <hwloc.h>

#include <memory>
#include <string_view>
#include <vector>

#include "rondo/status.h"
#include "topology/host.h"

namespace rondo {

// X(name): the functions of hwloc in use, with hwloc's own declarations. The inline functions of its headers would call
// the library as if it were linked; the few needed ones are reimplemented here.
#define RONDO_HWLOC(X)            \
  X(get_api_version)              \
  X(topology_init)                \
  X(topology_destroy)             \
  X(topology_set_synthetic)       \
  X(topology_set_xmlbuffer)       \
  X(topology_set_flags)           \
  X(topology_set_io_types_filter) \
  X(topology_load)                \
  X(topology_is_thissystem)       \
  X(topology_get_allowed_cpuset)  \
  X(topology_export_xmlbuffer)    \
  X(free_xmlbuffer)               \
  X(get_type_depth)               \
  X(get_obj_by_depth)             \
  X(obj_type_is_dcache)           \
  X(bitmap_isincluded)            \
  X(bitmap_iszero)                \
  X(bitmap_weight)                \
  X(distances_get_by_type)        \
  X(distances_release)

struct Hwloc {
#define RONDO_X(name) decltype(&::hwloc_##name) name = nullptr;
  RONDO_HWLOC(RONDO_X)
#undef RONDO_X
};

/// The functions, if have_hwloc().
const Hwloc& hwloc();
/// The value of an object's attribute; nullptr if it has none with this name.
const char* info_of(hwloc_obj_t o, std::string_view name);

struct DestroyTopology {
  void operator()(hwloc_topology* t) const { hwloc().topology_destroy(t); }
};
using HwlocTopology = std::unique_ptr<hwloc_topology, DestroyTopology>;
/// A topology that is not loaded yet. Errors: kUnsupported (no hwloc), kSystem.
Expected<HwlocTopology> new_topology();
/// Loads it, the PUs included that this process may not use. Errors: kSystem.
Status load_topology(hwloc_topology_t t);

/// The packages and NUMA nodes of sets of CPUs, as indices of the HostTopology; -1: none.
class HwlocPlaces {
 public:
  explicit HwlocPlaces(hwloc_topology_t t) : t_(t) {}
  std::vector<hwloc_obj_t> all(hwloc_obj_type_t type) const;
  /// The package with all these CPUs; -1: several packages.
  int package_of(hwloc_const_cpuset_t cpus) const;
  /// If several nodes contain a CPU (memory of several kinds), the node with the fewest CPUs, then the first.
  int node_of(hwloc_const_cpuset_t cpus) const;

 private:
  hwloc_topology_t t_;
};

/// The processors of a loaded topology. `this_machine`: it was loaded from the running system.
HostTopology processors_of(hwloc_topology_t t, bool this_machine);

}  // namespace rondo
