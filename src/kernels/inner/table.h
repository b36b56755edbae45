// The table of one SIMD level: a kernel for every dtype and op, and one for mixed rows. Included once per level, last;
// see vector.h.
//
// A kernel selects its recipe once per call and calls the driver. One unmodified source is a copy of bytes; an average
// without a divisor is a sum.
#pragma once

#include <type_traits>

#include "kernels/inner/driver.h"
#include "kernels/inner/mixed.h"

namespace rondo {
namespace RONDO_KERNEL_LEVEL {
namespace {

template <int kBytes>
using UnsignedOf =
    std::conditional_t<kBytes == 1, uint8_t,
                       std::conditional_t<kBytes == 2, uint16_t, std::conditional_t<kBytes == 4, uint32_t, uint64_t>>>;

// Value: the integer type itself; void for floats.
template <Dtype kDtype, bool kFloat = is_float(kDtype), bool kNarrow = is_narrow_float(kDtype)>
struct Element {
  using Unsigned = UnsignedOf<dtype_bytes(kDtype)>;
  using Value = std::conditional_t<is_signed(kDtype), std::make_signed_t<Unsigned>, Unsigned>;
  using Format = Wrapping<Unsigned>;
  template <bool kMax>
  using Extreme = IntExtreme<Value, kMax>;
};
template <Dtype kDtype>
struct Element<kDtype, true, false> {
  using Value = void;
  using Format = typename FormatOf<kDtype>::type;
  template <bool kMax>
  using Extreme = FloatExtreme<Format, Vec<UnsignedOf<dtype_bytes(kDtype)>>, kMax>;
};
template <Dtype kDtype>
struct Element<kDtype, true, true> {
  using Value = void;
  using Format = typename FormatOf<kDtype>::type;
  template <bool kMax>
  using Extreme = NarrowExtreme<kDtype, kMax>;
};

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

template <Dtype kDtype, Op kOp>
constexpr Kernel bitwise() {
  if constexpr (!op_combines(kOp, kDtype)) return nullptr;
  else return &reduce<kDtype, Bitwise<typename Element<kDtype>::Unsigned, kOp>>;
}

void copy(const KernelArgs& args) { copy_bytes(args, args.num_elems); }

// Rows in the order of RONDO_DTYPES, columns in the order of RONDO_OPS.
#define RONDO_ROW(e, ...)                                \
  {&sum<Dtype::e>,                                       \
   &reduce<Dtype::e, Prod<Element<Dtype::e>::Format>>,   \
   &reduce<Dtype::e, Element<Dtype::e>::Extreme<true>>,  \
   &reduce<Dtype::e, Element<Dtype::e>::Extreme<false>>, \
   &avg<Dtype::e>,                                       \
   &premul_sum<Dtype::e>,                                \
   bitwise<Dtype::e, Op::kBitAnd>(),                     \
   bitwise<Dtype::e, Op::kBitOr>(),                      \
   bitwise<Dtype::e, Op::kBitXor>()},
#define RONDO_TABLE(level_name) \
  { level_name, &copy, {RONDO_DTYPES(RONDO_ROW)}, &mixed }

static_assert(kNumOps == 9 && static_cast<int>(Op::kSum) == 0 && static_cast<int>(Op::kProd) == 1 &&
              static_cast<int>(Op::kMax) == 2 && static_cast<int>(Op::kMin) == 3 && static_cast<int>(Op::kAvg) == 4 &&
              static_cast<int>(Op::kPremulSum) == 5 && static_cast<int>(Op::kBitAnd) == 6 &&
              static_cast<int>(Op::kBitOr) == 7 && static_cast<int>(Op::kBitXor) == 8);

}  // namespace
}  // namespace RONDO_KERNEL_LEVEL
}  // namespace rondo
