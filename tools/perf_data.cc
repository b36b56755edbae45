#include "perf_data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/float_formats.h"

namespace rondo::tools {
namespace {

constexpr int64_t kMaxSum = 4096;     // limit of the numbers in the tables
constexpr int64_t kMaxProduct = 448;  // in eighths
constexpr int64_t kNumSorted = 8192;  // number of values for min and max

uint64_t mix(uint64_t x) {  // finaliser of splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct Format {
  int exponent_bits, mantissa_bits;
  bool only_nan;  // fp8 e4m3: the highest exponent holds numbers; only its last pattern is NaN
};
Format format_of(Dtype dtype) {
  if (dtype == Dtype::kFloat64) return {11, 52, false};
  if (!is_narrow_float(dtype)) return {8, 23, false};
  const FloatFormat f = float_format(dtype);
  return {static_cast<int>(8 * dtype_bytes(dtype)) - 1 - f.mantissa_bits, f.mantissa_bits, !f.has_infinity()};
}
uint64_t low_bits(uint64_t x, uint32_t bytes) { return bytes == 8 ? x : x & ((uint64_t{1} << (8 * bytes)) - 1); }

/// True if the bits are a finite number other than -0.
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

double decode_float(Dtype dtype, uint64_t bits) {
  const auto [exponent_bits, mantissa_bits, only_nan] = format_of(dtype);
  const int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
  const uint64_t mantissa = bits & ((uint64_t{1} << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits) & top;
  const double sign = bits >> (mantissa_bits + exponent_bits) & 1 ? -1.0 : 1.0;
  if (only_nan && exponent == top && mantissa == (uint64_t{1} << mantissa_bits) - 1) return std::nan("");
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
  // Units of 2^(exponent - mantissa_bits). A carry moves into the exponent by the addition.
  return sign | (static_cast<uint64_t>(units) + (static_cast<uint64_t>(exponent + bias - 1) << mantissa_bits));
}

namespace {

double rounded_to(Dtype dtype, double value) { return decode_float(dtype, encode_float(dtype, value)); }

/// An input that rounds to `value` on the wire: moved by -1, 0 or 1 eighths of its last place (a quarter of the last
/// place below a power of two).
double near_number(const TypeRow& types, int64_t number, double value) {
  const int spare_bits = format_of(types.input).mantissa_bits - format_of(types.wire).mantissa_bits;
  if (value == 0 || spare_bits < 3) return value;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double eighth = std::ldexp(1.0, exponent - 4 - format_of(types.wire).mantissa_bits);
  return value + static_cast<double>((number % 3 + 3) % 3 - 1) * eighth;
}

}  // namespace

PerfData::PerfData(const DataSpec& spec)
    : spec_(spec),
      in_bytes_(dtype_bytes(spec.types.input)),
      out_bytes_(dtype_bytes(spec.types.output)),
      mixed_(spec.types != uniform_row(spec.types.input)),
      inputs_(static_cast<size_t>(spec.nranks)),
      delivered_(static_cast<size_t>(spec.nranks)) {
  const Op op = spec.op;
  const bool wraps = !is_float(spec.types.input) && op != Op::kMin && op != Op::kMax && op != Op::kAvg;
  raw_ = !mixed_ && (!spec.traits.reduces || wraps);
  if (raw_) return;
  if (!mixed_ && (op == Op::kMin || op == Op::kMax)) build_sorted_tables();
  else build_tables();
}

void PerfData::build_sorted_tables() {
  const Dtype dtype = spec_.types.input;
  for (uint64_t i = 0; std::ssize(input_table_) < kNumSorted; ++i) {
    const uint64_t bits = low_bits(mix(spec_.seed + i), in_bytes_);
    if (usable(dtype, bits)) input_table_.push_back(bits);
  }
  std::sort(input_table_.begin(), input_table_.end(), [=](uint64_t a, uint64_t b) { return less(dtype, a, b); });
  result_table_ = input_table_;
}

/// Converts a result in the accumulator type to bits of the output type.
uint64_t PerfData::result_of(double value) const {
  const TypeRow& t = spec_.types;
  const bool one_owner =
      spec_.traits.reduces && (spec_.traits.out_holders == Holders::kRoot || spec_.traits.in_parts == Parts::kEach);
  return encode_float(t.output, one_owner ? value : rounded_to(t.wire, value));
}

void PerfData::build_tables() {
  const TypeRow& t = spec_.types;
  const bool floats = is_float(t.input), averages = spec_.traits.reduces && spec_.op == Op::kAvg;
  const auto precision = [&](Dtype d) { return floats ? int64_t{2} << std::min(format_of(d).mantissa_bits, 20) : 100; };
  const int64_t largest = std::min(precision(t.wire), kMaxSum), scale = spec_.op == Op::kPremulSum ? 2 : 1;
  const bool adds = spec_.traits.reduces && spec_.op != Op::kMin && spec_.op != Op::kMax;
  givers_ = adds ? std::min<int64_t>(spec_.nranks, largest / scale) : spec_.nranks;
  budget_ = std::min(precision(t.input), adds ? std::max<int64_t>(1, largest / scale / spec_.nranks) : largest);
  const bool multiplies = spec_.traits.reduces && spec_.op == Op::kProd;  // halves: numbers are eighths
  table_offset_ = multiplies ? kMaxProduct : largest;
  for (int64_t number = -table_offset_; number <= table_offset_; ++number) {
    const double value = static_cast<double>(number) / (multiplies ? 8 : 1);
    if (!floats) {
      input_table_.push_back(low_bits(static_cast<uint64_t>(number), in_bytes_));
      result_table_.push_back(low_bits(static_cast<uint64_t>(averages ? number / spec_.nranks : number), out_bytes_));
      continue;
    }
    double result = value;
    if (averages && t.accumulator == Dtype::kFloat64) result = value / spec_.nranks;
    else if (averages) result = static_cast<float>(value) / static_cast<float>(spec_.nranks);
    input_table_.push_back(encode_float(t.input, near_number(t, number, value)));
    result_table_.push_back(result_of(result));
  }
}

int64_t PerfData::contribution(uint64_t elem, Rank rank) const {
  const uint64_t at_elem = mix(spec_.seed * 0x9e3779b97f4a7c15u + elem + 1);
  const uint64_t hash = mix(at_elem + static_cast<uint64_t>(rank + 1) * 0x9e3779b97f4a7c15u);
  if (raw_) {
    // Of `and` and `or` one rank decides. Otherwise those of many ranks would be 0 and 1, and a missing rank would not
    // show.
    const bool decides = at_elem % static_cast<uint64_t>(spec_.nranks) == static_cast<uint64_t>(rank);
    if (spec_.op == Op::kBitAnd && !decides) return -1;
    if (spec_.op == Op::kBitOr && !decides) return 0;
    return static_cast<int64_t>(spec_.op == Op::kProd ? hash | 1 : hash);
  }
  if (!mixed_ && (spec_.op == Op::kMin || spec_.op == Op::kMax)) return static_cast<int64_t>(hash % kNumSorted);
  const int64_t n = spec_.nranks, place = (rank + static_cast<int64_t>(at_elem >> 1) % n) % n;
  const int64_t sign = is_signed(spec_.types.input) && (hash & 1) != 0 ? -1 : 1;
  if (spec_.traits.reduces && spec_.op == Op::kProd) {  // in eighths; the product is between 1/8 and 56
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
      case Op::kBitAnd: result &= x; break;
      case Op::kBitOr: result |= x; break;
      case Op::kBitXor: result ^= x; break;
      default: {
        const uint64_t scale = spec_.op == Op::kPremulSum && r % 2 == 1 ? 2 : 1;
        result = static_cast<int64_t>(static_cast<uint64_t>(result) + scale * static_cast<uint64_t>(x));
      }
    }
  }
  return result;
}

uint64_t PerfData::input_bits(int64_t contribution) const {
  return raw_ ? low_bits(static_cast<uint64_t>(contribution), in_bytes_)
              : input_table_[static_cast<size_t>(contribution + table_offset_)];
}
uint64_t PerfData::result_bits(int64_t result) const {
  return raw_ ? low_bits(static_cast<uint64_t>(result), out_bytes_)
              : result_table_[static_cast<size_t>(result + table_offset_)];
}

PerfData::Words PerfData::pattern_of(const std::vector<uint64_t>& bits, uint32_t elem_bytes) const {
  Words words(kPeriodElems * elem_bytes);
  for (uint64_t e = 0; e < kPeriodElems; ++e)  // little-endian, like every supported machine
    std::memcpy(words.data() + e * elem_bytes, &bits[e], elem_bytes);
  return words;
}
static_assert(std::endian::native == std::endian::little);

const PerfData::Words& PerfData::input_pattern(Rank rank) {
  Words& words = inputs_[static_cast<size_t>(rank)];
  if (words.empty()) {
    std::vector<uint64_t> bits(kPeriodElems);
    for (uint64_t e = 0; e < kPeriodElems; ++e) bits[e] = input_bits(contribution(e, rank));
    words = pattern_of(bits, in_bytes_);
  }
  return words;
}

const PerfData::Words& PerfData::delivered_pattern(Rank from) {
  if (!mixed_) return input_pattern(from);
  Words& words = delivered_[static_cast<size_t>(from)];
  if (words.empty()) {
    std::vector<uint64_t> bits(kPeriodElems);
    for (uint64_t e = 0; e < kPeriodElems; ++e) bits[e] = result_bits(contribution(e, from));
    words = pattern_of(bits, out_bytes_);
  }
  return words;
}

const PerfData::Words& PerfData::result_pattern() {
  if (result_.empty()) {
    std::vector<uint64_t> bits(kPeriodElems);
    for (uint64_t e = 0; e < kPeriodElems; ++e) bits[e] = result_bits(reduced(e));
    result_ = pattern_of(bits, out_bytes_);
  }
  return result_;
}

void PerfData::fill(Rank rank, uint64_t num_elems, void* input) {
  const Words& pattern = input_pattern(rank);
  auto* to = static_cast<uint8_t*>(input);
  for (uint64_t e = 0; e < num_elems; e += kPeriodElems)
    std::memcpy(to + e * in_bytes_, pattern.data(), std::min(kPeriodElems, num_elems - e) * in_bytes_);
}

uint64_t PerfData::count_different(const Words& pattern, uint64_t first_elem, uint64_t num_elems,
                                   const void* data) const {
  uint64_t different = 0;
  const auto* have = static_cast<const uint8_t*>(data);
  for (uint64_t done = 0; done < num_elems;) {
    const uint64_t at = (first_elem + done) % kPeriodElems, run = std::min(kPeriodElems - at, num_elems - done);
    const uint8_t* want = pattern.data() + at * out_bytes_;
    const uint8_t* got = have + done * out_bytes_;
    if (std::memcmp(want, got, run * out_bytes_) != 0)
      for (uint64_t e = 0; e < run; ++e)
        different += std::memcmp(want + e * out_bytes_, got + e * out_bytes_, out_bytes_) != 0;
    done += run;
  }
  return different;
}

uint64_t PerfData::count_wrong_reduced(uint64_t first_elem, uint64_t num_elems, const void* output) {
  return num_elems == 0 ? 0 : count_different(result_pattern(), first_elem, num_elems, output);
}

uint64_t PerfData::count_wrong_delivered(Rank from, uint64_t first_elem, uint64_t num_elems, const void* output) {
  return num_elems == 0 ? 0 : count_different(delivered_pattern(from), first_elem, num_elems, output);
}

uint64_t PerfData::premul(Rank rank) const {
  const Dtype accumulator = spec_.types.accumulator;
  const uint64_t scale = rank % 2 == 1 ? 2 : 1;
  return is_float(accumulator) ? encode_float(accumulator, static_cast<double>(scale)) : scale;
}

}  // namespace rondo::tools
