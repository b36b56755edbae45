#include "fsdp/optimizer_kernels.h"

#include "support/host_kernels/host_threads.h"
#include "support/host_kernels/table.h"

namespace rondo::testing {
namespace {

using OptimizerThread = void (*)(const OptimizerArgs&, device_kernels::Threads);
template <OptimizerThread kThread>
void run_optimizer(const void* args, uint32_t grid, uint32_t block_threads) {
  run_grid(grid, block_threads, [&](uint32_t block, uint32_t thread) {
    kThread(*static_cast<const OptimizerArgs*>(args), {block * block_threads + thread, grid * block_threads});
  });
}

}  // namespace

const KernelRow kOptimizerKernels[7] = {
#define RONDO_X(name, ...) {#name, &run_optimizer<&__VA_ARGS__>},
    RONDO_OPTIMIZER_KERNELS(RONDO_X)
#undef RONDO_X
};

}  // namespace rondo::testing
