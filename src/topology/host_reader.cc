#include "topology/host_reader.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>

#ifdef RONDO_HAVE_HWLOC
#include <hwloc.h>
#endif

namespace rondo {

namespace {
Status missing() {
  return Status(StatusCode::kUnsupported,
                fmt::format("reading the topology of a host needs hwloc: {}", why_no_hwloc()));
}
}  // namespace

bool have_hwloc() { return why_no_hwloc().empty(); }

#ifndef RONDO_HAVE_HWLOC

std::string why_no_hwloc() {
  return "this build has no hwloc: install its headers (Debian: libhwloc-dev and pkg-config) and configure anew";
}
Expected<HostTopology> read_host(const HostSource&) { return missing(); }
Expected<std::string> host_xml(const HostSource&) { return missing(); }

#else

namespace {

// X(name): the functions of hwloc in use, with hwloc's own declarations. The inline functions of its headers would call
// the library as if it were linked; the few needed ones are reimplemented below.
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

struct Found {
  Hwloc table;
  std::string why_not;
};
const Found& found() {
  static const Found* const result = [] {
    auto* f = new Found;
    f->why_not = open_hwloc(f->table);
    return f;
  }();
  return *result;
}
const Hwloc& hwloc() { return found().table; }

hwloc_obj_t root_of(hwloc_topology_t t) { return hwloc().get_obj_by_depth(t, 0, 0); }
const char* info_of(hwloc_obj_t o, std::string_view name) {
  for (unsigned i = 0; i < o->infos_count; ++i)
    if (name == o->infos[i].name) return o->infos[i].value;
  return nullptr;
}
hwloc_obj_t non_io_ancestor_of(hwloc_obj_t o) {
  while (o != nullptr && o->cpuset == nullptr) o = o->parent;
  return o;
}

struct DestroyTopology {
  void operator()(hwloc_topology* t) const { hwloc().topology_destroy(t); }
};
using Topology = std::unique_ptr<hwloc_topology, DestroyTopology>;
using PciAttributes = hwloc_obj_attr_u::hwloc_pcidev_attr_s;

Status wrong(std::string what) { return Status(StatusCode::kInvalidArgument, std::move(what)); }

Expected<Topology> begin_topology() {
  if (!have_hwloc()) return missing();
  hwloc_topology_t t = nullptr;
  if (hwloc().topology_init(&t) != 0) return Status(StatusCode::kSystem, "hwloc_topology_init failed");
  return Topology(t);
}

bool takes_synthetic(const std::string& description) {
  auto t = begin_topology();
  return t.ok() && hwloc().topology_set_synthetic(t->get(), description.c_str()) == 0;
}

// hwloc only reports that the description is wrong. Names the first level at which a prefix of it fails.
Status name_wrong_level(const std::string& description) {
  std::string so_far;
  int level = 0;
  for (size_t at = 0; at < description.size();) {
    size_t end = at, depth = 0;  // blanks inside parentheses belong to the level
    for (; end < description.size() && (depth > 0 || description[end] != ' '); ++end)
      depth += description[end] == '(' ? 1 : description[end] == ')' && depth > 0 ? -1 : 0;
    const std::string word = description.substr(at, end - at);
    at = end + 1;
    if (word.empty()) continue;
    so_far += (so_far.empty() ? "" : " ") + word;
    ++level;
    if (!takes_synthetic(so_far) && !takes_synthetic(so_far + " PU:1"))
      return wrong(
          fmt::format("the synthetic description is wrong at level {}, '{}': expected a type and how many of it "
                      "each of the level before has, as NUMANode:2, in the order of hwloc's manual",
                      level, word));
  }
  if (level == 0) return wrong("the synthetic description is empty: it reads as \"Package:2 NUMANode:2 Core:4 PU:2\"");
  return wrong("the synthetic description is wrong: its last level has to be PU, as PU:1");
}

Expected<Topology> load(const HostSource& source) {
  using Kind = HostSource::Kind;
  if (source.kind == Kind::kXml) RONDO_TRY(check_xml(source.text));
  RONDO_TRY_ASSIGN(Topology t, begin_topology());
  if (source.kind == Kind::kSynthetic && hwloc().topology_set_synthetic(t.get(), source.text.c_str()) != 0)
    return name_wrong_level(source.text);
  const Status refused =
      wrong("hwloc refuses it, although it is well-formed: set HWLOC_XML_VERBOSE=1 to make hwloc report the reason");
  if (source.kind == Kind::kXml &&
      hwloc().topology_set_xmlbuffer(t.get(), source.text.c_str(), static_cast<int>(source.text.size()) + 1) != 0)
    return refused;
  hwloc().topology_set_flags(t.get(), HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (source.devices) hwloc().topology_set_io_types_filter(t.get(), HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc().topology_load(t.get()) != 0) {
    if (source.kind == Kind::kXml) return refused;
    return Status(StatusCode::kSystem, fmt::format("hwloc_topology_load: {}", std::strerror(errno)));
  }
  return t;
}

// Fills one HostTopology from one loaded topology.
class Reader {
 public:
  explicit Reader(hwloc_topology_t t) : t_(t) {}

  HostTopology read(bool this_machine) {
    host_.this_machine = this_machine && hwloc().topology_is_thissystem(t_) != 0;
    if (const char* name = info_of(root_of(t_), "HostName")) host_.name = name;
    for (hwloc_obj_t p : all(HWLOC_OBJ_PACKAGE)) {
      const char* model = info_of(p, "CPUModel");
      host_.packages.push_back({os(p), model != nullptr ? model : ""});
    }
    if (host_.packages.empty()) host_.packages.push_back({});  // some virtual machines and status pages have none
    read_nodes();
    read_cores();
    read_caches();
    read_distances();
    read_bridges_and_devices(root_of(t_));
    std::stable_sort(host_.nics.begin(), host_.nics.end(),
                     [](const HostNic& a, const HostNic& b) { return a.pci < b.pci; });
    return std::move(host_);
  }

 private:
  static int os(hwloc_obj_t o) { return o->os_index == HWLOC_UNKNOWN_INDEX ? -1 : static_cast<int>(o->os_index); }
  static int index(hwloc_obj_t o) { return static_cast<int>(o->logical_index); }
  std::vector<hwloc_obj_t> all(hwloc_obj_type_t type) const {
    std::vector<hwloc_obj_t> found;
    const int depth = hwloc().get_type_depth(t_, type);
    for (unsigned i = 0;; ++i) {
      hwloc_obj_t o = hwloc().get_obj_by_depth(t_, depth, i);
      if (o == nullptr) return found;
      found.push_back(o);
    }
  }
  // The package with all these CPUs; -1: several packages.
  int package_of(hwloc_const_cpuset_t cpus) const {
    if (hwloc().bitmap_iszero(cpus)) return -1;
    const auto packages = all(HWLOC_OBJ_PACKAGE);
    if (packages.empty()) return 0;
    for (hwloc_obj_t p : packages)
      if (hwloc().bitmap_isincluded(cpus, p->cpuset)) return index(p);
    return -1;
  }
  // If several nodes contain a CPU (memory of several kinds), the node with the fewest CPUs, then the first.
  int node_of(hwloc_const_cpuset_t cpus) const {
    hwloc_obj_t best = nullptr;
    for (hwloc_obj_t n : all(HWLOC_OBJ_NUMANODE))
      if (hwloc().bitmap_isincluded(cpus, n->cpuset) &&
          (best == nullptr || hwloc().bitmap_weight(n->cpuset) < hwloc().bitmap_weight(best->cpuset)))
        best = n;
    return best != nullptr ? index(best) : -1;
  }

  void read_nodes() {
    for (hwloc_obj_t n : all(HWLOC_OBJ_NUMANODE))
      host_.nodes.push_back({os(n), package_of(n->cpuset), n->attr->numanode.local_memory, 0});
  }

  void add_core(hwloc_obj_t at, const std::vector<hwloc_obj_t>& pus) {
    hwloc_const_cpuset_t allowed = hwloc().topology_get_allowed_cpuset(t_);
    cpu_set_t mask;
    const bool masked = host_.this_machine && sched_getaffinity(0, sizeof mask, &mask) == 0;
    Core core{os(at), package_of(at->cpuset), node_of(at->cpuset), {}, {}};
    for (hwloc_obj_t pu : pus) {
      if (!hwloc().bitmap_isincluded(pu->cpuset, at->cpuset)) continue;
      const bool in_mask = !masked || (pu->os_index < CPU_SETSIZE && CPU_ISSET(pu->os_index, &mask));
      core.pus.push_back(index(pu));
      Pu& mine = host_.pus[pu->logical_index];
      mine = {os(pu), static_cast<int>(host_.cores.size()), in_mask && hwloc().bitmap_isincluded(pu->cpuset, allowed)};
    }
    if (core.numa >= 0) ++host_.nodes[static_cast<size_t>(core.numa)].num_cores;
    host_.cores.push_back(std::move(core));
  }

  void read_cores() {
    const auto pus = all(HWLOC_OBJ_PU), cores = all(HWLOC_OBJ_CORE);
    host_.pus.resize(pus.size());
    for (hwloc_obj_t c : cores.empty() ? pus : cores) add_core(c, pus);  // no cores: each PU is one
  }

  void read_caches() {
    std::vector<hwloc_obj_t> places = all(HWLOC_OBJ_CORE);
    if (places.empty()) places = all(HWLOC_OBJ_PU);
    std::map<std::pair<int, unsigned>, int> known;  // by level and number
    for (size_t c = 0; c < places.size(); ++c)
      for (hwloc_obj_t o = places[c]; o != nullptr; o = o->parent) {
        if (hwloc().obj_type_is_dcache(o->type) == 0) continue;
        const auto& a = o->attr->cache;
        const auto [it, is_new] =
            known.try_emplace({static_cast<int>(a.depth), o->logical_index}, static_cast<int>(host_.caches.size()));
        if (is_new) host_.caches.push_back({static_cast<int>(a.depth), a.size, static_cast<int>(a.linesize), 0});
        ++host_.caches[static_cast<size_t>(it->second)].num_cores;
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

  void read_bridges_and_devices(hwloc_obj_t at) {
    for (hwloc_obj_t c = at->io_first_child; c != nullptr; c = c->next_sibling) read_io(c, -1);
    for (hwloc_obj_t c = at->first_child; c != nullptr; c = c->next_sibling) read_bridges_and_devices(c);
  }

  static std::string address(const PciAttributes& a) {
    return fmt::format("{:04x}:{:02x}:{:02x}.{:01x}", static_cast<unsigned>(a.domain), a.bus, a.dev, a.func);
  }
  static std::string text_info(hwloc_obj_t o, const char* key) {
    const char* value = info_of(o, key);
    return value != nullptr ? value : "";
  }

  void read_io(hwloc_obj_t o, int parent) {
    if (o->type == HWLOC_OBJ_MISC || o->type == HWLOC_OBJ_OS_DEVICE) return;  // read with their PCI device
    hwloc_obj_t place = non_io_ancestor_of(o);
    PciNode node;
    node.parent = parent;
    node.package = package_of(place->cpuset);
    node.numa = node_of(place->cpuset);
    if (o->type == HWLOC_OBJ_BRIDGE && o->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST) {
      const auto& d = o->attr->bridge.downstream.pci;
      node.kind = PciNode::Kind::kHostBridge;
      node.address =
          fmt::format("{:04x}:[{:02x}-{:02x}]", static_cast<unsigned>(d.domain), d.secondary_bus, d.subordinate_bus);
    } else {
      const PciAttributes& a = o->type == HWLOC_OBJ_BRIDGE ? o->attr->bridge.upstream.pci : o->attr->pcidev;
      node.kind = o->type == HWLOC_OBJ_BRIDGE ? PciNode::Kind::kBridge : PciNode::Kind::kDevice;
      node.address = address(a);
      node.link_gbps = static_cast<double>(a.linkspeed);
      node.name = text_info(o, "PCIDevice");
    }
    const auto self = static_cast<int>(host_.pci.size());
    host_.pci.push_back(std::move(node));
    if (o->type == HWLOC_OBJ_PCI_DEVICE) read_device(o, self);
    for (hwloc_obj_t c = o->io_first_child; c != nullptr; c = c->next_sibling) read_io(c, self);
  }

  // GPUs are 3D controllers and accelerators, graphics cards of vendors of computing GPUs, and devices found by a
  // computing interface. Display controllers of management chips are not GPUs.
  static bool is_gpu(hwloc_obj_t o) {
    constexpr unsigned kNvidia = 0x10de, kAmd = 0x1002, kVga = 0x0300, k3d = 0x0302, kDisplay = 0x0380,
                       kAccelerator = 0x1200;
    const PciAttributes& a = o->attr->pcidev;
    if (a.class_id == k3d || a.class_id == kAccelerator) return true;
    if ((a.class_id == kVga || a.class_id == kDisplay) && (a.vendor_id == kNvidia || a.vendor_id == kAmd)) return true;
    for (hwloc_obj_t c = o->io_first_child; c != nullptr; c = c->next_sibling)
      if (c->type == HWLOC_OBJ_OS_DEVICE && c->attr->osdev.type == HWLOC_OBJ_OSDEV_COPROC) return true;
    return false;
  }

  void read_device(hwloc_obj_t o, int self) {
    const PciNode& node = host_.pci[static_cast<size_t>(self)];
    if (is_gpu(o)) host_.gpus.push_back({node.name, node.address, self, node.package, node.numa, -1});
    HostNic nic{"", "", false, self, node.package, node.numa};
    for (hwloc_obj_t c = o->io_first_child; c != nullptr; c = c->next_sibling) {
      if (c->type != HWLOC_OBJ_OS_DEVICE || c->name == nullptr) continue;
      if (c->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS && !nic.rdma) {
        nic.name = c->name;
        nic.rdma = true;
      } else if (c->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK && nic.interface.empty()) {
        nic.interface = c->name;
      }
    }
    if (nic.name.empty()) std::swap(nic.name, nic.interface);
    if (!nic.name.empty()) host_.nics.push_back(std::move(nic));
  }

  hwloc_topology_t t_;
  HostTopology host_;
};

}  // namespace

std::string why_no_hwloc() { return found().why_not; }

Expected<HostTopology> read_host(const HostSource& source) {
  RONDO_TRY_ASSIGN(const Topology t, load(source));
  return Reader(t.get()).read(source.kind == HostSource::Kind::kThisMachine);
}

Expected<std::string> host_xml(const HostSource& source) {
  RONDO_TRY_ASSIGN(const Topology t, load(source));
  char* text = nullptr;
  int length = 0;
  if (hwloc().topology_export_xmlbuffer(t.get(), &text, &length, 0) != 0)
    return Status(StatusCode::kSystem, fmt::format("hwloc_topology_export_xmlbuffer: {}", std::strerror(errno)));
  std::string xml(text, static_cast<size_t>(std::max(0, length - 1)));  // without its final 0
  hwloc().free_xmlbuffer(t.get(), text);
  return xml;
}

#endif

}  // namespace rondo
