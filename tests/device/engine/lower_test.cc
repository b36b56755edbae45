// Device programs: their layout, the shares of channels, and the results and refusals of lower().
// labels: unit
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "algorithms/registry.h"
#include "device/engine/images.h"
#include "device/engine/launch_tables.h"
#include "device/engine/lower.h"
#include "fsdp/images.h"
#include "fsdp/optimizer_kernels.h"
#include "transport/inproc/inproc.h"

namespace rondo {
namespace {

// Kernels of an older build would misread a newer program: a change here changes all images.
TEST(DeviceLayout, IsFrozen) {
  EXPECT_EQ(sizeof(DeviceStep), 24u);
  EXPECT_EQ(offsetof(DeviceStep, first_index), 16u);
  EXPECT_EQ(offsetof(DeviceStep, src_chunk), 20u);
  EXPECT_EQ(sizeof(DeviceProgram), 128u);
  EXPECT_EQ(offsetof(DeviceProgram, lane_first), 16u);
  EXPECT_EQ(offsetof(DeviceProgram, lane_ends), 52u);
  EXPECT_EQ(offsetof(DeviceProgram, loop_elems), 120u);
  EXPECT_EQ(sizeof(DeviceCounts), 48u);
  EXPECT_EQ(sizeof(DeviceWriteEnd), 192u);
  EXPECT_EQ(sizeof(DeviceReadEnd), 56u);
  EXPECT_EQ(sizeof(DeviceCall), 144u);
  EXPECT_EQ(sizeof(DeviceFallback), 56u);
  EXPECT_EQ(sizeof(PeerCredit), 24u);
  EXPECT_EQ(sizeof(DeviceUnit), 20u);
  EXPECT_EQ(sizeof(DeviceRecord), 64u);
  EXPECT_EQ(sizeof(LaneProgress), 64u);
  EXPECT_EQ(sizeof(DeviceControl), 64u);
  EXPECT_EQ(offsetof(LaunchArgs, own_tables), 48u);
  EXPECT_EQ(sizeof(LaunchArgs), 4096u);
}

TEST(ChannelExtent, SharesCoverAChunkOnceAndStayAligned) {
  for (const uint32_t bytes : {1u, 2u, 4u, 8u})
    for (const uint32_t channels : {1u, 2u, 3u, 7u, 32u})
      for (const uint64_t elems : {uint64_t{0}, uint64_t{1}, uint64_t{63}, uint64_t{64}, uint64_t{65}, uint64_t{128},
                                   uint64_t{1000}, uint64_t{12345}, (uint64_t{1} << 40) + 17}) {
        uint64_t next = 0;
        for (uint32_t c = 0; c < channels; ++c) {
          const Extent e = channel_extent(elems, channels, c, bytes);
          EXPECT_LE(e.num_elems, channel_extent(elems, channels, 0, bytes).num_elems);  // defines the loops
          if (e.num_elems == 0) continue;
          EXPECT_EQ(e.first_elem, next);
          EXPECT_EQ(e.first_elem * bytes % 512, 0u);
          next = e.first_elem + e.num_elems;
        }
        EXPECT_EQ(next, elems);
      }
}

// Numbers ends in the order of first use, and stores their kinds.
class Counting final : public PortIndex {
 public:
  Expected<uint16_t> reader(const ReadPort& port, ConnectionForm form) override {
    forms.push_back(form);
    return static_cast<uint16_t>(port.key.writer * 100 + port.key.tag);
  }
  Expected<uint16_t> writer(const WritePort& port, ConnectionForm form) override {
    forms.push_back(form);
    return static_cast<uint16_t>(port.key.reader * 100 + port.key.tag);
  }
  std::vector<ConnectionForm> forms;
};

struct World {
  explicit World(int nranks) : world(*InprocWorld::create(nranks)), transport(0, world), ports(0, transport) {}
  std::unique_ptr<Program> compiled(Collective collective, const char* name, uint64_t count, Protocol protocol,
                                    int nranks) {
    const Algorithm& a = *find_algorithm(collective, name);
    ProgramShape shape;
    shape.operation = {collective, Dtype::kBfloat16, Op::kAvg, algorithm_index(a), count, 0, 0, false};
    shape.protocol = protocol;
    shape.direct = a.direct;
    auto p = compile(record_rank(a, 0, nranks), shape, ports, *kernel_table(SimdLevel::kBaseline));
    RONDO_CHECK(p.ok());
    return std::move(*p);
  }
  std::shared_ptr<InprocWorld> world;
  InprocTransport transport;
  PortTable ports;
};

uint64_t elems_of(const DeviceStep& s, const DeviceProgram& p, const DeviceCounts& counts) {
  const bool has_dst = s.dst_chunk != DeviceStep::kNoChunk;
  Buffer buffer = static_cast<Buffer>(has_dst ? s.dst_buffer : s.src_buffer);
  if (buffer == Buffer::kScratch) buffer = p.scratch_like;
  const auto like = static_cast<size_t>(buffer);
  return EqualChunks{counts.base_elems[like], counts.longer[like]}.chunk(has_dst ? s.dst_chunk : s.src_chunk).num_elems;
}

// A new count needs no new program: everything that depends on counts and channels travels with the call.
TEST(Lower, CountsAndChannelsChangeNoProgram) {
  for (const int nranks : {1, 2, 3, 8}) {
    World w(nranks);
    for (const Algorithm& a : all_algorithms())
      for (const Protocol protocol : {Protocol::kSimple, Protocol::kInline}) {
        if (a.direct && protocol == Protocol::kInline) continue;
        std::vector<std::byte> first;
        for (const uint64_t count : {0, 1, 7, 1009, 100'003}) {
          const auto program = w.compiled(a.collective, std::string(a.name).c_str(), count, protocol, nranks);
          Counting ports;
          const auto lowered =
              lower(*program, {.num_channels = 1 + static_cast<uint32_t>(count % 3), .message_bytes = 4096}, ports);
          ASSERT_TRUE(lowered.ok());
          if (first.empty()) first = lowered->program;
          ASSERT_TRUE(lowered->program == first) << a.name << ", " << nranks << " ranks, " << count;
          EXPECT_EQ(lowered->counts.fingerprint, program->fingerprint);
        }
      }
  }
}

TEST(Lower, KeepsStepsAndListsEachLanesEnds) {
  World w(4);
  const auto program = w.compiled(Collective::kAllReduce, "ring", 1000, Protocol::kInline, 4);
  Counting ports;
  const auto lowered = lower(*program, {.num_channels = 2, .message_bytes = 64}, ports);
  ASSERT_TRUE(lowered.ok());
  const std::vector<std::byte>& bytes = lowered->program;
  std::vector<DeviceProgram> aligned(bytes.size() / sizeof(DeviceProgram) + 1);
  std::memcpy(static_cast<void*>(aligned.data()), bytes.data(), bytes.size());
  const DeviceProgram& p = aligned[0];
  EXPECT_EQ(p.total_bytes, bytes.size());
  EXPECT_EQ(p.protocol, DeviceProtocol::kLl);
  EXPECT_EQ(p.num_lanes, 3u);
  EXPECT_EQ(p.divide_by, 4u);
  EXPECT_EQ(p.loop_elems, 32u);
  EXPECT_EQ(lowered->counts.num_loops, 8u);  // chunks of 250, in channels of 250 and none: 512 bytes are 256 elements
  EXPECT_EQ(lowered->counts.lap_bytes, kRingMessages * 64);  // for connections with rings
  for (const ConnectionForm form : ports.forms) EXPECT_EQ(form, ConnectionForm::kWords);
  for (uint32_t lane = 0; lane < p.num_lanes; ++lane) {
    ASSERT_EQ(p.lane_first[lane + 1] - p.lane_first[lane], program->lanes[lane].size());
    const uint16_t* list = p.index() + p.lane_ends[lane];
    for (size_t i = 0; i < program->lanes[lane].size(); ++i) {
      const DeviceStep& d = p.steps()[p.lane_first[lane] + i];
      const ProgramStep& s = program->lanes[lane][i];
      EXPECT_EQ(d.verb, s.verb);
      EXPECT_EQ(elems_of(d, p, lowered->counts), s.src.num_elems);
      ASSERT_EQ(d.num_recv, s.recv.size());
      for (size_t k = 0; k < s.recv.size(); ++k) {
        const uint16_t place = p.index()[d.first_index + k];
        ASSERT_LT(place, list[0]);
        EXPECT_EQ(list[2 + place], s.recv[k]->key.writer * 100 + s.recv[k]->key.tag);
      }
      for (size_t k = 0; k < s.send.size(); ++k) {
        const uint16_t place = p.index()[d.first_index + d.num_recv + k];
        ASSERT_LT(place, list[1]);
        EXPECT_EQ(list[2 + list[0] + place], s.send[k]->key.reader * 100 + s.send[k]->key.tag);
      }
    }
  }
}

TEST(Lower, CreditsTravelInLines) {
  World w(3);
  const auto program = w.compiled(Collective::kAllReduce, "pull", 1000, Protocol::kSimple, 3);
  Counting ports;
  ASSERT_TRUE(lower(*program, {}, ports).ok());
  ASSERT_FALSE(ports.forms.empty());
  for (const ConnectionForm form : ports.forms) EXPECT_EQ(form, ConnectionForm::kLines);
}

// After its entry a rank may still switch to another program.
TEST(Lower, EveryDirectAlgorithmBeginsWithItsEntry) {
  for (const int nranks : {2, 3, 8}) {
    World w(nranks);
    for (const Algorithm& a : all_algorithms()) {
      if (a.collective == Collective::kBarrier) continue;
      const auto program = w.compiled(a.collective, std::string(a.name).c_str(), 100, Protocol::kSimple, nranks);
      EXPECT_EQ(entry_steps(*program), a.direct ? 2 : 0) << a.name << ", " << nranks << " ranks";
    }
  }
}

TEST(Lower, RefusesWhatABlockCannotHold) {
  const int nranks = 70;
  World w(nranks);
  const auto program = w.compiled(Collective::kAllToAll, "one_shot", 10, Protocol::kInline, nranks);
  Counting ports;
  const auto lowered = lower(*program, {}, ports);
  ASSERT_FALSE(lowered.ok());
  EXPECT_EQ(lowered.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(lowered.status().message().find("69"), std::string_view::npos) << lowered.status().to_string();
}

TEST(Lower, NamesKernels) {
  World w(2);
  EXPECT_EQ(interpreter_name(*w.compiled(Collective::kAllReduce, "ring", 10, Protocol::kSimple, 2)),
            "rondo_interpret_bfloat16_sum");
  EXPECT_EQ(interpreter_name(*w.compiled(Collective::kAllGather, "ring", 10, Protocol::kSimple, 2)),
            "rondo_interpret_copy");
  EXPECT_EQ(reduce_name(Dtype::kFloat8E4m3, Op::kPremulSum), "rondo_reduce_fp8_e4m3_sum");
  EXPECT_EQ(reduce_mixed_name(Op::kMax), "rondo_reduce_mixed_max");
}

// Every kernel name that the host may use is in some image, and every image is a fatbin.
TEST(Images, HoldEveryKernel) {
  if (collective_images().empty()) GTEST_SKIP() << "this library was built without nvcc: it has no CUDA images";
  for (const Op op : {Op::kSum, Op::kProd, Op::kMax, Op::kMin}) {
    for (int t = 0; t < kNumDtypes; ++t) {
      const std::string name = reduce_name(static_cast<Dtype>(t), op);
      const KernelImage* image = find_image(collective_images(), name);
      ASSERT_NE(image, nullptr) << name;
      EXPECT_EQ(image->name, dtype_name(static_cast<Dtype>(t)));
    }
    EXPECT_NE(find_image(collective_images(), reduce_mixed_name(op)), nullptr);
  }
  EXPECT_NE(find_image(collective_images(), kGridCopyName), nullptr);
#define RONDO_X(name, ...) EXPECT_NE(find_image(optimizer_images(), #name), nullptr);
  RONDO_OPTIMIZER_KERNELS(RONDO_X)
#undef RONDO_X
  EXPECT_NE(find_image(collective_images(), "rondo_interpret_copy"), nullptr);
  EXPECT_EQ(find_image(collective_images(), "rondo_interpret_float_avg"), nullptr);
  for (const KernelImage& image : collective_images()) {
    ASSERT_GT(image.fatbin.size(), 1000u) << image.name;
    uint32_t magic;
    std::memcpy(&magic, image.fatbin.data(), 4);
    EXPECT_EQ(magic, 0xba55ed50u) << image.name;
  }
}

// Each call finds its own fallback and parts, behind all calls.
TEST(LaunchTables, CallsNameTheirFallbacksAndParts) {
  VariableCounts variable;
  variable.in = {{7}, {0}};
  variable.out = {{7, 0, 5}, {0, 7, 9}};
  DeviceProgram program, other;
  std::vector<LaunchCall> calls(5);
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].program = &program;
    calls[i].index = static_cast<uint32_t>(i);
    if (i % 2 == 1) calls[i].other = {&other, {}};
    calls[i].other.counts.pairwise = static_cast<uint32_t>(i);  // its last field
    if (i >= 2) calls[i].variable = &variable;
  }
  for (const size_t num_units : {1, 2, 3}) {
    const std::vector<DeviceUnit> units(num_units, DeviceUnit{4, 1, 2, 0, 5});
    const LaunchTables tables{units, calls};
    const uint64_t bytes = tables.write(nullptr);
    std::vector<DeviceCall> memory((bytes + sizeof(DeviceCall) - 1) / sizeof(DeviceCall) + 1);  // aligned as a call is
    auto* const begin = reinterpret_cast<std::byte*>(memory.data());
    begin[bytes] = std::byte{0xA5};
    ASSERT_EQ(tables.write(begin), bytes);
    EXPECT_EQ(begin[bytes], std::byte{0xA5});
    LaunchArgs args{};
    args.num_units = static_cast<uint32_t>(num_units);
    args.more_tables = begin;
    EXPECT_EQ(args.units()[num_units - 1].first_block, 4u);
    for (size_t i = 0; i < calls.size(); ++i) {
      const DeviceCall& call = args.calls()[i];
      EXPECT_EQ(call.program, &program);
      EXPECT_EQ(call.index, i);
      EXPECT_EQ(call.fallback != 0, i % 2 == 1);
      if (call.fallback != 0) {
        EXPECT_EQ(call.fallback % alignof(DeviceFallback), 0u);
        EXPECT_EQ(args.at<DeviceFallback>(call.fallback)->program, &other);
        EXPECT_EQ(args.at<DeviceFallback>(call.fallback)->counts.pairwise, i);
      }
      if (i < 2) continue;
      EXPECT_EQ(call.parts[0] % alignof(Extent), 0u);
      EXPECT_EQ(args.at<Extent>(call.parts[0])[0], variable.in.part(0));
      for (size_t c = 0; c < 3; ++c) EXPECT_EQ(args.at<Extent>(call.parts[1])[c], variable.out.part(c));
      EXPECT_LE(call.parts[1] + 3 * sizeof(Extent), bytes);
    }
  }
}

}  // namespace
}  // namespace rondo
