// The interpreter at the wrap of LL's flags, where it fills slots.
// labels: unit tsan
// links: host_kernels
#include <gtest/gtest.h>

#include "device/engine/emulated_calls.h"
#include "protocol/ll.h"

namespace rondo::testing {
namespace {

Case ring_of(uint64_t count) {
  Case c;
  c.algorithm = find_algorithm(Collective::kAllReduce, "ring");
  c.count_elems = count;
  return c;
}

TEST(Wrap, CallsAcrossTheWrap) {
  const DataTables tables(3, 1, kFloat, kSumOp);
  for (const uint64_t first : {(uint64_t{1} << 24) - 20, (uint64_t{1} << 40) - 20})
    for (const DeviceProtocol protocol : {DeviceProtocol::kSimple, DeviceProtocol::kLl, DeviceProtocol::kLl128}) {
      EmulatedDevices devices({.nranks = 3, .max_channels = 1, .first_step = first});
      for (const uint64_t count : {30, 700, 3, 900}) {
        EmulatedCase c(devices, tables, ring_of(count), {protocol, 1, 128});
        devices.launch(c.kernel(), one_unit({&c}), 2);
        ASSERT_EQ(failures(devices, 3), "") << c.text();
        ASSERT_TRUE(c.judge());
      }
    }
}

// After as many short messages as a connection has slots, no line of any slot is older than the filling.
TEST(Wrap, SlotsAreFilledWhole) {
  const uint32_t num_lines = 8;
  for (const uint32_t threads : {1u, 4u}) {
    const DataTables tables(2, 1, kFloat, kSumOp);
    EmulatedDevices devices({.nranks = 2, .max_channels = 1, .num_lines = num_lines, .first_step = kLlFillPeriod});
    EmulatedCase c(devices, tables, ring_of(2 * 4 * num_lines), {DeviceProtocol::kLl, 1, 16});  // 8 loops of 16 B
    devices.launch(c.kernel(), one_unit({&c}), threads);
    ASSERT_TRUE(c.judge());
    int checked = 0;
    for (Rank r = 0; r < 2; ++r) {
      DeviceComm& comm = devices.comm(r);
      for (uint32_t i = 0; i < 4; ++i) {
        const DeviceReadEnd& end = comm.reads[i];
        if (end.view.data == nullptr) continue;
        ASSERT_EQ(end.step, kLlFillPeriod + num_lines);
        for (uint32_t slot = 0; slot < num_lines; ++slot)
          for (uint32_t line = 0; line < end.slot_bytes / kLlLineBytes; ++line, ++checked) {
            const WordPair v = HostMem::load_pair(end.view.data + slot * end.slot_bytes + line * kLlLineBytes);
            const uint64_t wanted = (kLlFillPeriod + slot + 1) & kLlStepMask;
            ASSERT_EQ(v.lo >> 32 & kLlStepMask, wanted) << "slot " << slot << ", line " << line;
            ASSERT_EQ(v.hi >> 32 & kLlStepMask, wanted) << "slot " << slot << ", line " << line;
          }
      }
    }
    EXPECT_GT(checked, 1000);
  }
}

}  // namespace
}  // namespace rondo::testing
