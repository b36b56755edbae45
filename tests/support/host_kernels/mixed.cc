#include "support/host_kernels/host_threads.h"
#include "support/host_kernels/table.h"

namespace rondo::testing {

const KernelRow kMixedKernels[8] = {
#define RONDO_ROW(op, name)                                                             \
  {"rondo_interpret_mixed_" name, interpret_on_host<device_kernels::MixedOps<Op::op>>}, \
      {"rondo_reduce_mixed_" name, &reduce_on_host<device_kernels::MixedOps<Op::op>>},
    RONDO_ROW(kSum, "sum") RONDO_ROW(kProd, "prod") RONDO_ROW(kMax, "max") RONDO_ROW(kMin, "min")
#undef RONDO_ROW
};

}  // namespace rondo::testing
