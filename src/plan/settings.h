// Settings: what the environment asks for, and what the ranks agreed on when the communicator was made.
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

/// One rank's settings: trivially copyable, since ranks exchange them as bytes.
/// What every rank says of itself: plain bytes, as they travel.
/// RONDO_TRANSPORT: what ranks of several hosts talk over, and whether ranks of one host do as well.
enum class TransportChoice : int32_t { kAuto, kShmUcx, kShmTcp, kUcx, kTcp };
constexpr std::string_view kTransportChoices[] = {"auto", "shm+ucx", "shm+tcp", "ucx", "tcp"};
constexpr bool uses_ucx(TransportChoice t) { return t == TransportChoice::kShmUcx || t == TransportChoice::kUcx; }
constexpr bool is_alone(TransportChoice t) { return t == TransportChoice::kTcp || t == TransportChoice::kUcx; }

struct RankSettings {
  uint64_t abi = 7;  // of this struct, the shared segments and what travels; ranks must be of one build
  char version[16] = {};
  double deadline_s = 600;     // RONDO_TIMEOUT_S
  double init_deadline_s = 120;  // RONDO_INIT_TIMEOUT_S
  int32_t simd = -1;           // RONDO_SIMD; -1: the best
  uint64_t may_pull = 1;       // RONDO_CMA: this rank's memory may be read by the others
  TransportChoice transport = TransportChoice::kAuto;  // RONDO_TRANSPORT
  int32_t has_ucx = 0;         // this rank's build
  int32_t prefers_ucx = 0;     // this rank's host has devices, or its environment settings, for UCX
  int32_t encrypted = 0;       // RONDO_ENCRYPT, or what ncclSetEncryption said
  int32_t device_channels = 0;    // RONDO_DEVICE_CHANNELS; 0: free choice
  int32_t device_engine = 0;      // RONDO_DEVICE_ENGINE: 0 free choice, 1 interpreter, 2 stream
  int32_t device_peers = 1;       // RONDO_P2P
  int32_t device_direct = 1;      // RONDO_DEVICE_DIRECT
  char device_p2p_level[8] = {};  // RONDO_P2P_LEVEL
  cpu_set_t cpus;              // on which this rank may run
  uint64_t kernel = 0;         // a number of its kernel's boot: where it is the same, CPUs are; 0: unknown
  BindTo bind = BindTo::kNone;  // RONDO_BIND
  int32_t gpu_numa = -1;        // the kernel's number of the NUMA node of its device, where `bind` needs it
  char hosts[192] = {};         // RONDO_HOSTS, until a communicator's ranks are known: then empty
  int32_t pretended_host = 0;   // as it said for this rank, and for its rank in what is made of it; 0: none
  char algorithms[96] = {};    // freeze_registry()'s summary, the start of a long one and its hash
  PlannerChoice planner;
};
/// The same with what is long and what rank 0 alone tells the others.
struct Settings : RankSettings {
  CostCorrections corrections;
  char rails[256] = {};  // RONDO_RAILS: of each rank its own
  PlannerSettings for_planner() const { return {planner, corrections}; }
};

/// From the sources of config/setting_table.h, `config` being the strongest. Errors: kInvalidArgument naming the
/// variable, or file:line and key. Unknown ones are reported on stderr.
Expected<Settings> read_settings(const Config& config);

/// The same before anything is made of them.
Expected<SettingValues> read_setting_values(const Config& config);
/// Of values that have been checked.
Expected<Settings> settings_from(const SettingValues& values);

/// Settings of a communicator made from another one: `parent`'s, less what `config` says otherwise.
/// Errors: kInvalidArgument.
Expected<Settings> override_settings(const Settings& parent, const Config& config);

/// What all ranks use: rank 0's plan settings, and on which hosts they are, or pretend to be (RONDO_HOSTS).
struct Agreement {
  Settings settings;
  HostLayout hosts;
  TransportChoice transport;  // no longer kAuto
};
/// `all` is by rank; `machines`: where the ranks are in truth. Errors: kMismatch naming the two ranks and both values
/// where a rank sets something else than rank 0; kInvalidArgument (RONDO_HOSTS does not fit the number of ranks).
Expected<Agreement> agree(Rank rank, const std::vector<RankSettings>& all, const CostCorrections& of_rank_0,
                          const HostLayout& machines);
inline Expected<Agreement> agree(Rank rank, const std::vector<Settings>& all) {
  return agree(rank, {all.begin(), all.end()}, all[0].corrections, static_cast<int>(all.size()));
}

/// How many CPUs the ranks of a host may use together.
int count_cpus(const std::vector<RankSettings>& all, const HostLayout& machines, int host);
/// Hosts can share a kernel (containers, network namespaces), and so its CPUs. Where these are fewer than ranks, and
/// all ranks may use the same: on which of them `rank` should start, by index, so that each has as many ranks and a
/// host's are together (they read what the others have just written). Nothing elsewhere.
std::optional<int> place_among_hosts(const std::vector<RankSettings>& all, const HostLayout& machines, Rank rank);

}  // namespace rondo
