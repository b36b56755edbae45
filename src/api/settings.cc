#include "plan/settings.h"
#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <unordered_map>

#include "algorithms/registry.h"
#include "base/read_file.h"
#include "bootstrap/unique_id.h"
#include "config/encryption.h"
#include "engine/tracing.h"
#include "plan/calibration.h"
#include "schedule/own_algorithms.h"
#include "topology/host_reader.h"
#include "transport/net/network.h"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace rondo {
namespace {

void report(const std::vector<std::string>& unknown) {
  for (const std::string& text : unknown) std::fprintf(stderr, "rondo: %s\n", text.c_str());
}

// Checks the values that depend on hosts, kernels, hwloc or tracing, which config/ does not know.
Status check_fields(const SettingFields& s) {
  if (!s.hosts.empty())
    if (const auto layout = HostLayout::parse(s.hosts); !layout.ok())
      return invalid_argument("RONDO_HOSTS: {}", layout.status().message());
  if (const auto level = simd_level_from_name(s.simd); level && kernel_table(*level) == nullptr)
    return invalid_argument("RONDO_SIMD={}: this processor does not have it (rondo info shows what it has)", s.simd);
  if (s.bind != "none" && !have_hwloc())
    return unsupported("RONDO_BIND={}: rondo needs hwloc to find the CPUs for ranks, but cannot use it: {}", s.bind,
                       why_no_hwloc());
  return trace_settings(s).status();
}

// Returns the layout of the real hosts and those that RONDO_HOSTS adds. `pretended` gets the added hosts by rank.
Expected<HostLayout> hosts_of(const AllSettings& all, const HostLayout& machines, std::vector<int32_t>* pretended) {
  std::vector<std::string> keys;
  for (Rank r = 0; r < machines.nranks(); ++r) {
    const Settings& s = *all[r];
    int32_t& says = pretended->emplace_back(s.pretended_host);
    if (!s.hosts.empty()) {
      const Expected<HostLayout> layout = HostLayout::parse(s.hosts);
      if (!layout.ok() || layout->nranks() != machines.nranks())
        return invalid_argument("rank {}: RONDO_HOSTS={} does not describe the hosts of {} ranks", r, s.hosts,
                                machines.nranks());
      says = layout->host(r) + 1;
    }
    keys.push_back(fmt::format("{} {}", machines.host(r), says));
  }
  return HostLayout::of(keys);
}

// Checks the settings that must be equal. A rank without a value uses rank 0's. An error names the first that differs.
Status check_equal(Rank rank, const AllSettings& all) {
  const Settings& first = *all[0];
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[r - 1]) continue;
    const auto same = [&](std::string_view what, std::string_view a, std::string_view b) -> Status {
      const auto shown = [](std::string_view s) { return s.empty() ? "not set" : s; };
      if (a == b) return {};
      return make_error(StatusCode::kMismatch, "rank {}: ranks disagree on {}: rank 0 has {}, rank {} has {}", rank,
                        what, shown(a), r, shown(b));
    };
    RONDO_TRY(same("their own algorithms (register_algorithm)", first.algorithms, all[r]->algorithms));
    for (const SettingRow& row : setting_rows())
      if (row.ranks == SettingRow::Ranks::kEqual && !all[r]->values.text(row.key).empty())
        RONDO_TRY(same(variable_of(row.key), first.values.text(row.key), all[r]->values.text(row.key)));
  }
  return {};
}

// Replaces "auto" by the first network that all ranks prefer. Checks that all builds have the network.
Status agree_on_network(Rank rank, const AllSettings& all, std::string* transport) {
  uint32_t preferred = ~0u;
  for (const auto& s : all) preferred &= s->preferred;
  if (*transport == "auto") *transport = fmt::format("shm+{}", net::networks()[std::countr_zero(preferred)]->name);
  const size_t row = net::network_index(*transport);
  for (size_t r = 0; r < all.size(); ++r)
    if ((all[r]->networks >> row & 1) == 0)
      return unsupported("rank {}: RONDO_TRANSPORT is {}, and rank {}'s build of rondo has {}", rank, *transport, r,
                         net::networks()[row]->lacks);
  return {};
}

}  // namespace

PlannerSettings Settings::for_planner() const {
  PlannerSettings p;
  static_cast<HostFacts&>(p) = *this;
  p.algorithm = algo;
  p.protocol = proto;
  p.message_bytes = message_bytes;
  p.device_least_blocks = device_blocks.least;
  p.device_most_blocks = device_blocks.most;
  if (costs != nullptr) {
    p.costs = costs->costs;
    p.corrections = costs->corrections;
  }
  return p;
}

Expected<Settings> settings_from(SettingValues values) {
  Settings s;
  s.values = std::move(values);
  RONDO_TRY_ASSIGN(const Encryption encrypted, encryption());  // ncclSetEncryption may have set it
  s.values.set("encrypt", encrypted.on ? "on" : "off", "this process");
  s.take_fields();
  RONDO_TRY(check_fields(s));
  RONDO_TRY_ASSIGN(const std::optional<CostsInForce> costs, calibrated_costs(nullptr, true));
  if (costs) s.costs = std::make_shared<const CostsInForce>(*costs);
  uint32_t bit = 1;
  for (const net::Network* n : net::networks()) {
    s.networks |= n->is_built ? bit : 0;
    s.preferred |= n->is_built && n->is_preferred() ? bit : 0;
    bit <<= 1;
  }
  if (sched_getaffinity(0, sizeof s.cpus, &s.cpus) != 0) CPU_SET(0, &s.cpus);
  if (const std::string boot = first_line_of("/proc/sys/kernel/random/boot_id"); !boot.empty()) s.kernel = fnv1a(boot);
  s.algorithms = freeze_registry();
  return s;
}

Expected<Settings> read_settings(const Config& config) {
  RONDO_TRY_ASSIGN(SettingValues values, SettingValues::load());
  RONDO_TRY(values.add_config(config.settings, config.deadline_s, config.init_deadline_s));
  report(unknown_variables(environ));
  report(values.unknown());
  return settings_from(std::move(values));
}

Expected<Settings> override_settings(const Settings& parent, const Config& config) {
  Settings s = parent;
  SettingValues own;
  RONDO_TRY(own.add_config(config.settings, config.deadline_s, config.init_deadline_s));
  report(own.unknown());
  for (const SettingValue& v : own.all()) s.values.set(v.key, v.text, v.from);
  s.take_fields();
  RONDO_TRY(check_fields(s));
  return s;
}

Expected<AllSettings> decode_settings(Rank rank, const std::vector<std::string_view>& messages) {
  std::unordered_map<std::string_view, std::shared_ptr<const Settings>> decoded;
  AllSettings all;
  for (const std::string_view message : messages) {
    std::shared_ptr<const Settings>& settings = decoded[message];
    if (settings == nullptr) {
      auto theirs = decode<Settings>(message);
      if (!theirs)
        return make_error(StatusCode::kMismatch, "rank {}: rank {} runs another version of rondo", rank, all.size());
      settings = std::make_shared<const Settings>(std::move(*theirs));
    }
    all.push_back(settings);
  }
  return all;
}

int count_cpus(const AllSettings& all, const HostLayout& machines, int host) {
  cpu_set_t any;
  CPU_ZERO(&any);
  for (int l = 0; l < machines.num_ranks(host); ++l) CPU_OR(&any, &any, &all[machines.rank(host, l)]->cpus);
  return std::max(1, CPU_COUNT(&any));
}

std::optional<int> place_among_hosts(const AllSettings& all, const HostLayout& machines, Rank rank) {
  const Settings& self = *all[rank];
  if (self.kernel == 0 || machines.one_host()) return std::nullopt;
  int num_ranks = 0, num_hosts = 0, place = 0;
  for (int h = 0; h < machines.num_hosts(); ++h) {
    const int before = num_ranks;
    for (int l = 0; l < machines.num_ranks(h); ++l) {
      const Settings& other = *all[machines.rank(h, l)];
      if (other.kernel != self.kernel) continue;
      if (!CPU_EQUAL(&other.cpus, &self.cpus)) return std::nullopt;
      if (machines.rank(h, l) == rank) place = num_ranks;
      ++num_ranks;
    }
    num_hosts += num_ranks != before ? 1 : 0;
  }
  const int cpus = CPU_COUNT(&self.cpus);
  if (num_hosts < 2 || num_ranks <= cpus) return std::nullopt;
  return place * cpus / num_ranks;
}

Expected<Agreement> agree(Rank rank, const Settings& mine, const AllSettings& all, const HostLayout& machines) {
  const Settings& first = *all[0];
  RONDO_TRY(check_equal(rank, all));
  Settings s = mine;
  for (const SettingRow& row : setting_rows()) {
    if (row.ranks == SettingRow::Ranks::kOwn) continue;
    if (const SettingValue* v = first.values.find(row.key)) s.values.set(v->key, v->text, "rank 0");
    else s.values.unset(row.key);
  }
  s.values.unset("hosts");  // children use the agreed hosts
  s.take_fields();
  s.costs = first.costs;
  RONDO_TRY(agree_on_network(rank, all, &s.transport));
  std::vector<int32_t> pretended;
  RONDO_TRY_ASSIGN(const HostLayout hosts, hosts_of(all, machines, &pretended));
  RONDO_TRY(prove_own_algorithms(hosts));
  s.pretended_host = pretended[rank];
  s.hosts_pretended = !(hosts == machines);
  s.ranks_per_core = 1;
  for (int h = 0; h < machines.num_hosts(); ++h) {
    const int cpus = count_cpus(all, machines, h);
    s.ranks_per_core = std::max(s.ranks_per_core, (machines.num_ranks(h) + cpus - 1) / cpus);
  }
  s.hosts_share_cores = false;
  for (int h = 0; h < machines.num_hosts() && !s.hosts_share_cores; ++h)
    s.hosts_share_cores = place_among_hosts(all, machines, machines.rank(h, 0)).has_value();
  s.hosts_share_kernel = machines.num_hosts() > 1 && first.kernel != 0 &&
                         std::all_of(all.begin(), all.end(), [&](const auto& o) { return o->kernel == first.kernel; });
  return Agreement{std::move(s), hosts};
}

}  // namespace rondo
