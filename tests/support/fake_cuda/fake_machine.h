// The fake driver and a fake NVML playing a described machine (topology/machine.h): what a test records or writes down
// as text comes back from the functions that rondo asks.
//
// Thread safety: one FakeNvml at a time in a process, made and destroyed while nothing asks.
#pragma once

#include <string>

#include "support/fake_cuda/fake_cuda.h"
#include "topology/machine.h"

namespace rondo::testing {

/// Devices, P2P and PCI ids of the description; uuids and the rest as FakeMachine::uniform.
FakeMachine fake_machine(const GpuMachine& machine);

/// set_nvml(...) with a table that says what the description says: links, paths, P2P status, MIG, PCIe.
class FakeNvml {
 public:
  explicit FakeNvml(GpuMachine machine);
  ~FakeNvml();
  FakeNvml(const FakeNvml&) = delete;
  FakeNvml& operator=(const FakeNvml&) = delete;
};

}  // namespace rondo::testing
