// The table of one SIMD level: a kernel for every dtype and op, and one for mixed rows. Included once per level, last;
// see vector.h.
//
// A kernel selects its recipe once per call and calls the driver. One unmodified source is a copy of bytes; an average
// without a divisor is a sum.
#pragma once

#include "kernels/inner/driver.h"
#include "kernels/inner/mixed.h"

namespace rondo {
namespace RONDO_KERNEL_LEVEL {
namespace {

// Value: the type of integers, void of floats.
template <class T, class U>
struct IntElement {
  using Value = T;
  using Unsigned = U;
  using Format = Wrapping<U>;
  template <bool kMax>
  using Extreme = IntExtreme<T, kMax>;
};
template <class F, class B>
struct FloatElement {
  using Value = void;
  using Format = F;
  template <bool kMax>
  using Extreme = FloatExtreme<F, Vec<B>, kMax>;
};
template <class F, const FloatFormat& f, class Code>
struct NarrowElement {
  using Value = void;
  using Format = F;
  template <bool kMax>
  using Extreme = NarrowExtreme<Code, f.max_code, f.nan_code, kMax>;
};

// clang-format off
template <Dtype kDtype> struct Element;
template <> struct Element<Dtype::kInt8> : IntElement<int8_t, uint8_t> {};
template <> struct Element<Dtype::kUint8> : IntElement<uint8_t, uint8_t> {};
template <> struct Element<Dtype::kInt32> : IntElement<int32_t, uint32_t> {};
template <> struct Element<Dtype::kUint32> : IntElement<uint32_t, uint32_t> {};
template <> struct Element<Dtype::kInt64> : IntElement<int64_t, uint64_t> {};
template <> struct Element<Dtype::kUint64> : IntElement<uint64_t, uint64_t> {};
template <> struct Element<Dtype::kFloat32> : FloatElement<Fp32, uint32_t> {};
template <> struct Element<Dtype::kFloat64> : FloatElement<Fp64, uint64_t> {};
template <> struct Element<Dtype::kFloat16> : NarrowElement<Fp16, kFormatFp16, int16_t> {};
template <> struct Element<Dtype::kBfloat16> : NarrowElement<Bf16, kFormatBf16, int16_t> {};
template <> struct Element<Dtype::kFloat8E4m3> : NarrowElement<E4m3, kFormatE4m3, int8_t> {};
template <> struct Element<Dtype::kFloat8E5m2> : NarrowElement<E5m2, kFormatE5m2, int8_t> {};
// clang-format on

template <Dtype kDtype, class Recipe>
void reduce(const KernelArgs& args) {
  constexpr uint32_t kBytes = dtype_bytes(kDtype);
  if (args.num_src == 1) return copy_bytes(args, args.num_elems * kBytes);
  run(args, kBytes, Recipe{});
}
template <Dtype kDtype>
void sum(const KernelArgs& args) {
  reduce<kDtype, Sum<typename Element<kDtype>::Format>>(args);
}

template <Dtype kDtype>
void avg(const KernelArgs& args) {
  constexpr uint32_t kBytes = dtype_bytes(kDtype);
  using Value = typename Element<kDtype>::Value;
  using Format = typename Element<kDtype>::Format;
  const uint32_t divisor = args.divide_by;
  if (divisor == 0) return sum<kDtype>(args);
  if constexpr (__is_same(Value, void)) {
    using Scalar = typename Format::Scalar;
    if (is_power_of_two(divisor)) {
      SumTimes<Format> recipe;
      recipe.factor = Scalar{1} / static_cast<Scalar>(divisor);
      run(args, kBytes, recipe);
    } else {
      SumOver<Format> recipe;
      recipe.divisor = static_cast<Scalar>(divisor);
      run_any_shape(args, kBytes, recipe);
    }
  } else {
    using Unsigned = typename Element<kDtype>::Unsigned;
    if (is_power_of_two(divisor) && __builtin_ctz(divisor) < static_cast<int>(8 * kBytes)) {
      SumShift<Value, Unsigned> recipe;
      recipe.shift = __builtin_ctz(divisor);
      run_any_shape(args, kBytes, recipe);
    } else {
      SumQuotient<Value, Unsigned> recipe;
      recipe.divisor = divisor;
      run_any_shape(args, kBytes, recipe);
    }
  }
}

template <Dtype kDtype>
void premul_sum(const KernelArgs& args) {
  if (args.own == KernelArgs::kNoOwn) return sum<kDtype>(args);
  using Format = typename Element<kDtype>::Format;
  PremulSum<Format> recipe;
  recipe.own = args.own;
  __builtin_memcpy(&recipe.scale, args.premul, sizeof(recipe.scale));
  run_any_shape(args, dtype_bytes(kDtype), recipe);
}

void copy(const KernelArgs& args) { copy_bytes(args, args.num_elems); }

// Rows in the order of RONDO_DTYPES, columns in the order of RONDO_OPS.
#define RONDO_ROW(e, v, name, bytes, acc)                \
  {&sum<Dtype::e>,                                       \
   &reduce<Dtype::e, Prod<Element<Dtype::e>::Format>>,   \
   &reduce<Dtype::e, Element<Dtype::e>::Extreme<true>>,  \
   &reduce<Dtype::e, Element<Dtype::e>::Extreme<false>>, \
   &avg<Dtype::e>,                                       \
   &premul_sum<Dtype::e>},
#define RONDO_TABLE(level_name) \
  { level_name, &copy, {RONDO_DTYPES(RONDO_ROW)}, &mixed }

static_assert(kNumOps == 6 && static_cast<int>(Op::kSum) == 0 && static_cast<int>(Op::kProd) == 1 &&
              static_cast<int>(Op::kMax) == 2 && static_cast<int>(Op::kMin) == 3 &&
              static_cast<int>(Op::kAvg) == 4 && static_cast<int>(Op::kPremulSum) == 5);

}  // namespace
}  // namespace RONDO_KERNEL_LEVEL
}  // namespace rondo
