// Describes this machine: devices by the CUDA driver, links by NVML or else by the kernel's PCI tree, IOMMU and
// processor by the kernel. Thread safety: any thread. Takes milliseconds and wakes devices up: call it once.
#pragma once

#include <string>

#include "device/driver/driver.h"
#include "rondo/status.h"
#include "topology/machine.h"

namespace rondo {

/// `root`: prefix of /sys and /proc: "" for this machine, a folder in tests. Errors: kUnsupported (no driver), kSystem.
Expected<GpuMachine> probe_machine(const std::string& root = "");

/// Adds a device of another rank's process that CUDA does not show to this one (CUDA_VISIBLE_DEVICES). `device` has its
/// PCI id, uuid, name, capability and multiprocessors; NVML and the kernel know its slot and links. P2P access is as
/// NVML says, or assumed: processes can map such a device's memory.
void add_hidden_device(GpuMachine& machine, GpuDevice device, const std::string& root = "");

/// As in GpuDevice::uuid, without GPU- or MIG-.
std::string uuid_text(const cuda::Uuid& uuid);

/// NUMA node (the kernel's number) of a CUDA device; -1: unknown.
int numa_node_of_device(int ordinal, const std::string& root = "");

/// Compares the kernel's paths of two PCI devices ("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0").
PciPath compare_pci_paths(std::string_view a, std::string_view b, int numa_a, int numa_b);

}  // namespace rondo
