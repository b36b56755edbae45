// Direct calls with some rank's buffers unreachable: all ranks, and all lanes of all channels, run the fallback.
// labels: unit tsan
// links: host_kernels
// timeout: 300
#include <gtest/gtest.h>

#include "device/engine/emulated_calls.h"

namespace rondo::testing {
namespace {

// The algorithms that can replace it.
std::vector<const Algorithm*> staged(Collective collective) {
  std::vector<const Algorithm*> found;
  for (const Algorithm& a : all_algorithms())
    if (a.collective == collective && !a.direct) found.push_back(&a);
  return found;
}

// The program that all ranks ran, from the records of a launch.
struct Records {
  std::vector<DeviceRecord> records = std::vector<DeviceRecord>(1 << 16);
  uint64_t next = 0;
  DeviceTrace trace() { return {records.data(), &next, records.size()}; }

  // Entry credits to and from all ranks are two instructions, which always come first.
  struct Steps {
    uint64_t entry = 0, direct = 0, fallback = 0;
  };
  Steps of_call(uint16_t call) const {
    Steps steps;
    for (uint64_t i = 0; i < next; ++i) {
      const DeviceRecord& r = records[i];
      if (r.call == call) ++(r.fallback != 0 ? steps.fallback : r.pc < 2 ? steps.entry : steps.direct);
    }
    return steps;
  }
};

void expect_choice(const Records& seen, uint16_t call, EmulatedCase& c, bool falls_back) {
  SCOPED_TRACE(c.text());
  uint64_t channels = 0;  // of all ranks with work
  for (const DeviceCall& of_rank : c.calls())
    if (of_rank.counts.num_loops != 0) channels += of_rank.counts.num_channels;
  const Records::Steps steps = seen.of_call(call);
  ASSERT_EQ(steps.entry, 2 * channels);
  ASSERT_EQ(steps.direct != 0, channels != 0 && !falls_back);
  ASSERT_EQ(steps.fallback != 0, channels != 0 && falls_back);
}

// Two calls per unit, so that the lanes also meet in between. In each some rank's buffer may be unreachable.
TEST(Fallback, EveryDirectAlgorithmBesideEveryOther) {
  for (const int nranks : {2, 3, 5}) {
    const DataTables tables(nranks, 7, kFloat, kSumOp);
    EmulatedDevices devices({.nranks = nranks, .max_channels = 3});
    uint32_t turn = 0;
    for (const Algorithm& a : all_algorithms()) {
      if (!a.direct) continue;
      for (const Algorithm* other : staged(a.collective)) {
        std::vector<std::unique_ptr<EmulatedCase>> calls;
        std::vector<EmulatedCase*> unit;
        std::vector<bool> falls_back;
        for (int i = 0; i < 3; ++i, ++turn) {
          const EmulatedRun run{DeviceProtocol::kSimple, 1 + turn % 3, 512, other, kProtocols[turn / 2 % 3]};
          const uint64_t count = turn % 5 == 0 ? 0 : turn % 3 == 0 ? 1009 : 3 + turn % 7;
          const Case drawn = varied_case(a, count, turn, nranks);
          calls.push_back(std::make_unique<EmulatedCase>(devices, tables, drawn, run));
          unit.push_back(calls.back().get());
          DeviceCall& someone = unit.back()->calls()[turn % static_cast<uint32_t>(nranks)];
          falls_back.push_back(turn % 4 != 0);
          if (turn % 4 == 1) someone.in_region = kRegionNowhere;
          if (turn % 4 == 2) someone.out_region = kRegionNowhere;
          if (turn % 4 == 3)
            for (DeviceCall& call : unit.back()->calls()) call.in_region = call.out_region = kRegionNowhere;
        }
        Records seen;
        devices.launch(unit[0]->kernel(), one_unit(unit), nranks > 3 ? 1 : 1 + turn % 2, seen.trace());
        ASSERT_EQ(failures(devices, nranks), "") << unit[0]->text() << " beside " << other->name;
        for (size_t i = 0; i < unit.size(); ++i) {
          ASSERT_TRUE(unit[i]->judge()) << i << " beside " << other->name;
          expect_choice(seen, static_cast<uint16_t>(i), *unit[i], falls_back[i]);
          ASSERT_FALSE(HasFatalFailure()) << " beside " << other->name;
        }
      }
    }
  }
}

// Calls with and without a choice in one unit, with the connections and credits of one communicator.
TEST(Fallback, AmongOtherCalls) {
  const int nranks = 3;
  const DataTables tables(nranks, 5, kFloat, kSumOp);
  const Algorithm& direct = *find_algorithm(Collective::kAllReduce, "direct");
  for (const DeviceProtocol protocol : kProtocols) {
    EmulatedDevices devices({.nranks = nranks, .max_channels = 3});
    for (uint32_t launch = 0; launch < 6; ++launch) {
      std::vector<std::unique_ptr<EmulatedCase>> calls;
      std::vector<EmulatedCase*> unit;
      for (const char* name : {"ring", "direct", "one_shot", "direct", "direct", "halving_doubling"}) {
        const Algorithm& a = *find_algorithm(Collective::kAllReduce, name);
        EmulatedRun run{protocol, 1 + static_cast<uint32_t>(calls.size()) % 3, 256};
        if (&a == &direct) {
          run.fallback = find_algorithm(Collective::kAllReduce, calls.size() % 2 == 0 ? "tree" : "one_shot");
          run.fallback_protocol = protocol;
        }
        calls.push_back(std::make_unique<EmulatedCase>(devices, tables,
                                                       varied_case(a, 300 + 11 * calls.size(), launch, nranks), run));
        unit.push_back(calls.back().get());
        if (&a == &direct && (launch + calls.size()) % 3 != 0)
          unit.back()->calls()[(launch + calls.size()) % 3].out_region = kRegionNowhere;
      }
      devices.launch("rondo_interpret_float_sum", one_unit(unit), 1 + launch % 2);
      ASSERT_EQ(failures(devices, nranks), "") << protocol_text(protocol);
      for (EmulatedCase* c : unit) ASSERT_TRUE(c->judge());
    }
  }
}

// Without a fallback this is a failure that names the rank, and never an access.
TEST(Fallback, WithoutOneNowhereIsAnError) {
  const DataTables tables(2, 1, kFloat, kSumOp);
  EmulatedDevices devices({.nranks = 2});
  EmulatedCase c(devices, tables, varied_case(*find_algorithm(Collective::kAllReduce, "direct"), 100, 0, 2), {});
  c.calls()[1].in_region = kRegionNowhere;
  for (DeviceCall& call : c.calls()) call.deadline_ns = 200'000'000;
  devices.launch(c.kernel(), one_unit({&c}), 1);
  EXPECT_EQ(devices.control(0).failed, static_cast<uint32_t>(DeviceFailure::kUnreachable));
  EXPECT_EQ(devices.control(0).peer, 1);
}

// Lanes that wait for the choice leave if it is not made.
TEST(Fallback, AMissingRankEndsTheWaitForTheChoice) {
  const DataTables tables(3, 1, kFloat, kSumOp);
  EmulatedDevices devices({.nranks = 3, .max_channels = 2});
  EmulatedRun run{DeviceProtocol::kSimple, 2, 512, find_algorithm(Collective::kAllReduce, "ring")};
  EmulatedCase c(devices, tables, varied_case(*find_algorithm(Collective::kAllReduce, "direct"), 900, 0, 3), run);
  for (DeviceCall& call : c.calls()) call.deadline_ns = 500'000'000;  // longer than a loaded machine delays a thread
  auto units = one_unit({&c});
  units[1].clear();
  units[2].clear();
  devices.launch(c.kernel(), units, 2);
  EXPECT_EQ(devices.control(0).failed, static_cast<uint32_t>(DeviceFailure::kDeadline));
  EXPECT_TRUE(devices.control(0).peer == 1 || devices.control(0).peer == 2);
}

}  // namespace
}  // namespace rondo::testing
