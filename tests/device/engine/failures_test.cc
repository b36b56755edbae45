// Every wait of the interpreter ends and reports the missing rank: deadlines, aborts, ranks that disagree.
// labels: unit tsan
// links: host_kernels
// timeout: 120
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <vector>

#include "device/engine/emulated_calls.h"

namespace rondo::testing {
namespace {

void set_deadline(EmulatedCase& c, uint64_t ns) {
  for (DeviceCall& call : c.calls()) call.deadline_ns = ns;
}
// Only rank 0's calls.
EmulatedUnits rank_0_only(EmulatedCase& c) {
  auto units = one_unit({&c});
  for (size_t r = 1; r < units.size(); ++r) units[r].clear();
  return units;
}

constexpr uint64_t kShortNs = 30'000'000;

TEST(Failures, DeadlineNamesThePeerThatIsMissing) {
  const DataTables tables(3, 1, kFloat, kSumOp);
  for (const DeviceProtocol protocol : kProtocols)
    for (const char* algorithm : {"ring", "direct", "one_shot"})
      for (const uint32_t threads : {1u, 2u}) {
        EmulatedDevices devices({.nranks = 3, .max_channels = 2});
        EmulatedCase c(devices, tables, case_of(Collective::kAllReduce, algorithm, 900), {protocol, 2, 512});
        set_deadline(c, kShortNs);
        devices.launch(c.kernel(), rank_0_only(c), threads);
        const DeviceControl& control = devices.control(0);
        EXPECT_EQ(control.failed, static_cast<uint32_t>(DeviceFailure::kDeadline)) << c.text();
        EXPECT_GE(control.waited_ns, kShortNs) << c.text();
        EXPECT_LT(control.channel, 2u);
        // A lane that waits for another lane, or for room, waits for no particular peer.
        if (std::string_view(algorithm) == "direct") {
          EXPECT_TRUE(control.peer == 1 || control.peer == 2) << control.peer;
          EXPECT_EQ(control.for_room, 0u);
          EXPECT_EQ(control.loop, 0u);
        }
        EXPECT_EQ(devices.control(1).failed, 0u);
      }
}

TEST(Failures, DeadlineForRoom) {
  const DataTables tables(2, 1, kFloat, kSumOp);
  for (const DeviceProtocol protocol : kProtocols) {
    EmulatedDevices devices({.nranks = 2});
    Case scatter = case_of(Collective::kScatter, "linear", 2000);  // only the root sends
    EmulatedCase c(devices, tables, scatter, {protocol, 1, 256});
    set_deadline(c, kShortNs);
    devices.launch(c.kernel(), rank_0_only(c), 2);
    EXPECT_EQ(devices.control(0).failed, static_cast<uint32_t>(DeviceFailure::kDeadline)) << c.text();
    EXPECT_EQ(devices.control(0).for_room, 1u) << c.text();
    EXPECT_EQ(devices.control(0).loop, 8u) << c.text();  // a connection has as many messages as lines
  }
}

TEST(Failures, AbortEndsEveryWait) {
  const DataTables tables(3, 1, kFloat, kSumOp);
  for (const DeviceProtocol protocol : kProtocols)
    for (const char* algorithm : {"ring", "direct", "one_shot", "circulant"}) {
      EmulatedDevices devices({.nranks = 3, .max_channels = 2});
      EmulatedCase c(devices, tables, case_of(Collective::kAllReduce, algorithm, 900), {protocol, 2, 512});
      set_deadline(c, 0);  // no deadline
      devices.control(0).abort = 1;
      devices.launch(c.kernel(), rank_0_only(c), 2);
      EXPECT_EQ(devices.control(0).failed, static_cast<uint32_t>(DeviceFailure::kAborted)) << c.text();
    }
}

// A lane that meets the others between calls also leaves if it waits for failed blocks.
TEST(Failures, MeetingsEnd) {
  const DataTables tables(2, 1, kFloat, kSumOp);
  EmulatedDevices devices({.nranks = 2});
  EmulatedCase first(devices, tables, case_of(Collective::kAllReduce, "ring", 100), {});
  EmulatedCase second(devices, tables, case_of(Collective::kAllReduce, "ring", 100), {});
  set_deadline(first, kShortNs);
  set_deadline(second, kShortNs);
  auto units = one_unit({&first, &second});
  units[1].clear();
  devices.launch(first.kernel(), units, 1);
  EXPECT_EQ(devices.control(0).failed, static_cast<uint32_t>(DeviceFailure::kDeadline));
  EXPECT_EQ(devices.control(0).call, 0u);
}

TEST(Failures, RanksThatDisagreeAreNamed) {
  const DataTables tables(2, 1, kFloat, kSumOp);
  for (const DeviceProtocol protocol : kProtocols) {
    EmulatedDevices devices({.nranks = 2});
    EmulatedCase one(devices, tables, case_of(Collective::kAllReduce, "ring", 100), {protocol, 1, 512});
    EmulatedCase other(devices, tables, case_of(Collective::kAllReduce, "ring", 101), {protocol, 1, 512});
    set_deadline(one, 10 * kShortNs);
    set_deadline(other, 10 * kShortNs);
    devices.launch(one.kernel(), {{{one.calls()[0]}}, {{other.calls()[1]}}}, 1);
    for (Rank r = 0; r < 2; ++r) {
      EXPECT_EQ(devices.control(r).failed, static_cast<uint32_t>(DeviceFailure::kMismatch)) << protocol_text(protocol);
      EXPECT_EQ(devices.control(r).peer, 1 - r) << protocol_text(protocol);
    }
  }
}

std::vector<uint32_t> words_of(std::span<const std::byte> bytes) {
  std::vector<uint32_t> words(bytes.size() / 4);
  if (!words.empty()) std::memcpy(words.data(), bytes.data(), words.size() * 4);
  return words;
}

// The last rank does not come. Every element of the others' outputs is then complete or 0xFFFFFFFF, a NaN.
void expect_no_partial_results(const Case& c, const EmulatedRun& run, const DataTables& tables) {
  const int nranks = tables.nranks();
  EmulatedDevices whole({.nranks = nranks, .max_channels = 2}), broken({.nranks = nranks, .max_channels = 2});
  EmulatedCase complete(whole, tables, c, run), other(broken, tables, c, run), failing(broken, tables, c, run);
  const bool needs_all = c.collective == Collective::kAllReduce;  // of every rank, nothing can be complete
  if (!needs_all) whole.launch(complete.kernel(), one_unit({&complete}), 1);
  ASSERT_EQ(failures(whole, nranks), "") << complete.text();
  set_deadline(failing, kShortNs / 3);
  set_deadline(other, kShortNs / 3);
  auto units = one_unit({&failing, &other});
  units.back().clear();
  broken.launch(failing.kernel(), units, 2);
  for (Rank r = 0; r + 1 < nranks; ++r) {
    const bool failed = broken.control(r).failed != 0;
    for (const EmulatedCase* call : {&failing, &other}) {
      const auto got = words_of(call->out(r)), right = words_of(complete.out(r));
      for (size_t i = 0; i < got.size(); ++i) {
        const bool missing = got[i] == UINT32_MAX;
        ASSERT_TRUE(missing || (!needs_all && got[i] == right[i]))
            << call->text() << ": rank " << r << ", element " << i << " is " << got[i] << ", not " << right[i];
        ASSERT_TRUE(failed || !missing) << call->text() << ": rank " << r;
      }
    }
  }
}

TEST(Failures, OutputsHaveNoPartialResults) {
  const DataTables tables(3, 1, kFloat, kSumOp);
  for (const DeviceProtocol protocol : kProtocols)
    for (const Algorithm& a : all_algorithms())
      for (const bool in_place : {false, true}) {
        if (protocol != DeviceProtocol::kSimple && (a.collective != Collective::kAllReduce || !in_place)) continue;
        if (a.name == "direct" && a.collective != Collective::kReduceScatter) continue;  // ranks push
        Case c = case_of(a.collective, std::string(a.name).c_str(), 1009);
        c.in_place = in_place;
        expect_no_partial_results(c, {protocol, 2, 512}, tables);
        if (HasFatalFailure()) return;
      }
}

// While the call has not chosen between the direct algorithm and the other one.
TEST(Failures, OutputsOfCallsWithAFallbackHaveNoPartialResults) {
  const DataTables tables(3, 1, kFloat, kSumOp);
  for (const bool in_place : {false, true}) {
    Case c = case_of(Collective::kAllReduce, "pull", 1009);
    c.in_place = in_place;
    expect_no_partial_results(c, {DeviceProtocol::kSimple, 2, 512, find_algorithm(c.collective, "ring")}, tables);
  }
}

// A failed rank's devices are not used again. A new communicator works.
TEST(Failures, OthersGoOn) {
  const DataTables tables(2, 1, kFloat, kSumOp);
  EmulatedDevices broken({.nranks = 2}), whole({.nranks = 2});
  EmulatedCase c(broken, tables, case_of(Collective::kAllReduce, "ring", 100), {});
  EmulatedCase d(whole, tables, case_of(Collective::kAllReduce, "ring", 100), {});
  broken.control(0).abort = 1;
  auto units = one_unit({&d});
  units[0].push_back({c.calls()[0]});  // next to it, in the same launch
  broken.launch(d.kernel(), units, 1);
  EXPECT_EQ(broken.control(0).failed, static_cast<uint32_t>(DeviceFailure::kAborted));
  EXPECT_EQ(failures(whole, 2), "");
  EXPECT_TRUE(d.judge());
}

}  // namespace
}  // namespace rondo::testing
