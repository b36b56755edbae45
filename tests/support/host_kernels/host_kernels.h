// The kernels by name, as functions of the host: what a launch runs where there is no device.
#pragma once

#include <cstdint>
#include <string_view>

namespace rondo::testing {

/// Runs `grid` blocks of `block_threads` host threads each, and returns when all have ended. args: the kernel's one
/// argument: LaunchArgs, ReduceArgs or OptimizerArgs. All blocks run at once. Blocks of a few threads do what blocks of
/// 512 do: kernels take any number that is a power of two.
using HostKernel = void (*)(const void* args, uint32_t grid, uint32_t block_threads);

/// nullptr when there is no kernel of this name ("rondo_interpret_float_sum", "rondo_copy", ...: device/engine/lower.h).
HostKernel find_host_kernel(std::string_view name);

}  // namespace rondo::testing
