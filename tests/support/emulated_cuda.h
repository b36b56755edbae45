// Fake devices for communicators of device memory on machines without a GPU: the fake driver with rondo's own kernels
// as host functions, and configurations for tests. Needs "// links: host_kernels".
#pragma once

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <string>

#include "device/driver/kernel_loader.h"
#include "device/engine/clock_exchange.h"
#include "device/engine/device_program.h"
#include "device/engine/grid_reduce.h"
#include "device/engine/lower.h"
#include "fsdp/optimizer_kernels.h"
#include "rondo/communicator.h"
#include "support/fake_cuda/fake_cuda.h"
#include "support/fake_cuda/fake_machine.h"
#include "support/host_kernels/host_kernels.h"

namespace rondo::testing {

/// Installs these devices in cuda::driver(). Make it before processes are forked and before any communicator.
class EmulatedCuda {
 public:
  explicit EmulatedCuda(FakeMachine machine) : fake_(std::move(machine)) {
    KernelLoader::need_no_images();
    fake_.find_kernels_with([](std::string_view name) -> std::optional<FakeKernel> {
      const HostKernel run = find_host_kernel(name);
      if (run == nullptr) return std::nullopt;
      if (name == kClockName) return FakeKernel{run, sizeof(ClockArgs), false};
      if (name.starts_with("rondo_optimizer_") || name.starts_with("rondo_floats_") || name == "rondo_add_squares")
        return FakeKernel{run, sizeof(OptimizerArgs), false};
      const bool waits = !name.starts_with("rondo_reduce_") && name != kGridCopyName;
      return FakeKernel{run, waits ? sizeof(LaunchArgs) : sizeof(ReduceArgs), waits};
    });
  }
  FakeCuda& fake() { return fake_; }

 private:
  FakeCuda fake_;
};

/// n devices with NVLink between any two. Devices of FakeMachine::uniform have no known links, so their data goes
/// through host memory.
inline GpuMachine linked_devices(int n) {
  GpuMachine machine;
  machine.nvml_version = "580.65.06";
  for (int i = 0; i < n; ++i) {
    GpuDevice d;
    d.name = "Fake GPU";
    d.pci = fmt::format("0000:{:02x}:00.0", i + 1);
    d.capability_major = 9;
    d.multiprocessors = 132;
    d.memory_gib = 8;
    machine.devices.push_back(d);
  }
  machine.pairs.assign(static_cast<size_t>(n * n), GpuPair{true, true, 4, PciPath::kSystem, {}});
  return machine;
}

/// For communicators of device memory whose devices reach each other, whatever their links. `settings`: additional
/// lines.
inline Config device_config(const std::string& settings = {}) {
  Config config;
  config.memory = rondo::Memory::kCuda;
  config.settings = (settings.find("p2p_level") == std::string::npos ? "p2p_level = sys\n" : "") + settings;
  return config;
}

}  // namespace rondo::testing
