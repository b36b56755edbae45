#include "plan/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "algorithms/registry.h"
#include "bootstrap/unique_id.h"
#include "config/encryption.h"
#include "engine/tracing.h"
#include "plan/calibration.h"
#include "schedule/own_algorithms.h"
#include "topology/host_reader.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace rondo {
namespace {

template <size_t kSize>
void copy_name(const std::string& from, char (&to)[kSize]) {
  RONDO_CHECK(from.size() < kSize);  // names of our own tables
  std::strcpy(to, from.c_str());
}

uint64_t number_of_kernel() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  return std::getline(file, id) ? fnv1a(id) : 0;
}

// A long list keeps its end, which is the hash.
void name_own_algorithms(std::string_view summary, Settings& s) {
  constexpr size_t kRoom = sizeof s.algorithms - 1, kEnd = 32;
  const bool fits = summary.size() <= kRoom;
  summary.copy(s.algorithms, fits ? kRoom : kRoom - kEnd);
  if (!fits) ("..." + std::string(summary.substr(summary.size() - kEnd + 3))).copy(s.algorithms + kRoom - kEnd, kEnd);
}

#ifdef RONDO_HAVE_UCX
// Where devices move data by themselves, or somebody tells UCX what to use. (The devices' folder may be there, and
// empty.)
bool prefers_ucx() {
  if (std::getenv("UCX_TLS") != nullptr || std::getenv("UCX_NET_DEVICES") != nullptr) return true;
  std::error_code ignored;
  return std::filesystem::directory_iterator("/sys/class/infiniband", ignored) != std::filesystem::directory_iterator();
}
#endif

Status read_transport_settings(const SettingValues& values, Settings& s) {
  s.device_channels = static_cast<int32_t>(values.number_or("device_channels", s.device_channels));
  s.planner.device_min_blocks =
      static_cast<int32_t>(values.number_or("device_min_blocks", s.planner.device_min_blocks));
  s.planner.device_max_blocks =
      static_cast<int32_t>(values.number_or("device_max_blocks", s.planner.device_max_blocks));
  if (values.find("device_engine") != nullptr)
    s.device_engine = values.text("device_engine") == "interpreter" ? 1
                      : values.text("device_engine") == "stream"    ? 2
                                                                    : 0;
#ifdef RONDO_HAVE_UCX
  s.has_ucx = 1;
  s.prefers_ucx = prefers_ucx() ? 1 : 0;
#endif
  if (values.find("transport") != nullptr) {
    const auto* const named =
        std::find(std::begin(kTransportChoices), std::end(kTransportChoices), values.text("transport"));
    s.transport = static_cast<TransportChoice>(named - std::begin(kTransportChoices));
  }
  if (values.find("p2p_level") != nullptr) copy_name(values.text("p2p_level"), s.device_p2p_level);
  if (values.find("device_direct") != nullptr) s.device_direct = values.text("device_direct") != "off";
  if (values.find("p2p") != nullptr) s.device_peers = values.text("p2p") != "0";
  if (values.find("rails") == nullptr) return {};
  const std::string rails = values.text("rails");
  if (rails.size() >= sizeof s.rails)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("RONDO_RAILS: {} characters are too many: {} fit", rails.size(), sizeof s.rails - 1));
  copy_name(rails, s.rails);
  return {};
}

Status read_hosts(const SettingValues& values, Settings& s) {
  const std::string text = values.text("hosts");
  if (text.empty()) return {};
  const Expected<HostLayout> layout = HostLayout::parse(text);
  if (!layout.ok())
    return Status(StatusCode::kInvalidArgument, fmt::format("RONDO_HOSTS: {}", layout.status().message()));
  if (text.size() >= sizeof s.hosts)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("RONDO_HOSTS: {} characters are too many: {} fit", text.size(), sizeof s.hosts - 1));
  copy_name(text, s.hosts);
  return {};
}

// The host that each rank says it is on, beside the one where it is. `pretended` gets their numbers by rank.
Expected<HostLayout> hosts_of(const std::vector<RankSettings>& all, const HostLayout& machines,
                              std::vector<int32_t>* pretended) {
  std::vector<std::string> keys;
  for (Rank r = 0; r < machines.nranks(); ++r) {
    const RankSettings& s = all[static_cast<size_t>(r)];
    int32_t& says = pretended->emplace_back(s.pretended_host);
    if (s.hosts[0] != 0) {
      const Expected<HostLayout> layout =
          HostLayout::parse(std::string_view(s.hosts, strnlen(s.hosts, sizeof s.hosts)));
      if (!layout.ok() || layout->nranks() != machines.nranks())
        return Status(StatusCode::kInvalidArgument, fmt::format("rank {}: RONDO_HOSTS={} are not the hosts of {} ranks",
                                                                r, s.hosts, machines.nranks()));
      says = layout->host(r) + 1;
    }
    keys.push_back(fmt::format("{} {}", machines.host(r), says));
  }
  return HostLayout::of(keys);
}

std::string_view name_of(TransportChoice t) { return kTransportChoices[static_cast<size_t>(t)]; }

std::string or_unset(std::string_view s) { return s.empty() ? "not set" : std::string(s); }

}  // namespace

Expected<Settings> settings_from(const SettingValues& values) {
  Settings s;
  std::strncpy(s.version, RONDO_VERSION, sizeof s.version - 1);
  s.deadline_s = values.number_or("timeout_s", s.deadline_s);
  s.init_deadline_s = values.number_or("init_timeout_s", s.init_deadline_s);
  copy_name(values.text("algo"), s.planner.algorithm);
  copy_name(values.text("proto"), s.planner.protocol);
  s.planner.message_bytes = static_cast<uint64_t>(values.number_or("message_bytes", 0));
  s.planner.by_rank = values.text("order") == "rank" ? 1 : 0;
  s.may_pull = values.text("cma") != "0";
  RONDO_TRY(read_hosts(values, s));
  RONDO_TRY(read_transport_settings(values, s));
  if (const SettingValue* simd = values.find("simd")) s.simd = static_cast<int32_t>(*simd_level_from_name(simd->text));
  RONDO_TRY_ASSIGN(const CostsInForce costs, costs_in_force(nullptr, true));
  s.planner.costs = costs.costs;
  s.corrections = costs.corrections;
  RONDO_TRY(read_trace_settings().status());  // every communicator reads them for itself
  RONDO_TRY_ASSIGN(const Encryption encrypted, encryption());
  s.encrypted = encrypted.on ? 1 : 0;
  s.bind = bind_from_name(values.text("bind"));
  if (s.bind != BindTo::kNone && !have_hwloc())
    return Status(StatusCode::kUnsupported,
                  fmt::format("RONDO_BIND={}: the places of ranks are found by hwloc, which is missing: {}",
                              values.text("bind"), why_no_hwloc()));
  CPU_ZERO(&s.cpus);
  if (sched_getaffinity(0, sizeof s.cpus, &s.cpus) != 0) CPU_SET(0, &s.cpus);
  s.kernel = number_of_kernel();
  name_own_algorithms(freeze_registry(), s);
  return s;
}

Expected<SettingValues> read_setting_values(const Config& config) {
  RONDO_TRY_ASSIGN(SettingValues values, SettingValues::load());
  RONDO_TRY(values.add_struct(config.settings));
  if (config.deadline_s > 0) values.set("timeout_s", fmt::format("{}", config.deadline_s), "struct");
  if (config.init_deadline_s > 0) values.set("init_timeout_s", fmt::format("{}", config.init_deadline_s), "struct");
  return values;
}

Expected<Settings> read_settings(const Config& config) {
  RONDO_TRY_ASSIGN(const SettingValues values, read_setting_values(config));
  for (const std::string& text : unknown_variables(environ)) std::fprintf(stderr, "rondo: %s\n", text.c_str());
  for (const std::string& text : values.unknown()) std::fprintf(stderr, "rondo: %s\n", text.c_str());
  return settings_from(values);
}

Expected<Settings> override_settings(const Settings& parent, const Config& config) {
  SettingValues values;
  RONDO_TRY(values.add_struct(config.settings));
  for (const std::string& text : values.unknown()) std::fprintf(stderr, "rondo: %s\n", text.c_str());
  Settings s = parent;
  s.deadline_s = config.deadline_s > 0 ? config.deadline_s : values.number_or("timeout_s", s.deadline_s);
  s.init_deadline_s =
      config.init_deadline_s > 0 ? config.init_deadline_s : values.number_or("init_timeout_s", s.init_deadline_s);
  if (values.find("algo") != nullptr) copy_name(values.text("algo"), s.planner.algorithm);
  if (values.find("proto") != nullptr) copy_name(values.text("proto"), s.planner.protocol);
  s.planner.message_bytes =
      static_cast<uint64_t>(values.number_or("message_bytes", static_cast<double>(s.planner.message_bytes)));
  if (values.find("order") != nullptr) s.planner.by_rank = values.text("order") == "rank" ? 1 : 0;
  if (values.find("cma") != nullptr) s.may_pull = values.text("cma") != "0";
  RONDO_TRY(read_hosts(values, s));
  RONDO_TRY(read_transport_settings(values, s));
  if (const SettingValue* simd = values.find("simd")) s.simd = static_cast<int32_t>(*simd_level_from_name(simd->text));
  return s;
}

int count_cpus(const std::vector<RankSettings>& all, const HostLayout& machines, int host) {
  cpu_set_t any;
  CPU_ZERO(&any);
  for (int l = 0; l < machines.num_ranks(host); ++l)
    CPU_OR(&any, &any, &all[static_cast<size_t>(machines.rank(host, l))].cpus);
  return std::max(1, CPU_COUNT(&any));
}

std::optional<int> place_among_hosts(const std::vector<RankSettings>& all, const HostLayout& machines, Rank rank) {
  const RankSettings& self = all[static_cast<size_t>(rank)];
  int num_ranks = 0, num_hosts = 0, place = 0;
  for (int h = 0; h < machines.num_hosts(); ++h) {
    const int before = num_ranks;
    for (int l = 0; l < machines.num_ranks(h); ++l) {
      const RankSettings& other = all[static_cast<size_t>(machines.rank(h, l))];
      if (other.kernel != self.kernel) continue;
      if (!CPU_EQUAL(&other.cpus, &self.cpus)) return std::nullopt;
      if (machines.rank(h, l) == rank) place = num_ranks;
      ++num_ranks;
    }
    num_hosts += num_ranks != before ? 1 : 0;
  }
  const int cpus = CPU_COUNT(&self.cpus);
  if (self.kernel == 0 || num_hosts < 2 || num_ranks <= cpus) return std::nullopt;
  return place * cpus / num_ranks;
}

Expected<Agreement> agree(Rank rank, const std::vector<RankSettings>& all, const CostCorrections& of_rank_0,
                          const HostLayout& machines) {
  const RankSettings& first = all[0];
  for (size_t r = 1; r < all.size(); ++r) {
    const RankSettings& other = all[r];
    auto conflict = [&](std::string_view what, std::string_view a, std::string_view b) {
      return Status(StatusCode::kMismatch, fmt::format("rank {}: ranks disagree on {}: rank 0 has {}, rank {} has {}", rank,
                                                       what, or_unset(a), r, or_unset(b)));
    };
    const PlannerChoice &p = first.planner, &q = other.planner;
    if (first.abi != other.abi || std::string_view(first.version) != other.version)
      return conflict("the version of rondo", first.version, other.version);
    if (std::string_view(first.algorithms) != other.algorithms)
      return conflict("their own algorithms (register_algorithm)", first.algorithms, other.algorithms);
    // A rank that sets nothing follows rank 0; one that sets something else is named.
    if (q.algorithm[0] != 0 && std::string_view(p.algorithm) != q.algorithm)
      return conflict("RONDO_ALGO", p.algorithm, q.algorithm);
    if (q.protocol[0] != 0 && std::string_view(p.protocol) != q.protocol)
      return conflict("RONDO_PROTO", p.protocol, q.protocol);
    if (first.transport != other.transport)
      return conflict("RONDO_TRANSPORT", name_of(first.transport), name_of(other.transport));
    if (first.encrypted != other.encrypted)
      return conflict("RONDO_ENCRYPT", first.encrypted != 0 ? "on" : "off", other.encrypted != 0 ? "on" : "off");
    if (q.message_bytes != 0 && p.message_bytes != q.message_bytes)
      return conflict("RONDO_MESSAGE_BYTES", std::to_string(p.message_bytes), std::to_string(q.message_bytes));
  }
  for (size_t r = 0; r < all.size() && uses_ucx(first.transport); ++r)
    if (all[r].has_ucx == 0)
      return Status(StatusCode::kUnsupported,
                    fmt::format("rank {}: RONDO_TRANSPORT is {}, and rank {}'s build of rondo has no UCX (install "
                                "libucx-dev, build again)",
                                rank, name_of(first.transport), r));
  std::vector<int32_t> pretended;
  RONDO_TRY_ASSIGN(const HostLayout hosts, hosts_of(all, machines, &pretended));
  RONDO_TRY(prove_own_algorithms(hosts));
  Settings mine{all[static_cast<size_t>(rank)], of_rank_0};
  mine.pretended_host = pretended[static_cast<size_t>(rank)];
  mine.hosts[0] = 0;
  mine.planner = first.planner;
  mine.planner.hosts_pretended = hosts == machines ? 0 : 1;
  mine.planner.ranks_per_core = 1;
  mine.planner.hosts_share_cores = 0;
  for (int h = 0; h < machines.num_hosts(); ++h) {
    const int cpus = count_cpus(all, machines, h);
    mine.planner.ranks_per_core = std::max(mine.planner.ranks_per_core, (machines.num_ranks(h) + cpus - 1) / cpus);
  }
  for (Rank r = 0; r < machines.nranks() && mine.planner.hosts_share_cores == 0; ++r)
    if (place_among_hosts(all, machines, r)) mine.planner.hosts_share_cores = 1;
  const bool one_kernel = first.kernel != 0 && std::all_of(all.begin(), all.end(), [&](const RankSettings& s) {
                            return s.kernel == first.kernel;
                          });
  mine.planner.hosts_share_kernel = machines.num_hosts() > 1 && one_kernel ? 1 : 0;
  TransportChoice transport = first.transport;
  if (transport == TransportChoice::kAuto) {
    const bool ucx = std::all_of(all.begin(), all.end(), [](const auto& s) { return s.prefers_ucx != 0; });
    transport = ucx ? TransportChoice::kShmUcx : TransportChoice::kShmTcp;
  }
  return Agreement{mine, hosts, transport};
}

}  // namespace rondo
