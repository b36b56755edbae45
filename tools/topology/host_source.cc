#include "topology/host_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#ifdef RONDO_HAVE_HWLOC
#include "topology/hwloc.h"
#endif

namespace rondo {

Expected<std::vector<int>> parse_cpu_list(std::string_view text) {
  constexpr int kMostCpus = 1 << 16;
  std::vector<bool> named(kMostCpus, false);
  const auto wrong = [&](std::string_view part) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("'{}': '{}' is neither the number of a CPU nor a range such as 4-7", text, part));
  };
  for (std::string_view rest = text;;) {
    const std::string_view part = rest.substr(0, rest.find(','));
    const size_t dash = part.find('-');
    const auto read = [](std::string_view digits, int& value) {
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
      return error == std::errc() && end == digits.data() + digits.size() && value >= 0 && value < kMostCpus;
    };
    int first = 0, last = 0;
    if (!read(part.substr(0, dash), first)) return wrong(part);
    last = first;
    if (dash != std::string_view::npos && (!read(part.substr(dash + 1), last) || last < first)) return wrong(part);
    for (int n = first; n <= last; ++n) named[static_cast<size_t>(n)] = true;
    if (part.size() == rest.size()) break;
    rest.remove_prefix(part.size() + 1);
  }
  std::vector<int> numbers;
  for (int n = 0; n < kMostCpus; ++n)
    if (named[static_cast<size_t>(n)]) numbers.push_back(n);
  return numbers;
}

#ifndef RONDO_HAVE_HWLOC

Expected<HostWithDevices> read_host(const HostSource&) { return no_hwloc(); }
Expected<std::string> host_xml(const HostSource&) { return no_hwloc(); }

#else

namespace {

using PciAttributes = hwloc_obj_attr_u::hwloc_pcidev_attr_s;

Status wrong_text(std::string what) { return Status(StatusCode::kInvalidArgument, std::move(what)); }

bool takes_synthetic(const std::string& description) {
  auto t = new_topology();
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
      return wrong_text(
          fmt::format("the synthetic description is wrong at level {}, '{}': expected a type and how many of it "
                      "each of the level before has, as NUMANode:2, in the order of hwloc's manual",
                      level, word));
  }
  if (level == 0)
    return wrong_text("the synthetic description is empty: it reads as \"Package:2 NUMANode:2 Core:4 PU:2\"");
  return wrong_text("the synthetic description is wrong: its last level has to be PU, as PU:1");
}

Expected<HwlocTopology> load(const HostSource& source) {
  using Kind = HostSource::Kind;
  if (source.kind == Kind::kXml) RONDO_TRY(check_xml(source.text));
  RONDO_TRY_ASSIGN(HwlocTopology t, new_topology());
  if (source.kind == Kind::kSynthetic && hwloc().topology_set_synthetic(t.get(), source.text.c_str()) != 0)
    return name_wrong_level(source.text);
  const Status refused = wrong_text(
      "hwloc refuses it, although it is well-formed: set HWLOC_XML_VERBOSE=1 to make hwloc report the reason");
  if (source.kind == Kind::kXml &&
      hwloc().topology_set_xmlbuffer(t.get(), source.text.c_str(), static_cast<int>(source.text.size()) + 1) != 0)
    return refused;
  hwloc().topology_set_io_types_filter(t.get(), HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  const Status loaded = load_topology(t.get());
  if (!loaded.ok()) return source.kind == Kind::kXml ? refused : loaded;
  return t;
}

// Fills the devices of one HostWithDevices from one loaded topology.
class DeviceReader {
 public:
  DeviceReader(hwloc_topology_t t, HostWithDevices& host) : places_(t), host_(host) {
    read_bridges_and_devices(hwloc().get_obj_by_depth(t, 0, 0));
    std::stable_sort(host_.nics.begin(), host_.nics.end(),
                     [](const HostNic& a, const HostNic& b) { return a.pci < b.pci; });
  }

 private:
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
    hwloc_obj_t place = o;
    while (place->cpuset == nullptr) place = place->parent;
    PciNode node;
    node.parent = parent;
    node.package = places_.package_of(place->cpuset);
    node.numa = places_.node_of(place->cpuset);
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

  const HwlocPlaces places_;
  HostWithDevices& host_;
};

}  // namespace

Expected<HostWithDevices> read_host(const HostSource& source) {
  RONDO_TRY_ASSIGN(const HwlocTopology t, load(source));
  HostWithDevices host{processors_of(t.get(), source.kind == HostSource::Kind::kThisMachine)};
  DeviceReader(t.get(), host);
  return host;
}

Expected<std::string> host_xml(const HostSource& source) {
  RONDO_TRY_ASSIGN(const HwlocTopology t, load(source));
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
