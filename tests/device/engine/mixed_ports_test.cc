// Programs of LL and LL128 some of whose connections have rings, as those between hosts: every registered algorithm,
// exact data, and how their waits end.
// labels: unit tsan
// links: host_kernels
// timeout: 600
#include <gtest/gtest.h>

#include "device/engine/emulated_calls.h"
#include "protocol/ll.h"

namespace rondo::testing {
namespace {

constexpr DeviceProtocol kLineProtocols[] = {DeviceProtocol::kLl, DeviceProtocol::kLl128};

// All algorithms on the same devices, so that every end keeps its state from launch to launch. Simple calls use the
// same rings in between.
void run_all(const HostLayout& hosts, const std::function<bool(const ConnectionKey&)>& has_ring) {
  const int nranks = hosts.nranks();
  const DataTables tables(nranks, 7, kFloat, kSumOp);
  EmulatedDevices devices({.nranks = nranks, .max_channels = 2, .has_ring = has_ring});
  uint32_t turn = 0;
  for (const Algorithm& a : all_algorithms())
    for (const uint64_t count : {0, 5, 1009}) {
      if (a.direct || (nranks > 4 && count == 5)) continue;
      Case c = varied_case(a, count, turn, nranks);
      EmulatedRun run{kLineProtocols[turn % 2], 1 + turn / 2 % 2, turn % 5 == 0 ? 4096u : 512u};
      run.hosts = &hosts;
      EmulatedCase first(devices, tables, c, run);
      run.protocol = kProtocols[turn / 3 % 3];
      EmulatedCase second(devices, tables, c, run);
      const uint32_t threads = nranks > 4 ? 1 : 1 + turn % 2;
      devices.launch(first.kernel(), one_unit({&first, &second}), threads);
      ASSERT_EQ(failures(devices, nranks), "") << first.text() << " and " << second.text();
      ASSERT_TRUE(first.judge() && second.judge());
      ++turn;
    }
}

TEST(MixedPorts, PortsOfBothKindsInAnInstruction) {
  for (const int nranks : {2, 3, 5}) run_all(nranks, half_have_rings);
}
TEST(MixedPorts, RingsBetweenHosts) {
  for (const char* text : {"2x2", "3+2", "0,1,0,1", "1+1", "3x2"}) {
    const auto hosts = HostLayout::parse(text);
    ASSERT_TRUE(hosts.ok());
    run_all(*hosts, rings_between(*hosts));
  }
}
// Rings follow an order of ranks that is not ascending.
TEST(MixedPorts, RingsBetweenHostsInAnOrderOfRanks) {
  for (const std::vector<Rank>& order : {std::vector<Rank>{3, 2, 0, 1}, std::vector<Rank>{1, 0, 3, 2}}) {
    const auto hosts = HostLayout::uniform(2, 2).in_order(order);
    ASSERT_TRUE(hosts.ok());
    run_all(*hosts, rings_between(*hosts));
  }
}

// A ring is waited for as a whole, and at the deadline the report names its writer.
TEST(MixedPorts, ADeadlineNamesTheWriterOfARing) {
  const DataTables tables(2, 1, kFloat, kSumOp);
  for (const DeviceProtocol protocol : kLineProtocols) {
    EmulatedDevices devices({.nranks = 2, .has_ring = [](const ConnectionKey&) { return true; }});
    EmulatedCase c(devices, tables, case_of(Collective::kBroadcast, "ring", 900), {protocol, 1, 512});
    for (LaunchCall& call : c.calls()) call.deadline_ns = 500'000'000;
    auto units = one_unit({&c});
    units[0].clear();  // the root
    devices.launch(c.kernel(), units, 2);
    EXPECT_EQ(devices.control(1).failed, static_cast<uint32_t>(DeviceFailure::kDeadline)) << c.text();
    EXPECT_EQ(devices.control(1).peer, 0);
    EXPECT_EQ(devices.control(1).for_room, 0u);
  }
}

// Messages of another operation in a ring are a mismatch.
TEST(MixedPorts, AnotherOperationInARingIsAMismatch) {
  const DataTables tables(2, 1, kFloat, kSumOp);
  EmulatedDevices devices({.nranks = 2, .has_ring = [](const ConnectionKey&) { return true; }});
  EmulatedCase c(devices, tables, case_of(Collective::kBroadcast, "ring", 100), {DeviceProtocol::kLl, 1, 512});
  c.calls()[0].index = 1;
  devices.launch(c.kernel(), one_unit({&c}), 2);
  EXPECT_EQ(devices.control(1).failed, static_cast<uint32_t>(DeviceFailure::kMismatch));
}

// Slots are filled at the wrap of LL's flags, and rings are not.
TEST(MixedPorts, CallsAcrossTheWrap) {
  const DataTables tables(3, 1, kFloat, kSumOp);
  for (const uint64_t first : {kLlFillPeriod - 4, (uint64_t{1} << 24) - 20, (uint64_t{1} << 40) - 20})
    for (const DeviceProtocol protocol : kLineProtocols) {
      EmulatedDevices devices({.nranks = 3, .max_channels = 1, .first_step = first, .has_ring = half_have_rings});
      for (const uint64_t count : {30, 700, 3, 900}) {
        EmulatedCase c(devices, tables, case_of(Collective::kAllReduce, "ring", count), {protocol, 1, 128});
        devices.launch(c.kernel(), one_unit({&c}), 2);
        ASSERT_EQ(failures(devices, 3), "") << c.text();
        ASSERT_TRUE(c.judge());
      }
    }
}

}  // namespace
}  // namespace rondo::testing
