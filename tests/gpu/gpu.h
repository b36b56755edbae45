// Shared by tests on real devices: detection of a device, and communicators of all ranks on it.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "rondo/communicator.h"

namespace rondo::testing {

/// Does not use the driver, because a process that forks ranks must not have used it.
inline bool machine_has_gpu() { return access("/dev/nvidiactl", R_OK | W_OK) == 0; }

#define RONDO_NEEDS_GPU() \
  if (!::rondo::testing::machine_has_gpu()) GTEST_SKIP() << "no GPU here: /dev/nvidiactl is not there"

/// A number of cases, calls or bytes. GPU_TESTS_QUICK is for runs on a fake driver, or with sanitizers.
inline size_t full_or_quick(size_t full, size_t quick) {
  return std::getenv("GPU_TESTS_QUICK") != nullptr ? quick : full;
}

/// All ranks on device 0: several ranks may share a GPU. RONDO_TIMEOUT_S is the deadline of their calls.
inline Config gpu_config(int nranks, const std::string& settings = {}) {
  Config config;
  config.memory = rondo::Memory::kCuda;
  config.device = 0;
  config.devices.assign(static_cast<size_t>(nranks), 0);
  config.settings = settings;
  return config;
}

}  // namespace rondo::testing
