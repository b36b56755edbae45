// Settings: the values of the environment, and the agreement of the ranks when the communicator is made.
//
// Thread safety: values.
#pragma once

#include <sched.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/setting_table.h"
#include "kernels/kernels.h"
#include "plan/planner.h"
#include "rondo/communicator.h"
#include "rondo/status.h"
#include "topology/binding.h"

namespace rondo {

/// RONDO_TRANSPORT: the transport between hosts, and whether ranks of one host use it too.
enum class TransportChoice : int32_t { kAuto, kShmUcx, kShmTcp, kUcx, kTcp };
constexpr std::string_view kTransportChoices[] = {"auto", "shm+ucx", "shm+tcp", "ucx", "tcp"};
constexpr bool uses_ucx(TransportChoice t) { return t == TransportChoice::kShmUcx || t == TransportChoice::kUcx; }
constexpr bool is_alone(TransportChoice t) { return t == TransportChoice::kTcp || t == TransportChoice::kUcx; }

/// One rank's settings: trivially copyable, because ranks exchange them as bytes.
struct RankSettings {
  uint64_t abi = 7;  // version of this struct, the shared segments and the messages; ranks must be of one build
  char version[16] = {};
  double deadline_s = 600;     // RONDO_TIMEOUT_S
  double init_deadline_s = 120;  // RONDO_INIT_TIMEOUT_S
  int32_t simd = -1;           // RONDO_SIMD; -1: the best
  uint64_t may_pull = 1;       // RONDO_CMA: the others may read this rank's memory
  TransportChoice transport = TransportChoice::kAuto;  // RONDO_TRANSPORT
  int32_t has_ucx = 0;         // this rank's build
  int32_t prefers_ucx = 0;     // this rank's host has devices, or its environment has settings, for UCX
  int32_t encrypted = 0;       // RONDO_ENCRYPT, or the value of ncclSetEncryption
  int32_t device_channels = 0;    // RONDO_DEVICE_CHANNELS; 0: free choice
  int32_t device_engine = 0;      // RONDO_DEVICE_ENGINE: 0 free choice, 1 interpreter, 2 stream
  int32_t device_peers = 1;       // RONDO_P2P
  int32_t device_direct = 1;      // RONDO_DEVICE_DIRECT
  char device_p2p_level[8] = {};  // RONDO_P2P_LEVEL
  cpu_set_t cpus;                 // CPUs that this rank may use
  uint64_t kernel = 0;            // id of its kernel's boot: equal ids mean shared CPUs; 0: unknown
  BindTo bind = BindTo::kNone;  // RONDO_BIND
  int32_t gpu_numa = -1;        // the kernel's number of its device's NUMA node, if `bind` needs it
  char hosts[192] = {};         // RONDO_HOSTS, until a communicator's ranks are known: then empty
  int32_t pretended_host = 0;   // its value for this rank, and for its rank in derived communicators; 0: none
  char algorithms[96] = {};     // freeze_registry()'s summary; a long one is shortened to its start and its hash
  PlannerChoice planner;
};
/// The same with long values, and with those that only rank 0 sends.
struct Settings : RankSettings {
  CostCorrections corrections;
  char rails[256] = {};  // RONDO_RAILS: each rank has its own
  PlannerSettings for_planner() const { return {planner, corrections}; }
};

/// From the sources of config/setting_table.h; `config` overrides the others. Errors: kInvalidArgument naming the
/// variable, or file:line and key. Unknown ones are reported on stderr.
Expected<Settings> read_settings(const Config& config);

/// The raw values of the same sources.
Expected<SettingValues> read_setting_values(const Config& config);
/// From checked values.
Expected<Settings> settings_from(const SettingValues& values);

/// Settings of a communicator made from another one: `parent`'s, except those that `config` changes. Errors:
/// kInvalidArgument.
Expected<Settings> override_settings(const Settings& parent, const Config& config);

/// The common settings of all ranks: rank 0's plan settings, and the hosts, real or pretended (RONDO_HOSTS).
struct Agreement {
  Settings settings;
  HostLayout hosts;
  TransportChoice transport;  // no longer kAuto
};
/// `all` is by rank; `machines`: the real hosts. Errors: kMismatch naming the two ranks and both values if a rank's
/// setting differs from rank 0's; kInvalidArgument (RONDO_HOSTS does not fit the number of ranks).
Expected<Agreement> agree(Rank rank, const std::vector<RankSettings>& all, const CostCorrections& of_rank_0,
                          const HostLayout& machines);
inline Expected<Agreement> agree(Rank rank, const std::vector<Settings>& all) {
  return agree(rank, {all.begin(), all.end()}, all[0].corrections, static_cast<int>(all.size()));
}

/// Number of CPUs that the ranks of a host may use together.
int count_cpus(const std::vector<RankSettings>& all, const HostLayout& machines, int host);
/// Hosts can share a kernel (containers, network namespaces) and therefore its CPUs. If these are fewer than the ranks,
/// and all ranks may use the same ones: the index of the CPU on which `rank` should start. Each CPU gets as many ranks,
/// and a host's ranks are together (they read each other's recent writes). Otherwise nothing.
std::optional<int> place_among_hosts(const std::vector<RankSettings>& all, const HostLayout& machines, Rank rank);

}  // namespace rondo
