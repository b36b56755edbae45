// Contents of an interpreter launch besides a single call: all dtypes and ops, mixed types, several calls in a unit,
// concurrent units, successive launches, traces.
// labels: unit tsan
// links: host_kernels
// timeout: 600
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "device/engine/emulated_calls.h"
#include "rondo/communicator.h"
#include "support/shared.h"

namespace rondo::testing {
namespace {

constexpr Dtype kAllDtypes[] = {Dtype::kInt8,    Dtype::kUint8,    Dtype::kInt32,      Dtype::kUint32,
                                Dtype::kInt64,   Dtype::kUint64,   Dtype::kFloat16,    Dtype::kFloat32,
                                Dtype::kFloat64, Dtype::kBfloat16, Dtype::kFloat8E4m3, Dtype::kFloat8E5m2};
constexpr Op kAllOps[] = {Op::kSum, Op::kProd, Op::kMax, Op::kMin, Op::kAvg, Op::kPremulSum};

TEST(Calls, EveryDtypeAndOp) {
  const int nranks = 3;
  const DataTables tables(nranks, 3, kAllDtypes, kAllOps);
  EmulatedDevices devices({.nranks = nranks, .max_channels = 2});
  EmulatedDevices with_rings({.nranks = nranks, .max_channels = 2, .has_ring = half_have_rings});
  uint32_t turn = 0;
  for (const Dtype dtype : kAllDtypes)
    for (const Op op : kAllOps)
      for (const DeviceProtocol protocol : kProtocols)
        for (const char* algorithm : {"ring", "one_shot", "direct"}) {
          Case c = case_of(Collective::kAllReduce, algorithm, 997);
          c.dtype = dtype;
          c.op = op;
          c.variant = ++turn % 4;
          c.in_place = turn / 3 % 2 == 1;
          if (!applies(c) || (kSanitized && turn % 5 != 0)) continue;
          for (EmulatedDevices* d : {&devices, &with_rings}) {
            if (d == &with_rings && protocol == DeviceProtocol::kSimple) continue;
            EmulatedCase call(*d, tables, c, {protocol, 1 + turn % 2, 512});
            d->launch(call.kernel(), one_unit({&call}), 1 + turn % 2);
            ASSERT_EQ(failures(*d, nranks), "") << call.text();
            ASSERT_TRUE(call.judge());
          }
        }
}

// The scale of a pre-multiplied sum may be in device memory, as an element of the input's type.
TEST(Calls, ScaleInDeviceMemory) {
  const int nranks = 2;
  const Dtype dtypes[] = {Dtype::kFloat16, Dtype::kFloat32, Dtype::kInt32};
  const Op ops[] = {Op::kPremulSum};
  const DataTables tables(nranks, 3, dtypes, ops);
  EmulatedDevices devices({.nranks = nranks});
  for (const Dtype dtype : dtypes) {
    Case c = case_of(Collective::kAllReduce, "ring", 100);
    c.dtype = dtype;
    c.op = Op::kPremulSum;
    EmulatedCase call(devices, tables, c, {});
    uint64_t scales[2];
    for (Rank r = 0; r < nranks; ++r) {
      const uint64_t scale = premul_scale(tables.spec(dtype, c.op), r);
      scales[r] = scale;
      if (dtype == Dtype::kFloat16) encode_float(dtype, decode_float(Dtype::kFloat32, &scale), &scales[r]);
      call.calls()[static_cast<size_t>(r)].premul_at = &scales[r];
      std::memset(call.calls()[static_cast<size_t>(r)].premul, 0xff, 8);
    }
    devices.launch(call.kernel(), one_unit({&call}), 1);
    ASSERT_TRUE(call.judge());
  }
}

// Calls of one unit share connections, and a later call has other lanes: state moves from block to block.
TEST(Calls, SeveralInAUnit) {
  for (const int nranks : {2, 3, 4}) {
    const Dtype dtypes[] = {Dtype::kFloat32};
    const Op ops[] = {Op::kSum};
    const DataTables tables(nranks, 5, dtypes, ops);
    for (const DeviceProtocol protocol : kProtocols) {
      EmulatedDevices devices({.nranks = nranks, .max_channels = 3});
      for (int launch = 0; launch < 3; ++launch) {
        std::vector<std::unique_ptr<EmulatedCase>> calls;
        std::vector<EmulatedCase*> in_order;
        // Tree has four lanes, ring three, direct one; halving_doubling, one_shot and circulant wait for lanes.
        for (const char* algorithm : {"ring", "tree", "halving_doubling", "one_shot", "ring", "circulant", "direct"}) {
          const Case c = case_of(Collective::kAllReduce, algorithm, 300 + 11 * calls.size());
          calls.push_back(std::make_unique<EmulatedCase>(
              devices, tables, c, EmulatedRun{protocol, static_cast<uint32_t>(1 + calls.size() % 3), 256}));
          in_order.push_back(calls.back().get());
        }
        devices.launch("rondo_interpret_float_sum", one_unit(in_order), static_cast<uint32_t>(1 + launch % 2));
        ASSERT_EQ(failures(devices, nranks), "") << protocol_text(protocol);
        for (EmulatedCase* c : in_order) ASSERT_TRUE(c->judge());
      }
    }
  }
}

// Units of different communicators, more than the kernel's argument holds.
TEST(Calls, UnitsSideBySide) {
  const int nranks = 2;
  const Dtype dtypes[] = {Dtype::kFloat32};
  const Op ops[] = {Op::kSum};
  const DataTables tables(nranks, 5, dtypes, ops);
  for (const size_t num_units : {size_t{3}, LaunchArgs::kOwnBytes / sizeof(DeviceCall) / 2 + 1}) {
    std::vector<std::unique_ptr<EmulatedDevices>> comms;
    std::vector<std::unique_ptr<EmulatedCase>> calls;
    EmulatedUnits units(nranks);
    for (size_t u = 0; u < num_units; ++u) {
      comms.push_back(std::make_unique<EmulatedDevices>(EmulatedShape{.nranks = nranks, .max_channels = 2}));
      for (auto& of_rank : units) of_rank.emplace_back();
      for (int k = 0; k < 2; ++k) {
        const Case c = case_of(Collective::kAllReduce, u % 2 == 0 ? "ring" : "one_shot", 50 + u);
        calls.push_back(
            std::make_unique<EmulatedCase>(*comms.back(), tables, c, EmulatedRun{kProtocols[u % 3], 1, 512}));
        for (size_t r = 0; r < units.size(); ++r) units[r][u].push_back(calls.back()->calls()[r]);
      }
    }
    comms[0]->launch("rondo_interpret_float_sum", units, 1);
    for (auto& c : calls) ASSERT_TRUE(c->judge());
  }
}

// Bits of mixed types and of sums that round equal the host executor's: same schedule, same order of addition.
class AgainstHost {
 public:
  AgainstHost(int nranks, const TypeRow& row, Op op, const Algorithm& a, uint64_t count)
      : nranks_(nranks), row_(row), op_(op), algorithm_(a), count_(count) {
    const CollectiveTraits& t = collective_traits(a.collective);
    in_elems_ = count * parts(t.in_parts, nranks);
    out_elems_ = count * parts(t.out_parts, nranks);
    for (Rank r = 0; r < nranks; ++r) {
      in_.emplace_back(in_elems_ * 8 + 64);
      fill_rounding(row.input, 11, r, 0, in_elems_, in_.back().data());
      host_.emplace_back(out_elems_ * 8 + 64);
      device_.emplace_back(out_elems_ * 8 + 64);
    }
  }
  /// Returns false if the host refuses the algorithm for this row.
  bool run_host(std::vector<std::unique_ptr<Communicator>>& comms) {
    std::vector<Status> statuses(comms.size());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < comms.size(); ++r)
      threads.emplace_back([&, r] {
        CallOptions options;
        TypeRow row = row_;
        options.row = &row;
        const std::string name(algorithm_.name);
        options.algorithm = name.c_str();
        const float scale = scale_of(r);
        if (op_ == Op::kPremulSum) options.premul = &scale;
        Communicator& c = *comms[r];
        const void* in = in_[r].data();
        void* out = host_[r].data();
        const Dtype t = row_.input;
        if (algorithm_.collective == Collective::kAllReduce)
          statuses[r] = c.all_reduce(in, out, count_, t, op_, &options);
        else if (algorithm_.collective == Collective::kReduceScatter)
          statuses[r] = c.reduce_scatter(in, out, count_, t, op_, &options);
        else statuses[r] = c.all_gather(in, out, count_, t, &options);
      });
    for (std::thread& t : threads) t.join();
    return std::all_of(statuses.begin(), statuses.end(), [](const Status& s) { return s.ok(); });
  }
  void run_device(EmulatedDevices& devices, DeviceProtocol protocol, uint32_t channels, uint32_t threads) {
    for (std::vector<uint8_t>& out : device_) std::ranges::fill(out, uint8_t{0});
    ProgramShape shape;
    shape.operation = {algorithm_.collective,
                       row_.input,
                       collective_reduces(algorithm_.collective) ? op_ : Op::kSum,
                       algorithm_index(algorithm_),
                       count_,
                       0,
                       *row_index(row_),
                       false};
    shape.direct = algorithm_.direct && nranks_ > 1;
    shape.protocol = protocol == DeviceProtocol::kSimple || shape.direct ? Protocol::kSimple : Protocol::kInline;
    DeviceShape device;
    device.num_channels = channels;
    device.short_messages = protocol;
    device.message_bytes = 256;
    EmulatedUnits units(static_cast<size_t>(nranks_));
    for (Rank r = 0; r < nranks_; ++r) {
      const auto at = static_cast<size_t>(r);
      LaunchCall call = devices.call(devices.program(record_rank(algorithm_, r, nranks_), shape, device));
      call.in = reinterpret_cast<const std::byte*>(in_[at].data());
      call.out = reinterpret_cast<std::byte*>(device_[at].data());
      const float scale = scale_of(at);
      std::memcpy(call.premul, &scale, 4);
      units[at] = {{call}};
    }
    devices.launch(devices.kernel_name(), units, threads);
  }
  std::string text() const {
    return std::string(collective_name(algorithm_.collective)) + " by " + std::string(algorithm_.name) + ", " +
           std::string(op_name(op_)) + ", " + std::string(dtype_name(row_.input)) + " by " +
           std::string(dtype_name(row_.wire)) + " to " + std::string(dtype_name(row_.output));
  }
  bool same() const {
    for (size_t r = 0; r < host_.size(); ++r)
      if (host_[r] != device_[r]) return false;
    return true;
  }

 private:
  static float scale_of(size_t rank) { return 0.7f + 0.1f * static_cast<float>(rank); }
  int nranks_;
  TypeRow row_;
  Op op_;
  const Algorithm& algorithm_;
  uint64_t count_, in_elems_, out_elems_;
  std::vector<std::vector<uint8_t>> in_, host_, device_;
};

TEST(Calls, BitsOfTheHost) {
  const int nranks = 3;
  auto comms = Communicator::init_all(nranks);
  ASSERT_TRUE(comms.ok());
  EmulatedDevices devices({.nranks = nranks, .max_channels = 2});
  EmulatedDevices with_rings({.nranks = nranks, .max_channels = 2, .has_ring = half_have_rings});
  std::mt19937 random(20261129);
  uint32_t turn = 0, compared = 0;
  const TypeRow uniform[] = {uniform_row(Dtype::kFloat32), uniform_row(Dtype::kBfloat16), uniform_row(Dtype::kFloat16)};
  for (const Algorithm& a : all_algorithms()) {
    if (a.collective != Collective::kAllReduce && a.collective != Collective::kReduceScatter &&
        a.collective != Collective::kAllGather)
      continue;
    for (int row = 1; row < kNumRows + 3; ++row) {
      // Of the rows half for each algorithm, an eighth under a sanitizer. Drawn, so that no choice follows another.
      if (row < kNumRows && random() % (kSanitized ? 8 : 2) != 0) continue;
      const Op op = kAllOps[random() % std::size(kAllOps)];
      const DeviceProtocol protocol = kProtocols[random() % 3];
      ++turn;
      AgainstHost both(nranks,
                       row < kNumRows ? row_at(static_cast<uint8_t>(row), Dtype::kFloat32) : uniform[row - kNumRows],
                       op, a, 257);
      if (!both.run_host(*comms)) continue;
      for (EmulatedDevices* d : {&devices, &with_rings}) {
        both.run_device(*d, protocol, 1 + turn % 2, 1 + turn / 2 % 2);
        ASSERT_EQ(failures(*d, nranks), "") << both.text();
        ASSERT_TRUE(both.same()) << both.text() << " by " << protocol_text(protocol);
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, kSanitized ? 40u : 100u);
}

// Ranks in other processes see a buffer at other addresses. Here "ours" is a copy with different bytes, which shows the
// one that was read.
TEST(Calls, PeersMemoryAtOtherAddresses) {
  const int nranks = 2;
  const Dtype dtypes[] = {Dtype::kFloat32};
  const Op ops[] = {Op::kSum};
  const DataTables tables(nranks, 5, dtypes, ops);
  for (const bool reachable : {true, false}) {
    EmulatedDevices devices({.nranks = nranks});
    EmulatedCase c(devices, tables, case_of(Collective::kAllGather, "pull", 100), {});
    const uint64_t in_bytes = 400, out_bytes = 800;
    std::vector<std::vector<std::byte>> copies;
    std::vector<PeerRegion> regions(4);  // region 0: in, region 1: out; of rank 0 and rank 1
    size_t place = 0;
    for (DeviceCall& call : c.calls()) {
      copies.emplace_back(call.in, call.in + in_bytes);
      for (std::byte& b : copies.back()) b ^= std::byte{0x5a};
      regions[place] = {call.in - (reachable ? 4 : 4000), in_bytes + 8, copies.back().data() - (reachable ? 4 : 4000)};
      copies.emplace_back(out_bytes);
      regions[2 + place++] = {call.out, out_bytes, copies.back().data()};
      call.out_region = 1;
    }
    for (Rank rank = 0; rank < nranks; ++rank) {
      devices.comm(rank).regions = regions.data();
      devices.comm(rank).max_regions = 2;
    }
    devices.launch(c.kernel(), one_unit({&c}), 2);
    for (size_t r = 0; r < 2; ++r) {
      const DeviceControl& control = devices.control(static_cast<Rank>(r));
      if (!reachable) {
        EXPECT_EQ(control.failed, static_cast<uint32_t>(DeviceFailure::kUnreachable));
        EXPECT_EQ(control.peer, 1 - static_cast<Rank>(r));
        continue;
      }
      EXPECT_EQ(control.failed, 0u);
      const std::byte* out = c.calls()[r].out;
      EXPECT_EQ(std::memcmp(out + r * in_bytes, c.calls()[r].in, in_bytes), 0);                   // its own
      EXPECT_EQ(std::memcmp(out + (1 - r) * in_bytes, copies[2 * (1 - r)].data(), in_bytes), 0);  // the peer's copy
    }
  }
}

// One record for each instruction of every block, its times in order.
TEST(Calls, Traces) {
  const int nranks = 3;
  const Dtype dtypes[] = {Dtype::kFloat32};
  const Op ops[] = {Op::kSum};
  const DataTables tables(nranks, 5, dtypes, ops);
  EmulatedDevices devices({.nranks = nranks, .max_channels = 2});
  EmulatedCase call(devices, tables, case_of(Collective::kAllReduce, "ring", 600), {DeviceProtocol::kSimple, 2, 256});
  std::vector<DeviceRecord> records(1024);
  uint64_t next = 0;
  devices.launch(call.kernel(), one_unit({&call}), 2, {records.data(), &next, records.size()});
  ASSERT_TRUE(call.judge());
  uint64_t expected = 0;
  for (const DeviceCall& c : call.calls())
    expected += (c.program->lane_first[c.program->num_lanes]) * c.counts.num_loops * c.counts.num_channels;
  ASSERT_EQ(next, expected);
  for (uint64_t i = 0; i < next; ++i) {
    const DeviceRecord& r = records[i];
    EXPECT_LE(r.begin_ns, r.end_ns);
    EXPECT_LE(r.wait_ns, r.end_ns - r.begin_ns);
    EXPECT_LT(r.lane, 3);
    EXPECT_LT(r.channel, 2);
    EXPECT_NE(r.begin_ns, 0u);
  }
}

}  // namespace
}  // namespace rondo::testing
