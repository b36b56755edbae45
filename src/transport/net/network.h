// The networks between hosts: a table with one row for each (RONDO_NETWORKS in config/networks.h). The code in
// transport/NAME/ makes the rails of network NAME and describes the network.
//
// Thread safety: constant.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/networks.h"
#include "transport/net/rail.h"

namespace rondo::net {

/// The arguments for making a rail.
struct RailOptions {
  Rank rank = 0;
  int nranks = 0;
  std::string device = {};                  // the only network device that it uses; empty: any
  std::vector<std::string> addresses = {};  // numeric ones of this rank, for a rail that listens without a device
};

struct Network {
  std::string_view name;     // "tcp", for RONDO_TRANSPORT=tcp and shm+tcp
  std::string_view summary;  // for display
  std::string_view lacks;    // what a build without it lacks, and the remedy
  bool long_messages;        // messages far above 128 KiB are faster
  bool is_built;             // into this build; otherwise there is no make_rail
  /// True if this host has devices or settings for it.
  bool (*is_preferred)();
  /// Its version and devices, or the reason why it cannot be used; for display.
  std::string (*describe)();
  /// Errors: kUnsupported (not built in, or no library), kInvalidArgument (no such device), kSystem.
  Expected<std::unique_ptr<Rail>> (*make_rail)(Sink& sink, const RailOptions& options);
};

#define RONDO_X(name) extern const Network name##_network;
RONDO_NETWORKS(RONDO_X)
#undef RONDO_X

/// In the order of the table.
std::span<const Network* const> networks();
/// The index of the network of RONDO_TRANSPORT's value "tcp" or "shm+tcp".
size_t network_index(std::string_view transport);

}  // namespace rondo::net
