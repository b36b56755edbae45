// What tests on real devices share: whether there is one, and communicators of all ranks on it.
#pragma once

#include <unistd.h>

#include <string>

#include "rondo/communicator.h"

namespace rondo::testing {

/// Without touching the driver, which a process that forks ranks must not have done.
inline bool machine_has_gpu() { return access("/dev/nvidiactl", R_OK | W_OK) == 0; }

#define RONDO_NEEDS_GPU() \
  if (!::rondo::testing::machine_has_gpu()) GTEST_SKIP() << "no GPU here: /dev/nvidiactl is not there"

/// All ranks on device 0: several ranks on one GPU are allowed.
inline Config gpu_config(int nranks, const std::string& settings = {}) {
  Config config;
  config.memory = rondo::Memory::kCuda;
  config.device = 0;
  config.devices.assign(static_cast<size_t>(nranks), 0);
  config.settings = settings;
  config.deadline_s = 60;
  return config;
}

}  // namespace rondo::testing
