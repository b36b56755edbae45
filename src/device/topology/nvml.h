// NVML, opened at run time: information about links that the CUDA driver does not give. libnvidia-ml.so.1 comes with
// the driver, but containers may lack it. Then nvml() is nullptr, and the machine's description has less information.
//
// Types equal NVML's in size and meaning; tests/topology/nvml_abi.cu compares them with NVIDIA's header if it is found.
// Functions that an old library lacks are nullptr, except init and device_by_pci.
// Thread safety: any thread; call set_nvml before the first use.
#pragma once

#include <string>

namespace rondo {

using NvmlDevice = struct NvmlDeviceHandle*;

struct NvmlPciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

inline constexpr int kNvmlSuccess = 0, kNvmlInvalidArgument = 2, kNvmlNotSupported = 3;
inline constexpr int kNvmlSameBoard = 0, kNvmlOneSwitch = 10, kNvmlSwitches = 20, kNvmlHostBridge = 30,
                     kNvmlNumaNode = 40, kNvmlSystem = 50;
inline constexpr int kNvmlP2pRead = 0, kNvmlP2pWrite = 1, kNvmlP2pNvlink = 2, kNvmlP2pAtomics = 3;
inline constexpr int kNvmlP2pOk = 0;
inline constexpr int kNvmlRemoteGpu = 0, kNvmlRemoteSwitch = 2;
inline constexpr unsigned kNvmlMostLinks = 36;

// X(member, symbol, arguments): all return nvmlReturn_t.
#define RONDO_NVML(X)                                                                                             \
  X(init, nvmlInit_v2, ())                                                                                        \
  X(system_driver_version, nvmlSystemGetDriverVersion, (char* text, unsigned length))                             \
  X(device_by_pci, nvmlDeviceGetHandleByPciBusId_v2, (const char* pci, NvmlDevice* device))                       \
  X(nvlink_state, nvmlDeviceGetNvLinkState, (NvmlDevice device, unsigned link, int* active))                      \
  X(nvlink_remote_type, nvmlDeviceGetNvLinkRemoteDeviceType, (NvmlDevice device, unsigned link, int* type))       \
  X(nvlink_remote_pci, nvmlDeviceGetNvLinkRemotePciInfo_v2, (NvmlDevice device, unsigned link, NvmlPciInfo* pci)) \
  X(p2p_status, nvmlDeviceGetP2PStatus, (NvmlDevice a, NvmlDevice b, int index, int* status))                     \
  X(common_ancestor, nvmlDeviceGetTopologyCommonAncestor, (NvmlDevice a, NvmlDevice b, int* level))               \
  X(mig_mode, nvmlDeviceGetMigMode, (NvmlDevice device, unsigned* current, unsigned* pending))                    \
  X(pcie_generation, nvmlDeviceGetMaxPcieLinkGeneration, (NvmlDevice device, unsigned* generation))               \
  X(pcie_width, nvmlDeviceGetMaxPcieLinkWidth, (NvmlDevice device, unsigned* lanes))

struct Nvml {
#define RONDO_X(member, symbol, args) int(*member) args = nullptr;
  RONDO_NVML(RONDO_X)
#undef RONDO_X
};

/// The table after nvmlInit, or nullptr: no library, or it refuses. RONDO_CUDA=0 turns it off with CUDA.
const Nvml* nvml();
/// The reason why nvml() is nullptr, or an empty string.
std::string why_no_nvml();
/// For tests: uses this table from now on; nullptr: the real one again.
void set_nvml(const Nvml* table);

/// The meaning of a status of nvmlDeviceGetP2PStatus; empty for kNvmlP2pOk.
std::string p2p_status_text(int status);

}  // namespace rondo
