// Describes this machine: its devices by the CUDA driver, what lies between them by NVML and, where that is missing, by
// the kernel's tree of PCI devices; IOMMU and processor by the kernel.
//
// Thread safety: any thread. Takes milliseconds, and wakes devices up: call it once.
#pragma once

#include <string>

#include "topology/machine.h"

namespace rondo {

/// `root` is where /sys and /proc are looked for: "" of the machine itself, a folder of tests. Errors: kUnsupported (no
/// driver), kSystem.
Expected<GpuMachine> probe_machine(const std::string& root = "");

/// The kernel's number of the NUMA node that a CUDA device hangs at; -1: unknown.
int numa_node_of_device(int ordinal, const std::string& root = "");

/// The kernel's path of a PCI device ("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0") compared with another's.
PciPath compare_pci_paths(std::string_view a, std::string_view b, int numa_a, int numa_b);

}  // namespace rondo
