// `rondo topo`: prints a host's topology, the places of its ranks, and the ring of their calls.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "device/driver/driver.h"
#include "device/topology/probe.h"
#include "topology/host_source.h"
#include "topology/host_svg.h"
#include "topology/host_text.h"
#include "topology/scene.h"

namespace rondo::tools {
namespace {

struct TopoOptions {
  std::optional<std::string> xml, synthetic, gpu_scene, svg, export_xml, cpus;
  int ranks = 0;
  bool gpus = false;
};

[[noreturn]] void fail_topo(std::string_view what, const Status& why) {
  fmt::print(stderr, "rondo topo: {}{}{}\n", what, what.empty() ? "" : ": ", why.message());
  throw CLI::RuntimeError(1);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  for (char buffer[4096]; file.read(buffer, sizeof buffer) || file.gcount() > 0;)
    text.append(buffer, static_cast<size_t>(file.gcount()));
  if (!file.is_open() || file.bad()) fail_topo(path, Status(StatusCode::kSystem, "cannot be read"));
  return text;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) fail_topo(path, Status(StatusCode::kSystem, "cannot be written"));
  fmt::print("wrote {}\n", path);
}

HostSource source_of(const TopoOptions& o) {
  if (o.xml) return {HostSource::Kind::kXml, read_file(*o.xml)};
  if (o.synthetic) return {HostSource::Kind::kSynthetic, *o.synthetic};
  return {};
}

// Adds the GPUs of a file, or of this machine if no other was requested.
void add_gpus(const TopoOptions& o, HostWithDevices& host) {
  if (o.gpu_scene) {
    const auto scene = parse_scene(read_file(*o.gpu_scene));
    if (!scene.ok()) fail_topo(*o.gpu_scene, scene.status());
    return join_gpus(host, scene->machine);
  }
  if (!host.this_machine || cuda::driver() == nullptr) return;
  const auto machine = probe_machine();
  if (machine.ok()) join_gpus(host, *machine);
  else fmt::print(stderr, "rondo topo: GPUs only by PCI: {}\n", machine.status().message());
}

std::vector<DevicePlacement> places_of(const TopoOptions& o, const HostWithDevices& host) {
  std::vector<int> gpus;
  const bool by_gpu = o.gpus || (o.ranks == 0 && !host.gpus.empty());
  if (by_gpu) gpus = usable_gpus(host);
  if (by_gpu && gpus.empty())
    fail_topo("--gpus",
              Status(StatusCode::kInvalidArgument, "this host has no GPU (--gpu-scene adds those of a file)"));
  const auto usable = [&](const Core& c) {
    return std::any_of(c.pus.begin(), c.pus.end(), [&](int pu) { return host.pus[static_cast<size_t>(pu)].allowed; });
  };
  int ranks = o.ranks;
  if (ranks == 0 && by_gpu) ranks = static_cast<int>(gpus.size());
  else if (ranks == 0)
    ranks = std::max(1, static_cast<int>(std::count_if(host.cores.begin(), host.cores.end(), usable)));
  if (by_gpu) {
    const size_t count = gpus.size();
    for (size_t r = count; r < static_cast<size_t>(ranks); ++r) gpus.push_back(gpus[r % count]);
    gpus.resize(static_cast<size_t>(ranks));
  }
  auto places = place_ranks_and_devices(host, ranks, gpus);
  if (!places.ok()) fail_topo("", places.status());
  return *places;
}

void run(const TopoOptions& o) {
  const HostSource source = source_of(o);
  const std::string what = o.xml ? *o.xml : o.synthetic ? "--synthetic" : "";
  auto host = read_host(source);
  if (!host.ok()) fail_topo(what, host.status());
  add_gpus(o, *host);
  if (o.cpus) {
    const auto cpus = parse_cpu_list(*o.cpus);
    if (!cpus.ok()) fail_topo("--cpus", cpus.status());
    restrict_pus(*host, *cpus);
  }
  const std::vector<DevicePlacement> places = places_of(o, *host);
  const auto order = local_order(*host, places);
  fmt::print("{}\n{}\n{}", describe_host(*host), describe_places(*host, places), describe_ring(*host, places, order));
  if (o.svg) write_file(*o.svg, host_svg(*host, places, order));
  if (!o.export_xml) return;
  const auto xml = host_xml(source);
  if (!xml.ok()) fail_topo(*o.export_xml, xml.status());
  write_file(*o.export_xml, *xml);
}

}  // namespace

void add_topo_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "topo", "Prints a host's packages, NUMA nodes, cores, GPUs and NICs, the places of ranks, and their ring");
  command->footer(
      "Examples:\n  rondo topo                         this machine; a rank for each GPU, or else for each core\n"
      "  rondo topo --ranks 6 --svg t.svg   six ranks, and a drawing\n"
      "  rondo topo --export-xml here.xml && rondo topo --xml here.xml\n"
      "  rondo topo --synthetic \"Package:2 NUMANode:2 L3Cache:1 Core:4 PU:2\" --ranks 8\n"
      "  rondo topo --xml box.xml --gpu-scene box.txt   NVLinks from rondo info --record\n");
  auto o = std::make_shared<TopoOptions>();
  auto* xml = command->add_option("--xml", o->xml, "Reads the machine from an XML file of hwloc's lstopo");
  command->add_option("--synthetic", o->synthetic, "Uses a made-up machine in hwloc's synthetic format")->excludes(xml);
  command->add_option("--gpu-scene", o->gpu_scene, "Reads GPUs and their links from a file of rondo info --record");
  constexpr int kMostRanks = 4096;
  command
      ->add_option("--ranks", o->ranks,
                   "Sets the number of ranks (default: one for each GPU, or else for each allowed core)")
      ->check(CLI::Range(1, kMostRanks));
  command->add_flag("--gpus", o->gpus, "Gives each rank a GPU: rank r has GPU r modulo the number of GPUs");
  command->add_option("--cpus", o->cpus, "Allows only these CPUs, for example 0-7,16");
  command->add_option("--svg", o->svg, "Draws the host to this file");
  command->add_option("--export-xml", o->export_xml, "Writes the machine to this file as hwloc's XML");
  command->callback([o] { run(*o); });
}

}  // namespace rondo::tools
