// Settings: the values of one rank, its facts, and the agreement of the ranks when the communicator is made.
// src/api/settings.cc implements the functions.
//
// Thread safety: values.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/codec.h"
#include "config/setting_table.h"
#include "plan/calibration.h"
#include "plan/planner.h"
#include "rondo/communicator.h"
#include "rondo/status.h"

namespace rondo {

struct Settings : SettingFields, HostFacts {
  SettingValues values;        // the texts of the fields
  cpu_set_t cpus{};            // CPUs that this rank may use
  uint64_t kernel = 0;         // id of its kernel's boot: equal ids mean shared CPUs; 0: unknown
  int32_t gpu_numa = -1;       // the kernel's number of its device's NUMA node, if `bind` needs it
  int32_t pretended_host = 0;  // RONDO_HOSTS' value for this rank, and for its rank in derived communicators; 0: none
  uint32_t networks = 0;       // in this rank's build: bit i stands for row i of net::networks()
  uint32_t preferred = 0;      // of these: its host has devices for it, or its environment settings
  std::string algorithms;      // freeze_registry()'s summary
  std::shared_ptr<const CostsInForce> costs;  // only rank 0 sends its own. nullptr: not known

  PlannerSettings for_planner() const;
  /// Updates the fields. Call it after a change of `values`.
  void take_fields() { static_cast<SettingFields&>(*this) = values.fields(); }
};

/// The message that a rank sends to all others when a communicator is made. It contains the facts of the rank, and
/// those of its setting values on which the ranks agree.
template <class C>
void fields(C& c, Settings& s) {
  std::vector<SettingValue> said;
  if constexpr (!C::kDecodes)
    for (const SettingValue& v : s.values.all())
      if (find_setting(v.key)->ranks != SettingRow::Ranks::kOwn) said.push_back(v);
  bool with_costs = s.costs != nullptr;
  std::string cpus(reinterpret_cast<const char*>(&s.cpus), sizeof s.cpus);
  cpus.resize(cpus.find_last_not_of('\0') + 1);  // most of the mask is empty
  c(said, s.hosts, s.bind, s.kernel, s.gpu_numa, s.pretended_host, s.networks, s.preferred, s.algorithms, with_costs,
    cpus);
  if constexpr (C::kDecodes) {
    CPU_ZERO(&s.cpus);
    std::memcpy(&s.cpus, cpus.data(), std::min(cpus.size(), sizeof s.cpus));
    for (const SettingValue& v : said)
      if (const SettingRow* row = find_setting(v.key); row != nullptr && check_setting(*row, v.text, "").ok())
        s.values.set(v.key, v.text, "a peer");
    auto costs = std::make_shared<CostsInForce>();
    if (with_costs) c.packed(*costs), s.costs = std::move(costs);
  } else if (with_costs) {
    c.packed(*s.costs);
  }
}

/// The messages of all ranks, by rank. Ranks with equal messages share one copy.
using AllSettings = std::vector<std::shared_ptr<const Settings>>;
/// Decodes each different message once: with 256 ranks on two cores, one copy for each rank took a fifth of the start.
/// kMismatch: a message cannot be decoded (it names the rank).
Expected<AllSettings> decode_settings(Rank rank, const std::vector<std::string_view>& messages);

/// Reads the settings from the sources of config/setting_table.h. `config` overrides the others. Reports unknown
/// settings on stderr. Errors: kInvalidArgument naming the variable, or file:line and key.
Expected<Settings> read_settings(const Config& config);
/// Makes the settings from checked values, and adds the facts of this rank.
Expected<Settings> settings_from(SettingValues values);

/// Returns the settings of a communicator that is made from another one: `parent`'s, except those that `config`
/// changes. Errors: kInvalidArgument.
Expected<Settings> override_settings(const Settings& parent, const Config& config);

/// The common settings of all ranks: rank 0's plan settings, and the hosts, real or pretended (RONDO_HOSTS).
struct Agreement {
  Settings settings;  // its transport is no longer auto
  HostLayout hosts;
};
/// Returns the agreement of the ranks. `all`: the ranks' messages, by rank; `mine`: all settings of this rank;
/// `machines`: the real hosts. Errors: kMismatch naming the two ranks and both values if a rank's setting differs from
/// rank 0's; kInvalidArgument (RONDO_HOSTS does not fit the number of ranks).
Expected<Agreement> agree(Rank rank, const Settings& mine, const AllSettings& all, const HostLayout& machines);

/// Returns the number of CPUs that the ranks of a host may use together.
int count_cpus(const AllSettings& all, const HostLayout& machines, int host);
/// Hosts can share a kernel (containers, network namespaces) and therefore its CPUs. If these CPUs are fewer than the
/// ranks, and all ranks may use the same CPUs, it returns the index of the CPU on which `rank` should start. Otherwise
/// it returns nothing. Each CPU gets about the same number of ranks. The ranks of a host are together, because they
/// read each other's recent writes.
std::optional<int> place_among_hosts(const AllSettings& all, const HostLayout& machines, Rank rank);

}  // namespace rondo
