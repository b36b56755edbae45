// Selects this processor's SIMD level. Compiled without a level's flags; holds no state.
#include "kernels/kernels.h"

#include "kernels/levels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace rondo {
namespace {

#if defined(__x86_64__)
// The built-in also checks that the operating system saves the wide registers.
bool has_avx2() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return has_f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

}  // namespace

SimdLevel best_simd_level() {
  if (kernel_table(SimdLevel::kAvx512) != nullptr) return SimdLevel::kAvx512;
  if (kernel_table(SimdLevel::kAvx2) != nullptr) return SimdLevel::kAvx2;
  return SimdLevel::kBaseline;
}

const KernelTable* kernel_table(SimdLevel level) {
  switch (level) {
    case SimdLevel::kBaseline: return &kBaselineKernels;
#if defined(__x86_64__)
    case SimdLevel::kAvx2: return has_avx2() ? &kAvx2Kernels : nullptr;
    case SimdLevel::kAvx512: return has_avx512() ? &kAvx512Kernels : nullptr;
#endif
    default: return nullptr;
  }
}

std::optional<SimdLevel> simd_level_from_name(std::string_view name) {
  if (name == "baseline") return SimdLevel::kBaseline;
  if (name == "avx2") return SimdLevel::kAvx2;
  if (name == "avx512") return SimdLevel::kAvx512;
  return std::nullopt;
}

}  // namespace rondo
