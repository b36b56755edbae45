// Kernels with inlined definitions.
#include "support/host_kernels/host_threads.h"
#include "support/host_kernels/table.h"

namespace rondo::testing {
namespace {

template <Dtype kDtype>
using SumOps = device_kernels::UniformOps<kDtype, Op::kSum>;
template <class Ops, class Text>
constexpr HostKernel inlined_on_host = &run_on_host<DevicePrims<HostEnv, Ops, Text>>;

}  // namespace

#define RONDO_SUMS(dtype, name)                                                                                      \
  KernelRow{"rondo_ring_all_reduce_" name "_sum", inlined_on_host<SumOps<Dtype::dtype>, RingAllReduce>}, KernelRow { \
    "rondo_ring_reduce_scatter_" name "_sum", inlined_on_host<SumOps<Dtype::dtype>, RingReduceScatter>               \
  }
const KernelRow kInlinedKernels[7] = {
    RONDO_SUMS(kFloat32, "float"),
    RONDO_SUMS(kFloat16, "half"),
    RONDO_SUMS(kBfloat16, "bfloat16"),
    {"rondo_ring_all_gather_copy", inlined_on_host<device_kernels::BytesOps, RingAllGather>},
};
#undef RONDO_SUMS

}  // namespace rondo::testing
