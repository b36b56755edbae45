// The device planner on several hosts: LL inside hosts where it is faster, Simple for long calls and between hosts.
// labels: unit
#include "device/engine/device_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "transport/inproc/inproc.h"

namespace rondo {
namespace {

DeviceWorld world_of(bool wide_lines) {
  DeviceWorld world;
  world.layout = {4, 64 * 1024};
  world.proxied = true;
  world.wide_lines = wide_lines;
  return world;
}

struct Plans {
  Plans(const std::string& hosts_text, const DeviceWorld& world, const std::string& protocol = {})
      : hosts(*HostLayout::parse(hosts_text)),
        transport(0, *InprocWorld::create(hosts.nranks())),
        ports(0, transport),
        planner(0, hosts, settings_with(protocol), ports, *kernel_table(SimdLevel::kBaseline)),
        devices(hosts.nranks(), world, planner) {}
  static PlannerSettings settings_with(const std::string& protocol) {
    PlannerSettings settings;
    settings.protocol = protocol;
    return settings;
  }
  std::vector<DeviceCandidate> all(Collective collective, uint64_t count) {
    CallShape request;
    request.collective = collective;
    request.count_elems = count;
    const auto found = devices.candidates(request, true);
    EXPECT_TRUE(found.ok()) << found.status().to_string();
    return found.ok() ? *found : std::vector<DeviceCandidate>(1);
  }
  HostLayout hosts;
  InprocTransport transport;
  PortTable ports;
  Planner planner;
  DevicePlanner devices;
};

bool has(const std::vector<DeviceCandidate>& all, DeviceProtocol p) {
  return std::any_of(all.begin(), all.end(), [&](const DeviceCandidate& c) { return c.protocol == p; });
}

// The hops inside hosts decide: LL for short calls, Simple for long ones.
TEST(DevicePlanner, ShortCallsOnHostsOfSeveralRanksUseLlInside) {
  for (const char* hosts : {"2x4", "3x4", "4x8"}) {
    Plans plans(hosts, world_of(false));
    const DeviceCandidate best = plans.all(Collective::kAllReduce, 997)[0];
    EXPECT_EQ(best.protocol, DeviceProtocol::kLl) << hosts;
    EXPECT_EQ(best.message_bytes, DeviceLayout::slot_payload(ConnectionForm::kWords));
    EXPECT_TRUE(plans.devices.describe(best).starts_with("hierarchical_one_shot ll inside hosts, "))
        << hosts << ": " << plans.devices.describe(best);
    EXPECT_EQ(plans.all(Collective::kAllReduce, 16 << 20)[0].protocol, DeviceProtocol::kSimple) << hosts;
  }
}

// A crossing takes as long with LL as with Simple. Only hops inside hosts differ.
TEST(DevicePlanner, ForecastsCountHopsInsideHostsOnly) {
  Plans plans("2x4", world_of(false));
  const DeviceCosts costs;
  const auto of = [&](const char* algorithm, DeviceProtocol p) {
    for (const DeviceCandidate& c : plans.all(Collective::kAllReduce, 1))
      if (c.algorithm->name == algorithm && c.protocol == p) return c.forecast_ns;
    ADD_FAILURE() << algorithm;
    return 0.0;
  };
  const auto saved = [&](const char* algorithm) {
    return of(algorithm, DeviceProtocol::kSimple) - of(algorithm, DeviceProtocol::kLl);
  };
  const double hop = costs.hop_ns[0] - costs.hop_ns[1];
  EXPECT_NEAR(saved("one_shot"), 0, 10);                     // one step, between hosts
  EXPECT_NEAR(saved("hierarchical_one_shot"), 2 * hop, 10);  // one inside, one between, one inside
}

TEST(DevicePlanner, OneRankOnEachHostHasNothingForLl) {
  DeviceWorld world = world_of(true);
  EXPECT_EQ(Plans("2x1", world).all(Collective::kAllReduce, 1)[0].protocol, DeviceProtocol::kSimple);  // by forecast
  world.all_cross = true;
  const auto all = Plans("2x1", world).all(Collective::kAllReduce, 1);
  EXPECT_FALSE(has(all, DeviceProtocol::kLl) || has(all, DeviceProtocol::kLl128));
}

TEST(DevicePlanner, Ll128NeedsWholeLinesInsideHostsOnly) {
  EXPECT_FALSE(has(Plans("2x4", world_of(false)).all(Collective::kAllReduce, 1000), DeviceProtocol::kLl128));
  EXPECT_TRUE(has(Plans("2x4", world_of(true)).all(Collective::kAllReduce, 1000), DeviceProtocol::kLl128));
  const auto named = Plans("2x4", world_of(true), "ll128").all(Collective::kAllReduce, 1000);
  EXPECT_TRUE(has(named, DeviceProtocol::kLl128));
  EXPECT_FALSE(has(named, DeviceProtocol::kSimple));
}

// Two ranks choose alike, because both know whether their link is between hosts.
TEST(DevicePlanner, ShortMessagesUseLlInsideHosts) {
  const Plans plans("2x4", world_of(false));
  EXPECT_EQ(plans.devices.message(1000, false).protocol, DeviceProtocol::kLl);
  EXPECT_EQ(plans.devices.message(1000, true).protocol, DeviceProtocol::kSimple);
  EXPECT_EQ(plans.devices.message(1 << 20, false).protocol, DeviceProtocol::kSimple);
}

}  // namespace
}  // namespace rondo
