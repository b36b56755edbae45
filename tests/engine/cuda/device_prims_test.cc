// Inlined definitions on host threads, next to the interpreter: exact data, equal bits, ranks of both kinds in one
// call, units, failures, traces.
// labels: unit tsan
// links: host_kernels
// timeout: 600
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "engine/cuda/emulated_calls.h"
#include "support/host_kernels/host_kernels.h"

namespace rondo::testing {
namespace {

constexpr DeviceProtocol kProtocols[] = {DeviceProtocol::kSimple, DeviceProtocol::kLl, DeviceProtocol::kLl128};
constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather};
constexpr Dtype kDtypes[] = {Dtype::kFloat32, Dtype::kFloat16, Dtype::kBfloat16};
constexpr Op kOps[] = {Op::kSum, Op::kAvg, Op::kPremulSum};

Case ring_case(Collective collective, uint64_t count) {
  Case c;
  c.collective = collective;
  c.algorithm = find_algorithm(collective, "ring");
  c.count_elems = count;
  return c;
}
std::string inlined(const Case& c) {
  const std::string name = inlined_name(*c.algorithm, c.dtype, c.op, 0);
  RONDO_CHECK(!name.empty());
  return name;
}
/// A kernel for each rank, by the bits of `inlines`.
std::vector<std::string> kernels_of(const Case& c, const EmulatedCase& e, int nranks, uint32_t inlines) {
  std::vector<std::string> kernels;
  for (int r = 0; r < nranks; ++r) kernels.push_back((inlines >> r & 1) != 0 ? inlined(c) : e.kernel());
  return kernels;
}

TEST(InlinedNames, HaveAKernel) {
  int found = 0;
  for (const Algorithm& a : all_algorithms())
    for (int t = 0; t < kNumDtypes; ++t)
      for (const Op op : {Op::kSum, Op::kProd, Op::kMax, Op::kMin, Op::kAvg, Op::kPremulSum}) {
        const std::string name = inlined_name(a, static_cast<Dtype>(t), op, 0);
        if (name.empty()) continue;
        EXPECT_NE(find_host_kernel(name), nullptr) << name;
        ++found;
      }
  EXPECT_GT(found, 18);
}

class Inlined : public ::testing::TestWithParam<DeviceProtocol> {};

// Launches of all kinds on the same connections: all ranks inlined, some of them, none. Two calls per unit, one of them
// in place.
TEST_P(Inlined, ExactData) {
  for (int nranks = 1; nranks <= 8; ++nranks) {
    const DataTables tables(nranks, 7, kDtypes, kOps);
    EmulatedDevices devices({.nranks = nranks, .max_channels = 3});
    uint32_t turn = 0;
    for (const Collective collective : kCollectives)
      for (const uint64_t count : {0, 1, 7, 641, 1009, 3000}) {
        if (nranks > 4 && (count == 1 || count == 7)) continue;  // too many threads for little data
        const uint64_t whole = collective == Collective::kAllReduce ? count : count / static_cast<uint64_t>(nranks) + 1;
        Case c = ring_case(collective, count == 0 ? 0 : whole);
        c.dtype = kDtypes[turn % 3];
        c.op = kOps[turn / 3 % 3];
        c.in_place = turn % 2 == 1;
        c.variant = turn % 4;
        EmulatedCase first(devices, tables, c, {GetParam(), 1 + turn % 3, turn % 5 == 0 ? 4096u : 256u});
        c.in_place = !c.in_place;
        c.variant = (turn + 1) % 4;
        EmulatedCase second(devices, tables, c, {GetParam(), 1 + turn / 3 % 3, 512});
        const uint32_t all = (1u << nranks) - 1, inlines = turn % 3 == 0 ? all : 0x5a3cu >> turn % 5 & all;
        const uint32_t threads = nranks > 4 ? 1 : nranks > 2 ? 1 + turn % 2 : 1u << turn % 3;
        devices.launch(kernels_of(c, first, nranks, inlines), one_unit({&first, &second}), threads);
        ASSERT_EQ(failures(devices, nranks), "") << first.text() << ", inlined " << inlines;
        ASSERT_TRUE(first.judge() && second.judge()) << "inlined " << inlines;
        ++turn;
      }
  }
}

// Sums that round, and bytes that are not numbers: the bits are the same for all kernels.
TEST_P(Inlined, BitsOfTheInterpreter) {
  for (const int nranks : {1, 2, 3, 5, 7}) {
    EmulatedDevices devices({.nranks = nranks, .max_channels = 3});
    uint32_t turn = 0;
    for (const Collective collective : kCollectives)
      for (const Dtype dtype : kDtypes)
        for (const Op op : kOps) {
          Case c = ring_case(collective, 0);
          c.dtype = dtype;
          c.op = collective_reduces(collective) ? op : Op::kSum;
          c.count_elems = collective == Collective::kAllReduce ? 1201 : 257;
          ++turn;
          ProgramShape shape;
          shape.operation = {collective, dtype, c.op, algorithm_index(*c.algorithm), c.count_elems, 0, 0, false};
          shape.protocol = GetParam() == DeviceProtocol::kSimple ? Protocol::kSimple : Protocol::kInline;
          const DeviceShape device{.num_channels = 1 + turn % 3,
                                   .short_messages = GetParam(),
                                   .message_bytes = turn % 2 != 0 ? 128u : 2048u};
          const uint64_t in_bytes = in_elems(c, nranks) * dtype_bytes(dtype);
          const uint64_t out_bytes = out_elems(c, nranks) * dtype_bytes(dtype);
          std::vector<std::vector<uint8_t>> in, expected;
          for (Rank r = 0; r < nranks; ++r) {
            in.emplace_back(in_bytes);
            if (turn % 4 == 0) {  // any bits: numbers, infinities, NaN of all kinds
              for (uint64_t i = 0; i < in_bytes; ++i)
                in.back()[i] = static_cast<uint8_t>((i + 1) * 2654435761u * static_cast<uint32_t>(r + 3) >> 13);
            } else {
              fill_rounding(dtype, 11, r, 0, in_elems(c, nranks), in.back().data());
            }
          }
          const uint32_t all = (1u << nranks) - 1;
          for (const uint32_t inlines : {0u, all, 0x36u & all}) {
            std::vector<std::vector<uint8_t>> out(static_cast<size_t>(nranks), std::vector<uint8_t>(out_bytes));
            std::vector<std::vector<std::vector<DeviceCall>>> units;
            std::vector<std::string> kernels;
            for (Rank r = 0; r < nranks; ++r) {
              const auto at = static_cast<size_t>(r);
              DeviceCall call = devices.call(devices.program(record_rank(*c.algorithm, r, nranks), shape, device));
              call.in = reinterpret_cast<const std::byte*>(in[at].data());
              call.out = reinterpret_cast<std::byte*>(out[at].data());
              const float scale = 0.7f + 0.1f * static_cast<float>(r);
              std::memcpy(call.premul, &scale, 4);
              units.push_back({{call}});
              kernels.push_back((inlines >> r & 1) != 0 ? inlined(c) : devices.kernel_name());
            }
            devices.launch(kernels, units, 2);
            ASSERT_EQ(failures(devices, nranks), "");
            if (inlines == 0) expected = out;
            ASSERT_TRUE(out == expected) << describe(c) << ", " << nranks << " ranks, inlined " << inlines;
          }
        }
  }
}

// Every length of chunks, shares and last windows, in many loops; sometimes with the interpreter.
TEST_P(Inlined, EveryLength) {
  const int nranks = 3;
  const Dtype dtypes[] = {Dtype::kFloat16};
  const Op ops[] = {Op::kSum};
  const DataTables tables(nranks, 5, dtypes, ops);
  EmulatedDevices devices({.nranks = nranks, .max_channels = 2});
  for (uint64_t count = 0; count < 240; count += 1 + count / 40) {
    Case c = ring_case(Collective::kAllReduce, count);
    c.dtype = Dtype::kFloat16;
    c.in_place = count % 2 == 1;
    c.variant = static_cast<uint32_t>(count % 4);
    EmulatedCase call(devices, tables, c, {GetParam(), 1 + static_cast<uint32_t>(count % 2), 64});
    devices.launch(count % 7 == 3 ? call.kernel() : inlined(c), one_unit({&call}), 1 + count % 2);
    ASSERT_EQ(failures(devices, nranks), "") << call.text();
    ASSERT_TRUE(call.judge());
  }
}

constexpr uint64_t kShortNs = 30'000'000;

void set_deadline(EmulatedCase& c, uint64_t ns) {
  for (DeviceCall& call : c.calls()) call.deadline_ns = ns;
}

TEST_P(Inlined, ADeadlineNamesThePeer) {
  const int nranks = 3;
  const DataTables tables(nranks, 1, kDtypes, kOps);
  for (const Collective collective : kCollectives)
    for (const uint32_t threads : {1u, 2u}) {
      EmulatedDevices devices({.nranks = nranks, .max_channels = 2});
      const Case c = ring_case(collective, 300);
      EmulatedCase call(devices, tables, c, {GetParam(), 2, 4096});
      set_deadline(call, kShortNs);
      auto units = one_unit({&call});
      units[0].clear();  // rank 0 is missing: the others wait for it, one of them through the other
      devices.launch(inlined(c), units, threads);
      const DeviceControl& control = devices.control(1);
      EXPECT_EQ(control.failed, static_cast<uint32_t>(DeviceFailure::kDeadline)) << call.text();
      EXPECT_EQ(control.peer, 0) << call.text();
      EXPECT_EQ(control.for_room, 0u);
      EXPECT_EQ(control.loop, 0u);
      EXPECT_GE(control.waited_ns, kShortNs);
      EXPECT_GT(control.lane, 0u);
      EXPECT_EQ(devices.control(2).failed, static_cast<uint32_t>(DeviceFailure::kDeadline));
      EXPECT_EQ(devices.control(2).peer, 1);
      EXPECT_EQ(devices.control(0).failed, 0u);
    }
}

TEST_P(Inlined, ADeadlineForRoom) {
  const DataTables tables(2, 1, kDtypes, kOps);
  EmulatedDevices devices({.nranks = 2});
  const Case c = ring_case(Collective::kReduceScatter, 2000);
  EmulatedCase call(devices, tables, c, {GetParam(), 1, 256});
  set_deadline(call, kShortNs);
  auto units = one_unit({&call});
  units[1].clear();
  devices.launch(inlined(c), units, 1);
  const DeviceControl& control = devices.control(0);
  EXPECT_EQ(control.failed, static_cast<uint32_t>(DeviceFailure::kDeadline));
  if (control.for_room != 0) {  // the lane that sends: a connection has as many messages as lines
    EXPECT_EQ(control.lane, 0u);
    EXPECT_EQ(control.loop, 8u);
  } else {
    EXPECT_EQ(control.peer, 1);
  }
}

TEST_P(Inlined, AnAbortEndsEveryWait) {
  const DataTables tables(3, 1, kDtypes, kOps);
  EmulatedDevices devices({.nranks = 3, .max_channels = 2});
  const Case c = ring_case(Collective::kAllReduce, 900);
  EmulatedCase first(devices, tables, c, {GetParam(), 2, 512}), second(devices, tables, c, {GetParam(), 2, 512});
  set_deadline(first, 0);  // no deadline
  set_deadline(second, 0);
  devices.control(0).abort = 1;
  auto units = one_unit({&first, &second});
  units[1].clear();
  units[2].clear();
  devices.launch(inlined(c), units, 2);
  EXPECT_EQ(devices.control(0).failed, static_cast<uint32_t>(DeviceFailure::kAborted));
}

// Also between a rank that interprets and an inlined one.
TEST_P(Inlined, RanksThatDisagreeAreNamed) {
  const DataTables tables(2, 1, kDtypes, kOps);
  EmulatedDevices devices({.nranks = 2});
  const Case c = ring_case(Collective::kAllReduce, 100);
  EmulatedCase one(devices, tables, c, {GetParam(), 1, 512});
  EmulatedCase other(devices, tables, ring_case(Collective::kAllReduce, 101), {GetParam(), 1, 512});
  set_deadline(one, 10 * kShortNs);
  set_deadline(other, 10 * kShortNs);
  devices.launch(kernels_of(c, one, 2, 1), {{{one.calls()[0]}}, {{other.calls()[1]}}}, 1);
  for (Rank r = 0; r < 2; ++r) {
    EXPECT_EQ(devices.control(r).failed, static_cast<uint32_t>(DeviceFailure::kMismatch));
    EXPECT_EQ(devices.control(r).peer, 1 - r);
  }
}

// The same records as the interpreter's: one for each instruction of every block and loop.
TEST_P(Inlined, Traces) {
  const int nranks = 3;
  const DataTables tables(nranks, 5, kDtypes, kOps);
  using Place = std::tuple<uint8_t, uint8_t, uint16_t, uint32_t>;  // lane, channel, pc, loop
  for (const Collective collective : kCollectives) {
    std::vector<Place> places[2];
    for (const bool inlines : {false, true}) {
      EmulatedDevices devices({.nranks = nranks, .max_channels = 2});
      const Case c = ring_case(collective, 700);
      EmulatedCase call(devices, tables, c, {GetParam(), 2, 256});
      std::vector<DeviceRecord> records(1024);
      uint64_t next = 0;
      devices.launch(inlines ? inlined(c) : call.kernel(), one_unit({&call}), 2,
                     {records.data(), &next, records.size()});
      ASSERT_TRUE(call.judge());
      ASSERT_LE(next, records.size());
      for (uint64_t i = 0; i < next; ++i) {
        const DeviceRecord& r = records[i];
        EXPECT_LE(r.begin_ns, r.end_ns);
        EXPECT_LE(r.wait_ns, r.end_ns - r.begin_ns);
        EXPECT_NE(r.begin_ns, 0u);
        places[inlines].emplace_back(r.lane, r.channel, r.pc, r.loop);
      }
      std::sort(places[inlines].begin(), places[inlines].end());
    }
    EXPECT_FALSE(places[0].empty());
    EXPECT_EQ(places[0], places[1]);
  }
}

std::string protocol_name_of(const ::testing::TestParamInfo<DeviceProtocol>& p) { return protocol_text(p.param); }
INSTANTIATE_TEST_SUITE_P(Protocols, Inlined, ::testing::ValuesIn(kProtocols), protocol_name_of);

}  // namespace
}  // namespace rondo::testing
