// Collectives on host values through communicators of any memory. For a device communicator the values go through a
// small device buffer. Thread safety: one thread at a time.
#pragma once

#include <memory>

#include "rondo/communicator.h"
#include "rondo/fsdp/device.h"

namespace rondo::fsdp {

struct Freed {
  Device* device = nullptr;
  void operator()(std::byte* p) const { device->free(p); }
};
using Block = std::unique_ptr<std::byte, Freed>;

/// Returns zeroed memory, aligned to a cache line. Errors: as Device::allocate.
Expected<Block> allocate(Device& device, uint64_t bytes);

class HostCalls {
 public:
  /// device: the device of comm's buffers. Both must outlive this object.
  HostCalls(Communicator& comm, Device& device) : comm_(comm), device_(device) {}
  Communicator& comm() const { return comm_; }

  Status all_gather(const void* in, void* out, uint64_t count_elems, Dtype dtype);
  Status broadcast(void* values, uint64_t count_elems, Dtype dtype, Rank root);
  Status all_reduce(void* values, uint64_t count_elems, Dtype dtype, Op op, uint32_t promises);
  /// values may be in host or device memory. Uses at most 4 MiB of device memory.
  Status send(const std::byte* values, uint64_t count_elems, Dtype dtype, Rank peer);
  /// Receives into host memory.
  Status recv(std::byte* values, uint64_t count_elems, Dtype dtype, Rank peer);
  /// Collective. Returns on all ranks the error of the first rank that has one, with its rank, so that no rank goes on,
  /// or waits, after another has failed. Texts are cut to 2 KB.
  Status agree(const Status& mine);

 private:
  bool direct() const { return device_.memory() == rondo::Memory::kHost; }
  Expected<std::byte*> room(uint64_t bytes);
  template <class Call>
  Status run(uint32_t promises, const Call& call);

  Communicator& comm_;
  Device& device_;
  Block room_;
  uint64_t room_bytes_ = 0;
};

}  // namespace rondo::fsdp
