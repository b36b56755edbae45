// All SIMD levels. A machine may lack some: kernel_table() is null for them.
#pragma once

#include "kernels/kernels.h"

namespace rondo {

constexpr SimdLevel kLevels[] = {SimdLevel::kBaseline, SimdLevel::kAvx2, SimdLevel::kAvx512};

}  // namespace rondo
