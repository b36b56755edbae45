// Generators: hash of (seed, position, rank) to bits. Oracle: 64-bit integers and doubles, one element at a time.
#include "support/exact_data.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "support/float_spec.h"

namespace rondo::testing {
namespace {

// splitmix64's finaliser.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
uint64_t hash(uint64_t seed, uint64_t position, uint64_t rank) {
  return mix(mix(seed * 0x2545f4914f6cdd1du + position) + rank * 0xd6e8feb86659fd93u);
}
uint64_t hash_all_ranks(uint64_t seed, uint64_t position) { return mix(mix(seed ^ 0xabcdef) + position); }

uint64_t load_bits(Dtype t, const void* element) {
  uint64_t bits = 0;
  std::memcpy(&bits, element, dtype_bytes(t));  // little-endian
  return bits;
}
void store_bits(Dtype t, uint64_t bits, void* element) { std::memcpy(element, &bits, dtype_bytes(t)); }

// Sign- or zero-extends the low bits of an integer dtype.
uint64_t extend(Dtype t, uint64_t bits) {
  const int unused = 64 - 8 * static_cast<int>(dtype_bytes(t));
  if (is_signed(t)) return static_cast<uint64_t>(static_cast<int64_t>(bits << unused) >> unused);
  return bits << unused >> unused;
}

// This rank's share of a common budget at this position. Ranks take turns if there are more ranks than units.
int64_t share(int64_t budget, int nranks, Rank rank, uint64_t position_hash) {
  if (nranks <= budget) return budget / nranks;
  const auto turn = (static_cast<uint64_t>(rank) + position_hash) % static_cast<uint64_t>(nranks);
  return turn < static_cast<uint64_t>(budget) ? 1 : 0;
}
int64_t in_range(uint64_t h, int64_t max_abs) {
  return static_cast<int64_t>(h % static_cast<uint64_t>(2 * max_abs + 1)) - max_abs;
}

double sum_input(const DataSpec& spec, Rank rank, uint64_t position) {
  const oracle::FloatSpec f = oracle::float_spec(spec.dtype);
  const uint64_t common = hash_all_ranks(spec.seed, position);
  int64_t budget = int64_t{1} << (f.mantissa_bits + 1);
  if (spec.op == Op::kPremulSum) budget /= 2;
  const int64_t max_abs = share(budget, spec.nranks, rank, common >> 8);
  const int range = std::min(20, f.max_exponent() - f.mantissa_bits - 2);
  const int lowest = std::max(-range, f.min_exponent());
  const int exponent = lowest + static_cast<int>(common % static_cast<uint64_t>(range - lowest + 1));
  return std::ldexp(static_cast<double>(in_range(hash(spec.seed, position, static_cast<uint64_t>(rank)), max_abs)),
                    exponent);
}

double prod_input(const DataSpec& spec, Rank rank, uint64_t position) {
  const oracle::FloatSpec f = oracle::float_spec(spec.dtype);
  const uint64_t common = hash_all_ranks(spec.seed, position);
  const uint64_t h = hash(spec.seed, position, static_cast<uint64_t>(rank));
  const int64_t budget = std::min(-f.min_exponent(), f.max_exponent()) - 1;
  const auto exponent = static_cast<int>(in_range(h >> 1, share(budget, spec.nranks, rank, common >> 8)));
  const double mantissa = (common >> 3) % static_cast<uint64_t>(spec.nranks) == static_cast<uint64_t>(rank) ? 1.25 : 1;
  return std::ldexp((h & 1) != 0 ? -mantissa : mantissa, exponent);
}

// Any finite bits; sometimes a zero of either sign.
uint64_t order_input_bits(const DataSpec& spec, Rank rank, uint64_t position) {
  const uint64_t h = hash(spec.seed, position, static_cast<uint64_t>(rank));
  const uint64_t sign = uint64_t{1} << (8 * dtype_bytes(spec.dtype) - 1);
  if (hash_all_ranks(spec.seed, position) % 8 == 0) return (h & 1) != 0 ? sign : 0;
  const oracle::FloatSpec f = oracle::float_spec(spec.dtype);
  const uint64_t exponent_mask = ((uint64_t{1} << f.exponent_bits) - 1) << f.mantissa_bits;
  const uint64_t lowest_exponent_bit = uint64_t{1} << f.mantissa_bits;
  const bool special = (h & exponent_mask) == exponent_mask;
  return special ? h & ~lowest_exponent_bit : h;
}

uint64_t input_bits(const DataSpec& spec, Rank rank, uint64_t position) {
  if (!is_float(spec.dtype)) {
    const uint64_t h = hash(spec.seed, position, static_cast<uint64_t>(rank));
    if (spec.op == Op::kProd) return extend(spec.dtype, h | 1);
    // One rank decides. Otherwise `and` of many ranks would be 0, and a missing rank would not show.
    const bool decides =
        hash_all_ranks(spec.seed, position) % static_cast<uint64_t>(spec.nranks) == static_cast<uint64_t>(rank);
    if (spec.op == Op::kBitAnd && !decides) return extend(spec.dtype, ~uint64_t{0});
    if (spec.op == Op::kBitOr && !decides) return 0;
    return extend(spec.dtype, h);
  }
  if (spec.op == Op::kMin || spec.op == Op::kMax) return order_input_bits(spec, rank, position);
  uint64_t bits = 0;
  encode_float(spec.dtype, spec.op == Op::kProd ? prod_input(spec, rank, position) : sum_input(spec, rank, position),
               &bits);
  return bits;
}

uint64_t combine_integers(const DataSpec& spec, uint64_t a, uint64_t b) {
  const bool b_less = is_signed(spec.dtype) ? static_cast<int64_t>(b) < static_cast<int64_t>(a) : b < a;
  switch (spec.op) {
    case Op::kProd: return a * b;
    case Op::kMin: return b_less ? b : a;
    case Op::kMax: return b_less ? a : b;
    case Op::kBitAnd: return a & b;
    case Op::kBitOr: return a | b;
    case Op::kBitXor: return a ^ b;
    default: return a + b;
  }
}

uint64_t expected_integer(const DataSpec& spec, uint64_t position) {
  uint64_t result = 0;
  for (Rank r = 0; r < spec.nranks; ++r) {
    uint64_t x = input_bits(spec, r, position);
    if (spec.op == Op::kPremulSum) x *= extend(spec.dtype, premul_scale(spec, r));
    result = r == 0 ? x : combine_integers(spec, result, x);
  }
  result = extend(spec.dtype, result);
  if (spec.op != Op::kAvg) return result;
  const auto n = static_cast<uint64_t>(spec.nranks);
  return is_signed(spec.dtype) ? static_cast<uint64_t>(static_cast<int64_t>(result) / static_cast<int64_t>(n))
                               : result / n;
}

// IEEE 754-2019 minimum: -0 < +0.
bool float_less(double a, double b) { return a < b || (a == b && std::signbit(a) && !std::signbit(b)); }

double combine_floats(const DataSpec& spec, double a, double b) {
  switch (spec.op) {
    case Op::kProd: return a * b;
    case Op::kMin: return float_less(b, a) ? b : a;
    case Op::kMax: return float_less(a, b) ? b : a;
    default: return a + b;
  }
}

double decode_scale(Dtype accumulator, uint64_t bits) { return decode_float(accumulator, &bits); }

uint64_t expected_float(const DataSpec& spec, uint64_t position) {
  double result = 0;
  for (Rank r = 0; r < spec.nranks; ++r) {
    const uint64_t bits = input_bits(spec, r, position);
    double x = decode_float(spec.dtype, &bits);
    if (spec.op == Op::kPremulSum) x *= decode_scale(accumulator_of(spec.dtype), premul_scale(spec, r));
    result = r == 0 ? x : combine_floats(spec, result, x);
  }
  if (spec.op == Op::kAvg) {
    result /= spec.nranks;
    if (accumulator_of(spec.dtype) == Dtype::kFloat32) result = static_cast<float>(result);
  }
  uint64_t bits = 0;
  encode_float(spec.dtype, result, &bits);
  return bits;
}

// Writes element(position) for a range of positions. Computes each position modulo the period once.
template <class Element>
void fill_periodic(Dtype dtype, uint64_t first_elem, uint64_t num_elems, void* to, Element element) {
  const uint64_t bytes = dtype_bytes(dtype);
  auto* p = static_cast<uint8_t*>(to);
  const uint64_t computed = std::min(num_elems, kPeriodElems);
  for (uint64_t i = 0; i < computed; ++i) store_bits(dtype, element((first_elem + i) % kPeriodElems), p + i * bytes);
  for (uint64_t i = computed; i < num_elems; i += kPeriodElems)
    std::memcpy(p + i * bytes, p, std::min(kPeriodElems, num_elems - i) * bytes);
}

double rounding_input(Dtype dtype, uint64_t seed, Rank rank, uint64_t position) {
  const uint64_t h = hash(seed ^ 0x5bd1e995, position, static_cast<uint64_t>(rank));
  const int range = dtype_bytes(dtype) == 1 ? 2 : dtype_bytes(dtype) == 2 ? 6 : 12;
  const double mantissa = 1.0 + static_cast<double>(h >> 12) * 0x1p-52;
  const int exponent = static_cast<int>(h % static_cast<uint64_t>(2 * range)) - range;
  return std::ldexp((h & 2048) != 0 ? -mantissa : mantissa, exponent);
}
uint64_t rounding_bits(Dtype dtype, uint64_t seed, Rank rank, uint64_t position) {
  uint64_t bits = 0;
  encode_float(dtype, rounding_input(dtype, seed, rank, position), &bits);
  return bits;
}

template <class Accumulator>
double add_in_rank_order(Dtype dtype, uint64_t seed, int nranks, uint64_t position) {
  Accumulator sum = 0;
  for (Rank r = 0; r < nranks; ++r) {
    const uint64_t bits = rounding_bits(dtype, seed, r, position);
    const auto x = static_cast<Accumulator>(decode_float(dtype, &bits));
    sum = r == 0 ? x : sum + x;
  }
  return static_cast<double>(sum);
}

}  // namespace

double decode_float(Dtype dtype, const void* element) {
  if (dtype == Dtype::kFloat64) {
    double x;
    std::memcpy(&x, element, sizeof(x));
    return x;
  }
  const oracle::FloatSpec f = oracle::float_spec(dtype);
  const uint64_t bits = load_bits(dtype, element);
  const uint64_t mantissa = bits & ((uint64_t{1} << f.mantissa_bits) - 1);
  const auto biased = static_cast<int>(bits >> f.mantissa_bits & ((uint64_t{1} << f.exponent_bits) - 1));
  const bool negative = (bits >> (f.mantissa_bits + f.exponent_bits)) != 0;
  const bool top = biased == (1 << f.exponent_bits) - 1;
  double x;
  if (top && f.has_infinity) {
    x = mantissa == 0 ? INFINITY : NAN;
  } else if (top && mantissa == (uint64_t{1} << f.mantissa_bits) - 1) {
    x = NAN;  // e4m3: only all ones
  } else {
    const double significand = static_cast<double>(mantissa + (biased == 0 ? 0 : uint64_t{1} << f.mantissa_bits));
    x = std::ldexp(significand, std::max(biased, 1) - f.bias() - f.mantissa_bits);
  }
  return negative ? -x : x;
}

void encode_float(Dtype dtype, double x, void* element) {
  if (dtype == Dtype::kFloat64) {
    std::memcpy(element, &x, sizeof(x));
    return;
  }
  const oracle::FloatSpec f = oracle::float_spec(dtype);
  const uint64_t sign = std::signbit(x) ? uint64_t{1} << (f.exponent_bits + f.mantissa_bits) : 0;
  const uint64_t top = ((uint64_t{1} << f.exponent_bits) - 1) << f.mantissa_bits;
  const double magnitude = std::fabs(x);
  uint64_t bits = 0;
  if (std::isnan(x)) {
    bits = f.has_infinity ? top | uint64_t{1} << (f.mantissa_bits - 1) : top | ((uint64_t{1} << f.mantissa_bits) - 1);
  } else if (std::isinf(x)) {
    bits = top;
  } else if (magnitude != 0) {
    int exponent = std::max(std::ilogb(magnitude), f.min_exponent());
    double significand = std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent));
    const double one = std::ldexp(1, f.mantissa_bits);
    if (significand == 2 * one) {
      significand = one;
      ++exponent;
    }
    if (exponent > f.max_exponent()) {
      std::fprintf(stderr, "encode_float: %g does not fit into %s\n", x, dtype_name(dtype).data());
      std::abort();
    }
    const auto whole = static_cast<uint64_t>(significand);
    bits = significand < one
               ? whole
               : (static_cast<uint64_t>(exponent + f.bias()) << f.mantissa_bits) + (whole - static_cast<uint64_t>(one));
  }
  store_bits(dtype, bits | sign, element);
}

uint64_t premul_scale(const DataSpec& spec, Rank rank) {
  const uint64_t h = hash(spec.seed, 7, static_cast<uint64_t>(rank));
  const Dtype accumulator = accumulator_of(spec.dtype);
  uint64_t bits = 0;
  if (!is_float(spec.dtype)) {
    store_bits(accumulator, h % 200 + 1, &bits);
  } else {
    constexpr double kScales[] = {1, -1, 2, -2};
    encode_float(accumulator, kScales[h % 4], &bits);
  }
  return bits;
}

void fill_exact(const DataSpec& spec, Rank rank, uint64_t first_elem, uint64_t num_elems, void* to) {
  fill_periodic(spec.dtype, first_elem, num_elems, to, [&](uint64_t p) { return input_bits(spec, rank, p); });
}

void expect_exact(const DataSpec& spec, uint64_t first_elem, uint64_t num_elems, void* to) {
  fill_periodic(spec.dtype, first_elem, num_elems, to,
                [&](uint64_t p) { return is_float(spec.dtype) ? expected_float(spec, p) : expected_integer(spec, p); });
}

void fill_rounding(Dtype dtype, uint64_t seed, Rank rank, uint64_t first_elem, uint64_t num_elems, void* to) {
  fill_periodic(dtype, first_elem, num_elems, to, [&](uint64_t p) { return rounding_bits(dtype, seed, rank, p); });
}

void expect_rank_order(Dtype dtype, uint64_t seed, int nranks, uint64_t first_elem, uint64_t num_elems, void* to) {
  fill_periodic(dtype, first_elem, num_elems, to, [&](uint64_t p) {
    const double sum = accumulator_of(dtype) == Dtype::kFloat64 ? add_in_rank_order<double>(dtype, seed, nranks, p)
                                                                : add_in_rank_order<float>(dtype, seed, nranks, p);
    uint64_t bits = 0;
    encode_float(dtype, sum, &bits);
    return bits;
  });
}

uint64_t first_difference(Dtype dtype, const void* a, const void* b, uint64_t num_elems) {
  const uint64_t bytes = dtype_bytes(dtype);
  if (std::memcmp(a, b, num_elems * bytes) == 0) return num_elems;
  const auto *pa = static_cast<const uint8_t*>(a), *pb = static_cast<const uint8_t*>(b);
  for (uint64_t i = 0; i < num_elems; ++i)
    if (std::memcmp(pa + i * bytes, pb + i * bytes, bytes) != 0) return i;
  return num_elems;
}

}  // namespace rondo::testing
