// The interpreter on host threads: every registered algorithm with every protocol, exact data.
// labels: unit tsan
// links: host_kernels
// timeout: 600
#include <gtest/gtest.h>

#include "device/engine/emulated_calls.h"
#include "support/shared.h"

namespace rondo::testing {
namespace {

std::vector<int> sizes() { return kSanitized ? std::vector{1, 2, 3, 5} : std::vector{1, 2, 3, 4, 5, 8}; }

class EveryAlgorithm : public ::testing::TestWithParam<DeviceProtocol> {};

// All algorithms of N ranks on the same devices, so that every end keeps its state from launch to launch.
TEST_P(EveryAlgorithm, ExactData) {
  for (const int nranks : sizes()) {
    const DataTables tables(nranks, 7, kFloat, kSumOp);
    EmulatedDevices devices({.nranks = nranks, .max_channels = 3});
    uint32_t turn = 0;
    for (const Algorithm& a : all_algorithms())
      for (const uint64_t count : {0, 1, 5, 1009}) {
        if (nranks > 4 && (count == 1 || count == 5)) continue;  // too many threads for little data
        Case c = varied_case(a, count, turn, nranks);
        // Two calls of one unit, one in place and one not, each with its own share of the channels.
        EmulatedCase first(devices, tables, c, {GetParam(), 1 + turn % 3, turn % 5 == 0 ? 4096u : 512u});
        c.in_place = !c.in_place;
        c.variant = (turn + 1) % 4;
        EmulatedCase second(devices, tables, c, {GetParam(), 1 + turn / 3 % 3, 512});
        const uint32_t threads = nranks > 4 ? 1 : nranks > 2 ? 1 + turn % 2 : 1u << turn % 3;
        devices.launch(first.kernel(), one_unit({&first, &second}), threads);
        ASSERT_EQ(failures(devices, nranks), "") << first.text();
        ASSERT_TRUE(first.judge() && second.judge());
        ++turn;
      }
  }
}

std::string protocol_name_of(const ::testing::TestParamInfo<DeviceProtocol>& p) { return protocol_text(p.param); }
INSTANTIATE_TEST_SUITE_P(Protocols, EveryAlgorithm,
                         ::testing::Values(DeviceProtocol::kSimple, DeviceProtocol::kLl, DeviceProtocol::kLl128),
                         protocol_name_of);

}  // namespace
}  // namespace rondo::testing
