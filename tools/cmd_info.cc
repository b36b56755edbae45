// `rondo info`: prints the features of this build and machine, and the requirements of each transport.
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "commands.h"
#include "config/describe_settings.h"
#include "config/setting_table.h"
#include "device/driver/driver.h"
#include "device/engine/images.h"
#include "device/topology/nvml.h"
#include "device/topology/probe.h"
#include "kernels/kernels.h"
#include "perf_report.h"
#include "plan/calibration.h"
#include "rondo/rondo.h"
#include "topology/binding.h"
#include "topology/caches.h"
#include "topology/describe.h"
#include "topology/host_reader.h"
#include "transport/net/network.h"
#include "transport/pool.h"
#include "transport/segment.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace rondo::tools {
namespace {

void section(const char* title) { fmt::print("\n{}\n", title); }
void line(const char* name, const std::string& value) { fmt::print("  {:<18} {}\n", name, value); }

std::string bytes_text(uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return fmt::format("{:.{}f} {}", value, value == static_cast<uint64_t>(value) ? 0 : 1, units[unit]);
}

std::string file_line(const char* path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  return text.empty() ? "unknown" : text;
}

void show_build() {
  section("build");
  line("version", rondo_version());
#if defined(__clang__)
  line("compiler", fmt::format("clang {}", __clang_version__));
#else
  line("compiler", fmt::format("gcc {}", __VERSION__));
#endif
  const std::string flags = RONDO_COMPILE_FLAGS, sanitizers = RONDO_SANITIZERS;
  line("build type", fmt::format("{} ({})", RONDO_BUILD_TYPE,
                                 flags.find_first_not_of(' ') == std::string::npos ? "no flags" : flags));
  if (!sanitizers.empty()) line("sanitizers", sanitizers);
#ifdef RONDO_MUTATE_RELEASE_STORE
  line("MUTATED", "the protocol's release store is relaxed: a build to test the tests, wrong by design");
#endif
  line("hwloc", have_hwloc() ? "there: rondo topo shows the whole host"
                             : "none, so no rondo topo and no RONDO_BIND: " + why_no_hwloc());
  line("CUDA, NVML", "opened at run time where the machine has them: see devices");
}

void show_processor() {
  section("processor");
  line("model", describe_this_rank().processor);
  std::string available;
  for (const auto& [level, name] :
       {std::pair{SimdLevel::kBaseline, "baseline"}, {SimdLevel::kAvx2, "avx2"}, {SimdLevel::kAvx512, "avx512"}})
    if (kernel_table(level) != nullptr) available += fmt::format(" {}", name);
  const KernelTable* used = kernel_table(best_simd_level());
  const auto settings = read_process_settings();
  const std::string asked = settings.ok() ? settings->simd : "";
  if (const auto level = simd_level_from_name(asked)) used = kernel_table(*level);
  line("SIMD in use",
       used != nullptr ? std::string(used->level) : fmt::format("none: RONDO_SIMD={} is not available here", asked));
  line("SIMD available", available.substr(1) + " (RONDO_SIMD chooses)");
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0)
    line("CPUs allowed", fmt::format("{} of {}; with more ranks than that, waiting ranks yield and then sleep",
                                     CPU_COUNT(&cpus), sysconf(_SC_NPROCESSORS_CONF)));
}

void show_topology() {
  const auto host = read_processors();
  if (!host.ok()) {
    for (int level = 1; level <= 3; ++level)
      if (const uint64_t bytes = data_cache_bytes(level); bytes > 0)
        line(level == 1 ? "L1 data cache" : fmt::format("L{} cache", level).c_str(), bytes_text(bytes));
    return;
  }
  line("by hwloc", fmt::format("{} packages, {} NUMA nodes, {} cores, {} threads", host->packages.size(),
                               host->nodes.size(), host->cores.size(), host->pus.size()));
  for (int level = 1; level <= 3; ++level) {
    const auto of_level = [&](const DataCache& c) { return c.level == level; };
    const auto first = std::find_if(host->caches.begin(), host->caches.end(), of_level);
    if (first == host->caches.end()) continue;
    line(level == 1 ? "L1 data cache" : fmt::format("L{} cache", level).c_str(),
         fmt::format("{} x {}, each for {}, lines of {} B",
                     std::count_if(host->caches.begin(), host->caches.end(), of_level), bytes_text(first->size_bytes),
                     first->num_cores == 1 ? "a core" : fmt::format("{} cores", first->num_cores), first->line_bytes));
  }
}

// Shows the binding of a single rank with this process's CPU mask.
void show_binding() {
  const auto settings = read_process_settings();
  const BindTo to = settings.ok() ? bind_from_name(settings->bind) : BindTo::kNone;
  if (to == BindTo::kNone) return line("binding", "none: threads run where their masks permit (RONDO_BIND)");
  RankCpus self;
  if (sched_getaffinity(0, sizeof self.cpus, &self.cpus) != 0) CPU_ZERO(&self.cpus);
  const auto host = read_processors();
  const auto bound = host.ok() ? choose_binding(*host, std::span(&self, 1), 0, to) : Expected<Binding>(host.status());
  line("binding",
       fmt::format("RONDO_BIND={}: ", settings->bind) +
           (bound.ok() ? "a rank alone here is bound to " + bound->text : std::string(bound.status().message())));
}

void show_memory() {
  section("memory");
  line("page size", bytes_text(static_cast<uint64_t>(sysconf(_SC_PAGESIZE))));
  line("installed",
       bytes_text(static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE))));
  line("huge pages", "private memory: " + file_line("/sys/kernel/mm/transparent_hugepage/enabled"));
  line("", "memfd: " + file_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled") +
               " (advise: rondo's shared memory gets them)");
}

std::string memfd_text() {
  const int fd = memfd_create("rondo info", MFD_CLOEXEC);
  if (fd < 0) return fmt::format("NOT available: {}", std::strerror(errno));
  close(fd);
  return "available";
}

// Resident staging memory that processes share, of the processes whose mappings this user may read.
void show_shared_staging() {
  std::error_code ignored;
  bool any = false;
  for (const auto& process : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string pid = process.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream mappings(process.path() / "smaps");
    bool ours = false, found = false;
    uint64_t resident_kib = 0;
    for (std::string text; std::getline(mappings, text);) {
      if (text.find('-') < text.find(' ')) ours = text.find("/memfd:rondo-pool") != std::string::npos;
      found = found || ours;
      if (ours && text.starts_with("Rss:")) resident_kib += std::strtoull(text.c_str() + 4, nullptr, 10);
    }
    any = any || found;
    if (found)
      line("", fmt::format("pid {} ({}): {} resident", pid, file_line((process.path() / "comm").c_str()),
                           bytes_text(resident_kib << 10)));
  }
  if (!any) line("", "none");
}

void show_pool() {
  const auto bytes = StagingPool::configured_bytes();
  line("staging pool", bytes.ok() ? fmt::format("{} of address space for each process and all its communicators "
                                                "(RONDO_POOL_BYTES);",
                                                bytes_text(*bytes))
                                  : bytes.status().to_string());
  line("", "pages exist only where messages went; of shared memory, these processes have now:");
  show_shared_staging();
}

void indented(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    fmt::print("{}{}\n", end == at ? "" : "  ", std::string_view(text).substr(at, end - at));
    at = end + 1;
  }
}

// Prints the links between devices and rondo's choices.
Status show_scene(const GpuScene& scene) {
  const GpuMachine& m = scene.machine;
  line("CUDA driver", fmt::format("CUDA {}.{}", m.driver_version / 1000, m.driver_version % 1000 / 10));
  line("NVML",
       m.nvml_version.empty() ? "none: links and paths come from the driver and /sys" : "driver " + m.nvml_version);
  const char* known[] = {"no", "yes", "unknown"};
  line("IOMMU translates", known[static_cast<int>(m.iommu)]);
  line("ACS redirects", known[static_cast<int>(m.acs)]);
  indented(describe_devices(m));
  RONDO_TRY_ASSIGN(const SettingFields settings, read_process_settings());
  if (m.devices.size() > 1) {
    section("links between devices (NVn: n NVLinks, NVSn: n to a switch, then PCIe; !: no P2P)");
    indented(describe_links(m));
  }
  section(scene.ranks.empty() ? "chosen, with one process on each device; bandwidths are expected, not measured"
                              : "chosen for these ranks; bandwidths are expected, not measured");
  indented(describe_choices(scene, parse_preferences(settings.p2p_level, "")));
  return {};
}

void show_devices() {
  section("devices");
  if (cuda::driver() == nullptr) {
    line("CUDA driver", "none: " + cuda::why_no_driver());
    return line("NVML", nvml() != nullptr ? "found" : "none: " + why_no_nvml());
  }
  auto machine = probe_machine();
  if (!machine.ok()) return line("CUDA driver", "FAILS: " + std::string(machine.status().message()));
  if (nvml() == nullptr) line("NVML", "none: " + why_no_nvml());
  if (const Status shown = show_scene({*machine, {}}); !shown.ok()) line("BROKEN", std::string(shown.message()));
  line("kernels", collective_images().empty() ? "none in this build: RONDO_CUDA was off, or there was no nvcc"
                                              : fmt::format("{} images in this build", collective_images().size()));
}

// Prints the devices of another machine from its description.
void run_machine(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  for (char buffer[4096]; file.read(buffer, sizeof buffer) || file.gcount() > 0;)
    text.append(buffer, static_cast<size_t>(file.gcount()));
  Status status = file.is_open() ? Status() : Status(StatusCode::kSystem, "cannot be opened");
  const auto scene = status.ok() ? parse_scene(text) : Expected<GpuScene>(status);
  status = scene.status();
  if (status.ok()) {
    section(("devices of " + path).c_str());
    status = show_scene(*scene);
  }
  if (status.ok()) return;
  fmt::print(stderr, "rondo info: {}: {}\n", path, status.message());
  throw CLI::RuntimeError(1);
}

void run_record() {
  const auto machine = probe_machine();
  if (machine.ok()) return fmt::print("{}", scene_text({*machine, {}}));
  fmt::print(stderr, "rondo info: {}\n", machine.status().message());
  throw CLI::RuntimeError(1);
}

void show_transports() {
  section("transports");
  line("inproc", "ranks as threads of one process (rondo_comm_init_all): always available");
  line("shm", fmt::format("ranks as processes of one host: needs memfd_create ({}) and Unix sockets;", memfd_text()));
  line("", "neither /dev/shm nor ptrace rights are used");
  show_pool();
  const SegmentLayout two(2);
  line("staging memory", fmt::format("a ring of {} for each connection in use, and {} lines of 64 B for short messages",
                                     bytes_text(two.data_bytes()), SegmentLayout::kLinesPerConnection));
  for (const net::Network* n : net::networks())
    line(fmt::format("shm+{}", n->name).c_str(),
         fmt::format("ranks as processes on several hosts: shm on each, {} between them: {}", n->summary,
                     n->describe()));
}

std::string limit_text(__rlimit_resource resource, bool bytes) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return bytes ? bytes_text(limit.rlim_cur) : std::to_string(limit.rlim_cur);
}

void show_limits() {
  section("limits");
  line("open files", limit_text(RLIMIT_NOFILE, false) + " (a rank among N processes needs about 4 N)");
  line("address space", limit_text(RLIMIT_AS, true));
  line("locked memory", limit_text(RLIMIT_MEMLOCK, true) + " (rondo locks none)");
  line("processes", limit_text(RLIMIT_NPROC, false));
}

// Prints the settings that are not defaults, and how to see the others.
void show_settings() {
  section("settings");
  const auto values = SettingValues::load();
  if (!values.ok()) return line("BROKEN", std::string(values.status().message()));
  bool any = false;
  for (const SettingRow& row : setting_rows()) {
    const SettingValue* v = values->find(row.key);
    if (v == nullptr) continue;
    line(std::string(row.key).c_str(),
         fmt::format("{}   ({})", row.shown(v->text), v->from == "environment" ? variable_of(row.key) : v->from));
    any = true;
  }
  std::string from;
  const auto costs = known_costs(&from);
  line("planner", costs.ok() ? "constants: " + from : std::string(costs.status().message()));
  if (!any) line("all", "defaults");
  for (const std::string& text : unknown_variables(environ)) line("unknown", text);
  for (const std::string& text : values->unknown()) line("unknown", text);
}

void run_config() {
  const auto values = SettingValues::load();
  if (!values.ok()) {
    fmt::print(stderr, "rondo info: {}\n", values.status().to_string());
    throw CLI::RuntimeError(1);
  }
  fmt::print("{}", describe_settings(*values));
  for (const std::string& text : unknown_variables(environ)) fmt::print("unknown: {}\n", text);
  for (const std::string& text : values->unknown()) fmt::print("unknown: {}\n", text);
}

void run() {
  utsname system{};
  uname(&system);
  fmt::print("rondo {} on {} ({} {}, {})\n", rondo_version(), system.nodename, system.sysname, system.release,
             system.machine);
  show_build();
  show_processor();
  show_topology();
  show_binding();
  show_memory();
  show_devices();
  show_transports();
  show_limits();
  show_settings();
}

}  // namespace

void add_info_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "info", "Shows this build, processor, caches, memory, devices, transports, limits and settings");
  command->footer(
      "Examples:\n  rondo info            attach it to a report of a problem or a benchmark\n"
      "  rondo info --config   every setting, its value in force, and its source\n"
      "  rondo info --record > here.txt && rondo info --machine here.txt\n"
      "                        this machine's devices as a file, and rondo's choices on such a machine\n");
  struct Options {
    bool config = false, record = false;
    std::string machine;
  };
  auto o = std::make_shared<Options>();
  auto* config = command->add_flag("--config", o->config, "Prints only the settings in force and their sources");
  auto* record = command->add_flag("--record", o->record, "Prints only a description of this machine's devices");
  command->add_option("--machine", o->machine, "Prints devices, links and choices of the machine that a file describes")
      ->excludes(config)
      ->excludes(record);
  config->excludes(record);
  command->callback([o] {
    if (o->config) return run_config();
    if (o->record) return run_record();
    o->machine.empty() ? run() : run_machine(o->machine);
  });
}

}  // namespace rondo::tools
