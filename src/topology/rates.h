// Link rates in GB/s of one direction: the expected rate of a kernel's copy, below the nominal rate. From NCCL's public
// source (github.com/NVIDIA/nccl, src/graph/topo.h, ncclTopoNVLinkBw and PCI_BW), with the nominal rates of NVIDIA's
// architecture white papers and of the PCIe base specifications. Pure.
#pragma once

#include "topology/machine.h"

namespace rondo {

/// One NVLink of a device of this compute capability.
constexpr double nvlink_gbps(int major, int minor) {
  const int capability = 10 * major + minor;
  if (capability >= 100) return 40.1;                     // B200: NVLink 5, 50 nominal
  if (capability >= 90) return 20.6;                      // H100: NVLink 4, 25 nominal
  if (capability == 86 || capability == 89) return 12.0;  // GA102: 14.06 nominal
  if (capability >= 70) return 20.0;                      // V100, A100: NVLink 2 and 3, 25 nominal
  return 18.0;                                            // P100: NVLink 1, 20 nominal
}

/// A slot. Generation 3 x16: 12 of 15.75 nominal (NCCL's PCI_BW); every generation doubles. 0: unknown.
constexpr double pcie_gbps(int generation, int lanes) {
  if (generation < 1 || lanes < 1) return 0;
  double gbps = 12.0 * lanes / 16;
  for (int g = generation; g < 3; ++g) gbps /= 2;
  for (int g = 3; g < generation; ++g) gbps *= 2;
  return gbps;
}

/// The remaining share of a slot's rate if a processor forwards between devices: Intel's processors cut the data into
/// packets of 64 bytes (NCCL's INTEL_P2P_OVERHEAD, 6/5).
constexpr double forwarded_share(CpuVendor cpu) { return cpu == CpuVendor::kIntel ? 5.0 / 6 : 1.0; }

/// The link between sockets, for the slowest generation still in use (NCCL's SKL_QPI_BW, AMD_ZEN12_BW, ARM_BW).
constexpr double socket_gbps(CpuVendor cpu) {
  switch (cpu) {
    case CpuVendor::kIntel: return 10.0;
    case CpuVendor::kAmd: return 16.0;
    default: return 6.0;
  }
}

}  // namespace rondo
