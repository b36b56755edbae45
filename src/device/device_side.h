// Makes the DeviceEngine of a communicator of device memory: chooses the device, and describes the devices and the
// links between them.
// Thread safety: pure functions; make_device_engine is collective.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "device/engine/device_engine.h"
#include "device/p2p/cuda_transport.h"
#include "plan/settings.h"
#include "rondo/communicator.h"
#include "topology/select.h"

namespace rondo {

/// The link between two ranks' devices on this host. Adds devices that `machine` does not have yet.
DeviceLink choose_link(GpuMachine& machine, const LinkPreferences& preferences, const CudaTransport::DeviceOfRank& a,
                       const CudaTransport::DeviceOfRank& b);

/// Collective over all ranks. `host` must outlive it. Returns the error of any rank, with its rank.
Expected<std::unique_ptr<DeviceEngine>> make_device_engine(Rank rank, const HostLayout& hosts, int ordinal,
                                                           Transport& host, const Settings& settings,
                                                           const KernelTable& host_kernels,
                                                           const CudaTransport::Gather& gather);

/// The device that a rank's Config selects; nullopt for host memory. Errors: kUnsupported (no driver).
Expected<std::optional<int>> device_of(const Config& config);
/// The same for all ranks of a process; empty for host memory. Errors also: kInvalidArgument (their number).
Expected<std::vector<int>> devices_of(const Config& config, int nranks);

}  // namespace rondo
