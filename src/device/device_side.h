// DeviceSide: the device part of a communicator of device memory: connections on devices, and the engine that runs its
// calls there. It stands next to the host transport. Thread safety: as DeviceEngine.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "device/engine/device_engine.h"
#include "device/p2p/cuda_transport.h"
#include "plan/settings.h"
#include "rondo/communicator.h"

namespace rondo {

class DeviceSide {
 public:
  /// Collective over all ranks. `host` must outlive it. Returns the error of any rank, with its rank.
  static Expected<std::unique_ptr<DeviceSide>> create(Rank rank, const HostLayout& hosts, int ordinal, Transport& host,
                                                      const Settings& settings, const KernelTable& host_kernels,
                                                      const CudaTransport::Gather& gather);
  int ordinal() const { return ordinal_; }
  DeviceEngine& engine() { return *engine_; }
  CudaTransport& transport() { return *transport_; }
  // As in Communicator. Collective if the ranks are processes.
  Expected<void*> alloc(uint64_t bytes, const CudaTransport::Gather& gather);
  Status free(void* ptr, const CudaTransport::Gather& gather);
  Status register_memory(void* ptr, uint64_t bytes, const CudaTransport::Gather& gather);
  Status deregister_memory(void* ptr, const CudaTransport::Gather& gather);

 private:
  explicit DeviceSide(int ordinal) : ordinal_(ordinal) {}
  SharedRegions::Install install();
  void finish_calls();
  const int ordinal_;
  std::unique_ptr<CudaTransport> transport_;
  std::unique_ptr<DeviceEngine> engine_;
};

/// The device that a rank's Config selects; nullopt for host memory. Errors: kUnsupported (no driver).
Expected<std::optional<int>> device_of(const Config& config);
/// The same for all ranks of a process; empty for host memory. Errors also: kInvalidArgument (their number).
Expected<std::vector<int>> devices_of(const Config& config, int nranks);

/// Derives the device world from all ranks' descriptions, equally on all ranks. Pure. engine: the setting device_engine.
/// Errors: kUnsupported (the interpreter between processes of a device).
Expected<DeviceWorld> device_world(const std::vector<CudaTransport::DeviceOfRank>& devices, const DeviceLayout& layout,
                                   std::string_view engine, bool through_host, bool wide_lines,
                                   double link_gigabytes_per_s);

}  // namespace rondo
