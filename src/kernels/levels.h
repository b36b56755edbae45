// The tables of the levels' own files. Only kernels.cc chooses among them.
#pragma once

#include "kernels/kernels.h"

namespace rondo {
extern const KernelTable kBaselineKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif
}  // namespace rondo
