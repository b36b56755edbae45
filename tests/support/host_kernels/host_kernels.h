// The kernels by name, as host functions for launches without a device.
#pragma once

#include <cstdint>
#include <string_view>

namespace rondo::testing {

/// Runs `grid` blocks of `block_threads` host threads each, all at once, and returns when all have ended. args: the
/// kernel's only argument: LaunchArgs, ReduceArgs or OptimizerArgs. Blocks of a few threads do the same work as blocks
/// of 512: kernels accept any power of two.
using HostKernel = void (*)(const void* args, uint32_t grid, uint32_t block_threads);

/// nullptr if there is no kernel of this name ("rondo_interpret_float_sum", "rondo_copy", ...: device/engine/lower.h).
HostKernel find_host_kernel(std::string_view name);

}  // namespace rondo::testing
