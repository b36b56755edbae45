// The mixed kernel against the scalar oracle, at every SIMD level: all mixed rows x ops x shapes (own operand first,
// last, in between, absent, all of them; sends, destination, both; in place) x 0 .. 200 elements at changing offsets,
// and buffers of several blocks. The data has NaN, infinities, zeros of both signs, subnormals, midpoints between two
// numbers of the wire type, and values that overflow it. Bytes around every sink must not change.
// labels: unit
// timeout: 300
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "kernels/guarded_buffer.h"
#include "kernels/kernels.h"
#include "kernels/levels.h"
#include "kernels/mixed_oracle.h"
#include "support/shared.h"

namespace rondo {
namespace {

constexpr uint32_t kNone = KernelArgs::kNoOwn;
const float kScale = 0.3f;

// The largest finite number, and the midpoints above which fp16 becomes infinite and fp8 saturates or becomes infinite.
constexpr double kEdges[] = {0.0,    1.0,   65504.0, 65519.0, 65520.0, 65536.0, 448.0,   463.0,
                             464.0,  465.0, 1e9,     57344.0, 61439.0, 61440.0, 61441.0, 3.4e38,
                             0x1p-9, 1e-45, 5e-39,   6e-8,    0x1p-14, 0x1p-10, 0x1p-17, 0x1p-25};

// Bits of an element of t. wire: type of the midpoints.
uint32_t random_element(Dtype t, Dtype wire, std::mt19937_64& random) {
  const auto pick = static_cast<uint32_t>(random() % 8);
  const auto bits = static_cast<uint32_t>(random());
  const float sign = (random() & 1) != 0 ? -1.0f : 1.0f;
  const auto wire_code = static_cast<uint32_t>(random() & (dtype_bytes(wire) == 1 ? 0x7f : 0x7fff));
  const uint32_t mask = dtype_bytes(t) == 4 ? ~0u : dtype_bytes(t) == 2 ? 0xffffu : 0xffu;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  switch (pick) {
    case 0: return bits & mask;  // any bits, with NaN payloads
    case 1: {
      const double special[] = {0.0, kInfinity, std::numeric_limits<double>::quiet_NaN(),
                                kEdges[bits % std::size(kEdges)]};
      return oracle::mixed_narrow(t, sign * static_cast<float>(special[bits / 64 % 4]));
    }
    case 2: {  // midway between two codes of the wire type, or one fp32 step away
      if (wire == Dtype::kFloat32) return oracle::mixed_narrow(t, sign * 1.5f);
      const float a = oracle::mixed_widen(wire, wire_code), b = oracle::mixed_widen(wire, wire_code + 1);
      const auto middle = static_cast<float>((static_cast<double>(a) + b) / 2);
      return oracle::mixed_narrow(t, sign * std::nextafter(middle, bits % 3 == 0 ? 0.0f : bits % 3 == 1 ? b : middle));
    }
    default: {
      const double fraction = static_cast<double>(bits) * 0x1p-32 + 0.1;
      return oracle::mixed_narrow(t,
                                  sign * static_cast<float>(std::ldexp(fraction, static_cast<int>(random() % 8) - 4)));
    }
  }
}

struct MixedShape {
  uint32_t num_src;
  uint32_t own;
  uint32_t num_sends;
  bool has_dst;
  bool result_as_wire;
  bool raw = false;
};
constexpr MixedShape kShapes[] = {
    // copies: sends, receives, forwards
    {1, 0, 1, false, false},
    {1, 0, 3, false, false},
    {1, 0, 0, true, false},
    {1, 0, 0, true, true},
    {1, 0, 1, true, false},
    {1, 0, 2, true, true},
    {1, kNone, 0, true, false},
    {1, kNone, 0, true, true},
    {1, kNone, 1, false, false},
    {1, kNone, 2, true, true},
    {1, kNone, 1, true, false},
    // reductions
    {2, 0, 0, true, false},
    {2, 1, 0, true, false},
    {2, 1, 0, true, true},
    {2, 0, 1, false, false},
    {2, 1, 1, true, true},
    {2, 1, 2, true, false},
    {2, kNone, 1, false, false},
    {2, kNone, 0, true, false},
    {3, 1, 0, true, false},
    {3, 1, 3, true, true},
    {5, kNone, 1, true, true},
    {8, 7, 0, true, false},
    {8, 3, 1, false, false},
    {20, 4, 1, true, true},
    // sources that have not travelled
    {1, 0, 0, true, false, true},
    {1, kNone, 0, true, true, true},
    {2, 0, 0, true, false, true},
    {2, 1, 0, true, true, true},
    {3, 1, 0, true, false, true},
    {3, kNone, 1, true, true, true},
    {3, kNone, 1, false, false, true},
    {8, 7, 0, true, false, true},
};

class MixedCase {
 public:
  MixedCase(const oracle::MixedCall& call, const MixedShape& shape, uint64_t max_elems, uint64_t seed)
      : call_(call), shape_(shape), random_(seed) {
    sources_.resize(shape.num_src);
    for (uint32_t s = 0; s < shape.num_src; ++s) {
      const Dtype t = source_type(s);
      for (uint64_t i = 0; i < max_elems; ++i) append(sources_[s], t, random_element(t, call.wire, random_));
    }
    std::vector<uint32_t> x(shape.num_src);
    for (uint64_t i = 0; i < max_elems; ++i) {
      for (uint32_t s = 0; s < shape.num_src; ++s) x[s] = element(sources_[s].data(), source_type(s), i);
      const oracle::MixedResult result = oracle::mixed(x, call);
      append(expected_sent_, call.wire, result.sent);
      append(expected_dst_, call.dst_type, result.dst);
    }
    buffers_.assign(shape.num_src + num_dst(), GuardedBuffer(4 * max_elems));
  }

  /// True if dst[0] may be the own source.
  bool can_be_in_place() const { return shape_.has_dst && call_.own != kNone && call_.own_type == call_.dst_type; }

  void check(const KernelTable& table, uint64_t num_elems, bool in_place) {
    std::vector<const void*> src;
    std::vector<void*> dst;
    for (uint32_t b = 0; b < shape_.num_src + num_dst(); ++b) {
      const bool is_source = b < shape_.num_src;
      const uint64_t elem_bytes = dtype_bytes(is_source ? source_type(b) : sink_type(b - shape_.num_src));
      buffers_[b].place((7 * b + 3 * num_elems) * elem_bytes % 64, num_elems * elem_bytes);
      if (is_source) std::memcpy(buffers_[b].data(), sources_[b].data(), num_elems * elem_bytes);
      if (is_source) src.push_back(buffers_[b].data());
      else dst.push_back(buffers_[b].data());
    }
    if (in_place) dst[0] = buffers_[call_.own].data();
    MixedKernelArgs m;
    m.args.src = src.data();
    m.args.dst = dst.data();
    m.args.num_src = shape_.num_src;
    m.args.num_dst = num_dst();
    m.args.num_elems = num_elems;
    m.args.own = call_.own;
    m.args.premul = call_.premul;
    m.args.divide_by = call_.divide_by;
    m.op = call_.op;
    m.own_type = call_.own_type;
    m.wire = call_.wire;
    m.dst_type = call_.dst_type;
    m.has_dst = shape_.has_dst;
    m.result_as_wire = call_.result_as_wire;
    m.raw = call_.raw;
    table.mixed(m);
    for (uint32_t d = 0; d < num_dst(); ++d) expect_sink(table, num_elems, d, static_cast<const uint8_t*>(dst[d]));
    for (const GuardedBuffer& buffer : buffers_) ASSERT_TRUE(buffer.guards_intact()) << describe(table, num_elems);
  }

 private:
  uint32_t num_dst() const { return shape_.num_sends + (shape_.has_dst ? 1 : 0); }
  Dtype source_type(uint32_t s) const { return s == call_.own || call_.raw ? call_.own_type : call_.wire; }
  bool is_dst(uint32_t d) const { return d == 0 && shape_.has_dst; }
  Dtype sink_type(uint32_t d) const { return is_dst(d) ? call_.dst_type : call_.wire; }
  static void append(std::vector<uint8_t>& to, Dtype t, uint32_t bits) {
    for (uint32_t b = 0; b < dtype_bytes(t); ++b) to.push_back(static_cast<uint8_t>(bits >> (8 * b)));
  }
  static uint32_t element(const uint8_t* p, Dtype t, uint64_t i) {
    uint32_t bits = 0;
    std::memcpy(&bits, p + i * dtype_bytes(t), dtype_bytes(t));
    return bits;
  }
  void expect_sink(const KernelTable& table, uint64_t num_elems, uint32_t d, const uint8_t* got) {
    const Dtype t = sink_type(d);
    const std::vector<uint8_t>& expected = is_dst(d) ? expected_dst_ : expected_sent_;
    if (std::memcmp(got, expected.data(), num_elems * dtype_bytes(t)) == 0) return;
    for (uint64_t i = 0; i < num_elems; ++i) {
      if (element(got, t, i) == element(expected.data(), t, i)) continue;
      std::string values;
      for (uint32_t s = 0; s < shape_.num_src; ++s)
        values.append(" ").append(hex(element(sources_[s].data(), source_type(s), i)));
      FAIL() << describe(table, num_elems) << " sink " << d << " element " << i << ": got " << hex(element(got, t, i))
             << " expected " << hex(element(expected.data(), t, i)) << " from" << values;
    }
  }
  static std::string hex(uint32_t bits) {
    char text[12];
    snprintf(text, sizeof(text), "%x", bits);
    return text;
  }
  std::string describe(const KernelTable& table, uint64_t num_elems) const {
    return std::string(table.level) + " " + std::string(dtype_name(call_.own_type)) + ">" +
           std::string(dtype_name(call_.wire)) + ">" + std::string(dtype_name(call_.dst_type)) + " " +
           std::string(op_name(call_.op)) + " sources " + std::to_string(shape_.num_src) + " own " +
           std::to_string(static_cast<int32_t>(call_.own)) + " sends " + std::to_string(shape_.num_sends) +
           (shape_.has_dst ? " dst" : "") + (call_.result_as_wire ? " as wire" : "") + (call_.raw ? " raw" : "") + " divide_by " +
           std::to_string(call_.divide_by) + (call_.premul != nullptr ? " scaled" : "") + " elements " +
           std::to_string(num_elems);
  }

  oracle::MixedCall call_;
  MixedShape shape_;
  std::mt19937_64 random_;
  std::vector<std::vector<uint8_t>> sources_;
  std::vector<uint8_t> expected_sent_, expected_dst_;
  std::vector<GuardedBuffer> buffers_;
};

void check_sizes(const oracle::MixedCall& call, const MixedShape& shape, const std::vector<uint64_t>& sizes,
                 uint64_t seed) {
  MixedCase c(call, shape, *std::max_element(sizes.begin(), sizes.end()), seed);
  for (SimdLevel level : kLevels) {
    const KernelTable* table = kernel_table(level);
    if (table == nullptr) continue;
    for (uint64_t num_elems : sizes) {
      ASSERT_NO_FATAL_FAILURE(c.check(*table, num_elems, false));
      if (c.can_be_in_place() && num_elems % 3 == 0) {
        ASSERT_NO_FATAL_FAILURE(c.check(*table, num_elems, true));
      }
    }
  }
}

oracle::MixedCall call_of(const TypeRow& row, Op op, const MixedShape& shape) {
  oracle::MixedCall call{.own_type = row.input, .wire = row.wire, .dst_type = row.output, .op = op};
  call.own = shape.own;
  call.result_as_wire = shape.result_as_wire;
  call.raw = shape.raw;
  if (op == Op::kPremulSum && !shape.raw) call.premul = &kScale;
  return call;
}

std::vector<uint64_t> mixed_sizes() {
  if (testing::kSanitized) return {0, 1, 33, 90};
  std::vector<uint64_t> sizes;
  for (uint64_t n = 0; n <= 80; ++n) sizes.push_back(n);
  for (uint64_t n : {95, 96, 97, 111, 112, 113, 127, 128, 129, 143, 144, 145, 159, 175, 191, 192, 193, 199, 200}) {
    sizes.push_back(n);
  }
  return sizes;
}

class MixedRow : public ::testing::TestWithParam<int> {
 protected:
  // Uniform rows among the 45 are calls that the kernel supports as well.
  TypeRow row() const { return row_at(static_cast<uint8_t>(GetParam()), Dtype::kFloat32); }
};

TEST_P(MixedRow, EqualsTheOracleBitForBit) {
  const std::vector<uint64_t> sizes = mixed_sizes();
  uint64_t seed = static_cast<uint64_t>(GetParam()) * 1000;
  for (int o = 0; o < kNumArithmeticOps; ++o) {
    const Op op = static_cast<Op>(o);
    for (const MixedShape& shape : kShapes) {
      oracle::MixedCall call = call_of(row(), op, shape);
      if (op == Op::kAvg) call.divide_by = std::array<uint32_t, 5>{0, 3, 4, 1000, 0xfffffffb}[seed % 5];
      ASSERT_NO_FATAL_FAILURE(check_sizes(call, shape, sizes, ++seed));
    }
  }
}

TEST_P(MixedRow, EqualsTheOracleOverManyBlocks) {
  std::vector<uint64_t> sizes{1026};
  if (!testing::kSanitized) sizes.insert(sizes.end(), {1023, 1024, 1025, 4096, 5003});
  for (Op op : {Op::kSum, Op::kMin, Op::kAvg}) {
    for (const MixedShape& shape :
         {MixedShape{1, 0, 1, true, false}, MixedShape{3, 1, 1, true, true}, MixedShape{3, 1, 0, true, false, true}}) {
      oracle::MixedCall call = call_of(row(), op, shape);
      if (op == Op::kAvg) call.divide_by = 6;
      ASSERT_NO_FATAL_FAILURE(check_sizes(call, shape, sizes, static_cast<uint64_t>(GetParam()) * 77));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MixedRow, ::testing::Range(1, kNumRows), [](const auto& info) {
  const TypeRow row = row_at(static_cast<uint8_t>(info.param), Dtype::kFloat32);
  return std::string(dtype_name(row.input)) + "_" + std::string(dtype_name(row.wire)) + "_" +
         std::string(dtype_name(row.output));
});

// Every midpoint between two neighbours of a wire type, and the fp32 numbers on both sides.
TEST(MixedCopy, RoundsAtEveryMidpoint) {
  for (Dtype wire : {Dtype::kBfloat16, Dtype::kFloat16, Dtype::kFloat8E4m3, Dtype::kFloat8E5m2}) {
    std::vector<float> own;
    const uint32_t sign_bit = dtype_bytes(wire) == 1 ? 0x80 : 0x8000;
    for (uint32_t code = 0; code + 1 < sign_bit; ++code) {
      const float a = oracle::mixed_widen(wire, code), b = oracle::mixed_widen(wire, code + 1);
      if (std::isnan(b)) break;
      const auto middle = static_cast<float>((static_cast<double>(a) + (std::isinf(b) ? 2.0 * a : b)) / 2);
      for (float x : {a, std::nextafter(middle, 0.0f), middle, std::nextafter(middle, b)}) {
        own.push_back(x);
        own.push_back(-x);
      }
    }
    for (SimdLevel level : kLevels) {
      const KernelTable* table = kernel_table(level);
      if (table == nullptr) continue;
      std::vector<uint8_t> sent(own.size() * dtype_bytes(wire));
      std::vector<float> kept(own.size());
      const void* src[] = {own.data()};
      void* dst[] = {kept.data(), sent.data()};
      MixedKernelArgs m;
      m.args = {.src = src, .dst = dst, .num_src = 1, .num_dst = 2, .num_elems = own.size(), .own = 0};
      m.wire = wire;
      m.has_dst = true;
      table->mixed(m);
      for (size_t i = 0; i < own.size(); ++i) {
        const uint32_t expected = oracle::mixed_narrow(wire, own[i]);
        uint32_t got = 0;
        std::memcpy(&got, sent.data() + i * dtype_bytes(wire), dtype_bytes(wire));
        ASSERT_EQ(got, expected) << table->level << " " << dtype_name(wire) << " of " << own[i];
        ASSERT_EQ(std::bit_cast<uint32_t>(kept[i]), std::bit_cast<uint32_t>(oracle::mixed_widen(wire, expected)));
      }
    }
  }
}

// Every code of a wire type arrives exactly, and NaN becomes the canonical one.
TEST(MixedCopy, WidensEveryCode) {
  for (Dtype wire : {Dtype::kBfloat16, Dtype::kFloat16, Dtype::kFloat8E4m3, Dtype::kFloat8E5m2}) {
    const uint64_t num_codes = dtype_bytes(wire) == 1 ? 256 : 65536;
    std::vector<uint8_t> arrived;
    for (uint64_t code = 0; code < num_codes; ++code) {
      arrived.push_back(static_cast<uint8_t>(code));
      if (dtype_bytes(wire) == 2) arrived.push_back(static_cast<uint8_t>(code >> 8));
    }
    for (SimdLevel level : kLevels) {
      const KernelTable* table = kernel_table(level);
      if (table == nullptr) continue;
      std::vector<uint32_t> kept(num_codes);
      const void* src[] = {arrived.data()};
      void* dst[] = {kept.data()};
      MixedKernelArgs m;
      m.args = {.src = src, .dst = dst, .num_src = 1, .num_dst = 1, .num_elems = num_codes};
      m.wire = wire;
      m.has_dst = true;
      table->mixed(m);
      for (uint32_t code = 0; code < num_codes; ++code) {
        const uint32_t expected = oracle::mixed_narrow(Dtype::kFloat32, oracle::mixed_widen(wire, code));
        ASSERT_EQ(kept[code], expected) << table->level << " " << dtype_name(wire) << " code " << code;
      }
    }
  }
}

}  // namespace
}  // namespace rondo
