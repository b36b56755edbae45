// Device functions for `rondo perf --device cuda`: a stream, copies, and waiting for them.
// Thread safety: none; used by one rank. Throws PerfError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/driver/handles.h"

namespace rondo::tools {

class PerfDevice {
 public:
  /// Makes the context of device `ordinal` current in the calling thread.
  explicit PerfDevice(int ordinal);
  static int count();
  void* stream() const { return stream_.get(); }
  void fill(std::byte* to, int value, uint64_t bytes);
  void upload(std::byte* to, const std::byte* from, uint64_t bytes);
  void download(std::byte* to, const std::byte* from, uint64_t bytes);
  void synchronize();
  /// Returns at least `bytes` of host memory for comparisons.
  std::byte* host(uint64_t bytes);

 private:
  cuda::PrimaryContext context_;
  cuda::OwnedStream stream_;
  std::vector<std::byte> host_;
};

}  // namespace rondo::tools
