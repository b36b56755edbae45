#include "perf_data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace rondo::tools {
namespace {

constexpr int64_t kMaxSum = 4096;     // of the numbers that tables turn into bits
constexpr int64_t kNumSorted = 8192;  // values that min and max choose from

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct FloatFormat {
  int exponent_bits, mantissa_bits;
  bool only_nan;  // fp8 e4m3: the highest exponent holds numbers, only its last pattern is NaN
};
FloatFormat format_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16: return {5, 10, false};
    case Dtype::kBfloat16: return {8, 7, false};
    case Dtype::kFloat8E4m3: return {4, 3, true};
    case Dtype::kFloat8E5m2: return {5, 2, false};
    case Dtype::kFloat64: return {11, 52, false};
    default: return {8, 23, false};
  }
}
bool is_signed(Dtype dtype) {
  return is_float(dtype) || dtype == Dtype::kInt8 || dtype == Dtype::kInt32 || dtype == Dtype::kInt64;
}
uint64_t low_bits(uint64_t x, uint32_t bytes) { return bytes == 8 ? x : x & ((uint64_t{1} << (8 * bytes)) - 1); }

/// Whether the bits are a finite number other than -0.
bool usable(Dtype dtype, uint64_t bits) {
  if (!is_float(dtype)) return true;
  return std::isfinite(decode_float(dtype, bits)) && bits != uint64_t{1} << (8 * dtype_bytes(dtype) - 1);
}
bool less(Dtype dtype, uint64_t a, uint64_t b) {
  if (is_float(dtype)) return decode_float(dtype, a) < decode_float(dtype, b);
  if (!is_signed(dtype)) return a < b;
  const int shift = 64 - 8 * static_cast<int>(dtype_bytes(dtype));
  return static_cast<int64_t>(a << shift) < static_cast<int64_t>(b << shift);
}

}  // namespace

bool is_float(Dtype dtype) {
  return dtype == Dtype::kFloat16 || dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64 ||
         dtype == Dtype::kBfloat16 || dtype == Dtype::kFloat8E4m3 || dtype == Dtype::kFloat8E5m2;
}

double decode_float(Dtype dtype, uint64_t bits) {
  const auto [exponent_bits, mantissa_bits, only_nan] = format_of(dtype);
  const int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
  const uint64_t mantissa = bits & ((uint64_t{1} << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits) & top;
  const double sign = bits >> (mantissa_bits + exponent_bits) & 1 ? -1.0 : 1.0;
  if (only_nan && exponent == top && mantissa == 7) return std::nan("");
  if (!only_nan && exponent == top) return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
  const double whole = static_cast<double>(mantissa | (exponent != 0 ? uint64_t{1} << mantissa_bits : 0));
  return sign * std::ldexp(whole, std::max(exponent, 1) - bias - mantissa_bits);
}

uint64_t encode_float(Dtype dtype, double value) {
  const auto [exponent_bits, mantissa_bits, only_nan] = format_of(dtype);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint64_t sign = std::signbit(value) ? uint64_t{1} << (mantissa_bits + exponent_bits) : 0;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = f * 2^exponent, f in [1/2, 1)
  exponent = std::max(exponent - 1, 1 - bias);
  const double units = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));  // ties to even
  // Units of 2^(exponent - mantissa_bits): a carry into the next exponent comes out right by adding.
  return sign | (static_cast<uint64_t>(units) + (static_cast<uint64_t>(exponent + bias - 1) << mantissa_bits));
}

PerfData::PerfData(const DataSpec& spec)
    : spec_(spec), elem_bytes_(dtype_bytes(spec.dtype)), inputs_(static_cast<size_t>(spec.nranks)) {
  const Op op = spec.op;
  raw_ = !collective_reduces(spec.collective) ||
         (!is_float(spec.dtype) && (op == Op::kSum || op == Op::kProd || op == Op::kPremulSum));
  if (!raw_) build_tables();
}

void PerfData::build_tables() {
  const Dtype dtype = spec_.dtype;
  if (spec_.op == Op::kMin || spec_.op == Op::kMax) {
    for (uint64_t i = 0; std::ssize(input_table_) < kNumSorted; ++i) {
      const uint64_t bits = low_bits(mix(spec_.seed + i), elem_bytes_);
      if (usable(dtype, bits)) input_table_.push_back(bits);
    }
    std::sort(input_table_.begin(), input_table_.end(), [=](uint64_t a, uint64_t b) { return less(dtype, a, b); });
    result_table_ = input_table_;
    return;
  }
  const int64_t precision = is_float(dtype) ? int64_t{2} << std::min(format_of(dtype).mantissa_bits, 20) : 100;
  const int64_t largest = std::min(precision, kMaxSum), scale = spec_.op == Op::kPremulSum ? 2 : 1;
  budget_ = std::max<int64_t>(1, largest / scale / spec_.nranks);
  givers_ = std::min<int64_t>(spec_.nranks, largest / scale);
  table_offset_ = kMaxSum;
  for (int64_t number = -kMaxSum; number <= kMaxSum; ++number) {
    double value = static_cast<double>(number);
    if (spec_.op == Op::kProd) value /= 8;  // products of halves
    uint64_t input = is_float(dtype) ? encode_float(dtype, value) : static_cast<uint64_t>(number), result = input;
    if (spec_.op == Op::kAvg && !is_float(dtype)) result = static_cast<uint64_t>(number / spec_.nranks);
    if (spec_.op == Op::kAvg && dtype == Dtype::kFloat64) result = encode_float(dtype, value / spec_.nranks);
    if (spec_.op == Op::kAvg && is_float(dtype) && dtype != Dtype::kFloat64)
      result = encode_float(dtype, static_cast<float>(value) / static_cast<float>(spec_.nranks));
    input_table_.push_back(low_bits(input, elem_bytes_));
    result_table_.push_back(low_bits(result, elem_bytes_));
  }
}

int64_t PerfData::contribution(uint64_t elem, Rank rank) const {
  const uint64_t at_elem = mix(spec_.seed * 0x9e3779b97f4a7c15u + elem + 1);
  const uint64_t hash = mix(at_elem + static_cast<uint64_t>(rank + 1) * 0x9e3779b97f4a7c15u);
  if (raw_) return static_cast<int64_t>(spec_.op == Op::kProd ? hash | 1 : hash);
  if (spec_.op == Op::kMin || spec_.op == Op::kMax) return static_cast<int64_t>(hash % kNumSorted);
  const int64_t n = spec_.nranks, place = (rank + static_cast<int64_t>(at_elem >> 1) % n) % n;
  const int64_t sign = is_signed(spec_.dtype) && (hash & 1) != 0 ? -1 : 1;
  if (spec_.op == Op::kProd) {  // in eighths; an element's product lies between 1/8 and 56
    if (place == 0) return sign * 8 * (1 + static_cast<int64_t>((hash >> 8) % 7));
    return sign * (place <= 3 ? int64_t{4} << (hash >> 8) % 3 : 8);
  }
  if (place >= givers_) return 0;
  return sign * (1 + static_cast<int64_t>((hash >> 8) % static_cast<uint64_t>(budget_)));
}

int64_t PerfData::reduced(uint64_t elem) const {
  int64_t result = contribution(elem, 0);
  if (!raw_ && spec_.op == Op::kProd) {
    double product = 8;
    for (Rank r = 0; r < spec_.nranks; ++r) product *= static_cast<double>(contribution(elem, r)) / 8;
    return static_cast<int64_t>(product);
  }
  for (Rank r = 1; r < spec_.nranks; ++r) {
    const int64_t x = contribution(elem, r);
    switch (spec_.op) {
      case Op::kMin: result = std::min(result, x); break;
      case Op::kMax: result = std::max(result, x); break;
      case Op::kProd: result = static_cast<int64_t>(static_cast<uint64_t>(result) * static_cast<uint64_t>(x)); break;
      default: {
        const uint64_t scale = spec_.op == Op::kPremulSum && r % 2 == 1 ? 2 : 1;
        result = static_cast<int64_t>(static_cast<uint64_t>(result) + scale * static_cast<uint64_t>(x));
      }
    }
  }
  return result;
}

uint64_t PerfData::input_bits(int64_t contribution) const {
  return raw_ ? low_bits(static_cast<uint64_t>(contribution), elem_bytes_)
              : input_table_[static_cast<size_t>(contribution + table_offset_)];
}
uint64_t PerfData::result_bits(int64_t reduced) const {
  return raw_ ? low_bits(static_cast<uint64_t>(reduced), elem_bytes_)
              : result_table_[static_cast<size_t>(reduced + table_offset_)];
}

PerfData::Words PerfData::pattern_of(const std::vector<uint64_t>& bits) const {
  Words words(kPeriodElems * elem_bytes_);
  for (uint64_t e = 0; e < kPeriodElems; ++e)  // little-endian, as all machines that rondo runs on
    std::memcpy(words.data() + e * elem_bytes_, &bits[e], elem_bytes_);
  return words;
}
static_assert(std::endian::native == std::endian::little);

const PerfData::Words& PerfData::input_pattern(Rank rank) {
  Words& words = inputs_[static_cast<size_t>(rank)];
  if (words.empty()) {
    std::vector<uint64_t> bits(kPeriodElems);
    for (uint64_t e = 0; e < kPeriodElems; ++e) bits[e] = input_bits(contribution(e, rank));
    words = pattern_of(bits);
  }
  return words;
}

const PerfData::Words& PerfData::result_pattern() {
  if (result_.empty()) {
    std::vector<uint64_t> bits(kPeriodElems);
    for (uint64_t e = 0; e < kPeriodElems; ++e) bits[e] = result_bits(reduced(e));
    result_ = pattern_of(bits);
  }
  return result_;
}

void PerfData::fill(Rank rank, uint64_t num_elems, void* input) {
  const Words& pattern = input_pattern(rank);
  auto* to = static_cast<uint8_t*>(input);
  for (uint64_t e = 0; e < num_elems; e += kPeriodElems)
    std::memcpy(to + e * elem_bytes_, pattern.data(), std::min(kPeriodElems, num_elems - e) * elem_bytes_);
}

uint64_t PerfData::count_different(const Words& pattern, uint64_t first_elem, uint64_t num_elems,
                                   const void* data) const {
  uint64_t different = 0;
  const auto* have = static_cast<const uint8_t*>(data);
  for (uint64_t done = 0; done < num_elems;) {
    const uint64_t at = (first_elem + done) % kPeriodElems, run = std::min(kPeriodElems - at, num_elems - done);
    const uint8_t* want = pattern.data() + at * elem_bytes_;
    const uint8_t* got = have + done * elem_bytes_;
    if (std::memcmp(want, got, run * elem_bytes_) != 0)
      for (uint64_t e = 0; e < run; ++e)
        different += std::memcmp(want + e * elem_bytes_, got + e * elem_bytes_, elem_bytes_) != 0;
    done += run;
  }
  return different;
}

uint64_t PerfData::count_wrong_reduced(uint64_t first_elem, uint64_t num_elems, const void* output) {
  return num_elems == 0 ? 0 : count_different(result_pattern(), first_elem, num_elems, output);
}

uint64_t PerfData::count_wrong_gathered(uint64_t shard_elems, const void* output) {
  uint64_t wrong = 0;
  for (Rank r = 0; r < spec_.nranks && shard_elems > 0; ++r)
    wrong +=
        count_different(input_pattern(r), 0, shard_elems,
                        static_cast<const uint8_t*>(output) + static_cast<uint64_t>(r) * shard_elems * elem_bytes_);
  return wrong;
}

uint64_t PerfData::premul(Rank rank) const {
  const Dtype accumulator = accumulator_of(spec_.dtype);
  const uint64_t scale = rank % 2 == 1 ? 2 : 1;
  return is_float(accumulator) ? encode_float(accumulator, static_cast<double>(scale)) : scale;
}

}  // namespace rondo::tools
