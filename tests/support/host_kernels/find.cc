// host_kernels_names.inc is made by tests/CMakeLists.txt: RONDO_KERNEL_NAMES(X) is X(name) for each element type.
#include <host_kernels_names.inc>

#include "support/host_kernels/host_threads.h"
#include "support/host_kernels/table.h"

namespace rondo::testing {

#define RONDO_X(of) extern const KernelRow kKernels_##of[8];
RONDO_KERNEL_NAMES(RONDO_X)
#undef RONDO_X

HostKernel find_host_kernel(std::string_view name) {
  static constexpr KernelRow kCopies[] = {{"rondo_interpret_copy", interpret_on_host<device_kernels::BytesOps>},
                                          {"rondo_copy", &reduce_on_host<device_kernels::BytesOps>},
                                          {"rondo_clock", &tell_clock_on_host}};
  for (const KernelRow& row : kCopies)
    if (row.name == name) return row.kernel;
  for (const KernelRow& row : kMixedKernels)
    if (row.name == name) return row.kernel;
  for (const KernelRow& row : kOptimizerKernels)
    if (row.name == name) return row.kernel;
#define RONDO_X(of)                          \
  for (const KernelRow& row : kKernels_##of) \
    if (row.name == name) return row.kernel;
  RONDO_KERNEL_NAMES(RONDO_X)
#undef RONDO_X
  return nullptr;
}

}  // namespace rondo::testing
