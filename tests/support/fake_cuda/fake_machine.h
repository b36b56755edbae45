// The fake driver and a fake NVML for a described machine (topology/machine.h): their functions return the
// description's values.
// Thread safety: only one FakeNvml at a time in a process, made and destroyed while it is not in use.
#pragma once

#include <string>

#include "support/fake_cuda/fake_cuda.h"
#include "topology/machine.h"

namespace rondo::testing {

/// Devices, P2P and PCI ids of the description; uuids and all else as FakeMachine::uniform.
FakeMachine fake_machine(const GpuMachine& machine);

/// set_nvml(...) with a table that returns the description's links, paths, P2P status, MIG and PCIe values.
class FakeNvml {
 public:
  explicit FakeNvml(GpuMachine machine);
  ~FakeNvml();
  FakeNvml(const FakeNvml&) = delete;
  FakeNvml& operator=(const FakeNvml&) = delete;
};

}  // namespace rondo::testing
