#include "topology/host_reader.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/function_table.h"
#ifdef RONDO_HAVE_HWLOC
#include "topology/hwloc.h"
#endif

namespace rondo {

bool have_hwloc() { return why_no_hwloc().empty(); }

Status no_hwloc() { return unsupported("reading the topology of a host needs hwloc: {}", why_no_hwloc()); }

#ifndef RONDO_HAVE_HWLOC

std::string why_no_hwloc() {
  return "this build has no hwloc: install its headers (Debian: libhwloc-dev and pkg-config) and configure anew";
}
Expected<HostTopology> read_processors() { return no_hwloc(); }

#else

namespace {

std::string open_hwloc(Hwloc& table) {
  constexpr const char* kLibrary = "libhwloc.so.15";  // hwloc 2
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* text = dlerror();
    return text != nullptr ? text : fmt::format("{} cannot be opened", kLibrary);
  }
#define RONDO_X(name)                                                                       \
  table.name = reinterpret_cast<decltype(&::hwloc_##name)>(dlsym(library, "hwloc_" #name)); \
  if (table.name == nullptr) return fmt::format("{} lacks hwloc_{}", kLibrary, #name);
  RONDO_HWLOC(RONDO_X)
#undef RONDO_X
  const unsigned there = table.get_api_version();
  if (there >> 16 != HWLOC_API_VERSION >> 16)
    return fmt::format("{} has the interface {:#x}, this build {:#x}", kLibrary, there, HWLOC_API_VERSION);
  return {};
}

using Table = FunctionTable<Hwloc, open_hwloc>;

int index_of(hwloc_obj_t o) { return static_cast<int>(o->logical_index); }

// Fills one HostTopology from one loaded topology.
class Reader {
 public:
  explicit Reader(hwloc_topology_t t) : t_(t), places_(t) {}

  HostTopology read(bool this_machine) {
    host_.this_machine = this_machine && hwloc().topology_is_thissystem(t_) != 0;
    if (const char* name = info_of(hwloc().get_obj_by_depth(t_, 0, 0), "HostName")) host_.name = name;
    for (hwloc_obj_t p : places_.all(HWLOC_OBJ_PACKAGE)) {
      const char* model = info_of(p, "CPUModel");
      host_.packages.push_back({os(p), model != nullptr ? model : ""});
    }
    if (host_.packages.empty()) host_.packages.push_back({});  // some virtual machines have none
    for (hwloc_obj_t n : places_.all(HWLOC_OBJ_NUMANODE))
      host_.nodes.push_back({os(n), places_.package_of(n->cpuset), n->attr->numanode.local_memory, 0});
    const auto pus = places_.all(HWLOC_OBJ_PU), cores = places_.all(HWLOC_OBJ_CORE);
    host_.pus.resize(pus.size());
    const std::vector<hwloc_obj_t>& places = cores.empty() ? pus : cores;  // no cores: each PU is one
    for (hwloc_obj_t c : places) add_core(c, pus);
    read_caches(places);
    read_distances();
    return std::move(host_);
  }

 private:
  static int os(hwloc_obj_t o) { return o->os_index == HWLOC_UNKNOWN_INDEX ? -1 : static_cast<int>(o->os_index); }

  void add_core(hwloc_obj_t at, const std::vector<hwloc_obj_t>& pus) {
    hwloc_const_cpuset_t allowed = hwloc().topology_get_allowed_cpuset(t_);
    cpu_set_t mask;
    const bool masked = host_.this_machine && sched_getaffinity(0, sizeof mask, &mask) == 0;
    Core core{os(at), places_.package_of(at->cpuset), places_.node_of(at->cpuset), {}, {}};
    for (hwloc_obj_t pu : pus) {
      if (!hwloc().bitmap_isincluded(pu->cpuset, at->cpuset)) continue;
      const bool in_mask = !masked || (pu->os_index < CPU_SETSIZE && CPU_ISSET(pu->os_index, &mask));
      core.pus.push_back(index_of(pu));
      Pu& mine = host_.pus[pu->logical_index];
      mine = {os(pu), static_cast<int>(host_.cores.size()), in_mask && hwloc().bitmap_isincluded(pu->cpuset, allowed)};
    }
    if (core.numa >= 0) ++host_.nodes[core.numa].num_cores;
    host_.cores.push_back(std::move(core));
  }

  void read_caches(const std::vector<hwloc_obj_t>& places) {
    std::map<std::pair<int, unsigned>, int> known;  // by level and number
    for (size_t c = 0; c < places.size(); ++c)
      for (hwloc_obj_t o = places[c]; o != nullptr; o = o->parent) {
        if (hwloc().obj_type_is_dcache(o->type) == 0) continue;
        const auto& a = o->attr->cache;
        const auto [it, is_new] =
            known.try_emplace({static_cast<int>(a.depth), o->logical_index}, static_cast<int>(host_.caches.size()));
        if (is_new) host_.caches.push_back({static_cast<int>(a.depth), a.size, static_cast<int>(a.linesize), 0});
        ++host_.caches[it->second].num_cores;
        host_.cores[c].caches.push_back(it->second);
      }
  }

  void read_distances() {
    unsigned count = 1;
    hwloc_distances_s* found = nullptr;
    if (hwloc().distances_get_by_type(t_, HWLOC_OBJ_NUMANODE, &count, &found, HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) !=
            0 ||
        count == 0)
      return;
    const size_t n = host_.nodes.size();
    std::vector<uint32_t> values(n * n, 0);
    if (found->nbobjs == n) {
      for (unsigned i = 0; i < found->nbobjs; ++i)
        for (unsigned j = 0; j < found->nbobjs; ++j)
          values[found->objs[i]->logical_index * n + found->objs[j]->logical_index] =
              static_cast<uint32_t>(std::min<uint64_t>(found->values[i * found->nbobjs + j], 1u << 20));
      host_.node_distances = std::move(values);
    }
    hwloc().distances_release(t_, found);
  }

  hwloc_topology_t t_;
  const HwlocPlaces places_;
  HostTopology host_;
};

}  // namespace

std::string why_no_hwloc() { return Table::why_not(); }
const Hwloc& hwloc() { return *Table::get(); }

const char* info_of(hwloc_obj_t o, std::string_view name) {
  for (unsigned i = 0; i < o->infos_count; ++i)
    if (name == o->infos[i].name) return o->infos[i].value;
  return nullptr;
}

Expected<HwlocTopology> new_topology() {
  if (!have_hwloc()) return no_hwloc();
  hwloc_topology_t t = nullptr;
  if (hwloc().topology_init(&t) != 0) return Status(StatusCode::kSystem, "hwloc_topology_init failed");
  return HwlocTopology(t);
}

Status load_topology(hwloc_topology_t t) {
  hwloc().topology_set_flags(t, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (hwloc().topology_load(t) == 0) return {};
  return make_error(StatusCode::kSystem, "hwloc_topology_load: {}", std::strerror(errno));
}

std::vector<hwloc_obj_t> HwlocPlaces::all(hwloc_obj_type_t type) const {
  std::vector<hwloc_obj_t> found;
  const int depth = hwloc().get_type_depth(t_, type);
  for (unsigned i = 0;; ++i) {
    hwloc_obj_t o = hwloc().get_obj_by_depth(t_, depth, i);
    if (o == nullptr) return found;
    found.push_back(o);
  }
}

int HwlocPlaces::package_of(hwloc_const_cpuset_t cpus) const {
  if (hwloc().bitmap_iszero(cpus)) return -1;
  const auto packages = all(HWLOC_OBJ_PACKAGE);
  if (packages.empty()) return 0;
  for (hwloc_obj_t p : packages)
    if (hwloc().bitmap_isincluded(cpus, p->cpuset)) return index_of(p);
  return -1;
}

int HwlocPlaces::node_of(hwloc_const_cpuset_t cpus) const {
  hwloc_obj_t best = nullptr;
  for (hwloc_obj_t n : all(HWLOC_OBJ_NUMANODE))
    if (hwloc().bitmap_isincluded(cpus, n->cpuset) &&
        (best == nullptr || hwloc().bitmap_weight(n->cpuset) < hwloc().bitmap_weight(best->cpuset)))
      best = n;
  return best != nullptr ? index_of(best) : -1;
}

HostTopology processors_of(hwloc_topology_t t, bool this_machine) { return Reader(t).read(this_machine); }

Expected<HostTopology> read_processors() {
  RONDO_TRY_ASSIGN(const HwlocTopology t, new_topology());
  RONDO_TRY(load_topology(t.get()));
  return processors_of(t.get(), true);
}

#endif

}  // namespace rondo
