// Hosts for tests: made in code without hwloc, or read from texts if hwloc is available.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "topology/host_source.h"
#include "topology/places.h"

namespace rondo::testing {

/// Every package has `nodes` NUMA nodes, each with `caches` L3 caches with `cores` cores of `pus` PUs. The kernel's
/// numbers are as on most servers: first PUs of all cores come before second ones.
struct Grid {
  int packages = 1, nodes = 1, caches = 1, cores = 1, pus = 1;
};

inline HostTopology grid_host(const Grid& g) {
  HostTopology host;
  const int num_cores = g.packages * g.nodes * g.caches * g.cores;
  for (int p = 0; p < g.packages; ++p) {
    host.packages.push_back({p, ""});
    for (int n = 0; n < g.nodes; ++n) {
      const auto numa = static_cast<int>(host.nodes.size());
      host.nodes.push_back({numa, p, 1ull << 30, g.caches * g.cores});
      for (int c = 0; c < g.caches; ++c) {
        host.caches.push_back({3, 1 << 24, 64, g.cores});
        for (int k = 0; k < g.cores; ++k) {
          const auto index = static_cast<int>(host.cores.size());
          Core core{index, p, numa, {}, {static_cast<int>(host.caches.size()) - 1}};
          for (int t = 0; t < g.pus; ++t) {
            core.pus.push_back(static_cast<int>(host.pus.size()));
            host.pus.push_back({index + t * num_cores, index, true});
          }
          host.cores.push_back(std::move(core));
        }
      }
    }
  }
  return host;
}

/// The places of this number of ranks. None if the host has none for them, which also fails the test.
inline std::vector<Placement> placed(const HostTopology& host, int ranks) {
  auto places = place_ranks(host, ranks);
  EXPECT_TRUE(places.ok()) << places.status().to_string();
  return places.ok() ? *places : std::vector<Placement>();
}

inline std::string read_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline std::string tests_folder() { return std::string(RONDO_SOURCE_DIR) + "/tests/topology/"; }
inline HostSource gpu_box() { return {HostSource::Kind::kXml, read_text(tests_folder() + "hosts/gpu_box.xml")}; }
inline HostSource synthetic(std::string description) { return {HostSource::Kind::kSynthetic, std::move(description)}; }

}  // namespace rondo::testing
