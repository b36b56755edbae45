// What `rondo perf --device cuda` needs of a device beside collectives: a stream, copies, and waiting for both.
//
// Thread safety: none; one rank's. Throws PerfError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/driver/handles.h"

namespace rondo::tools {

class PerfDevice {
 public:
  /// The device of this number; its context becomes the calling thread's.
  explicit PerfDevice(int ordinal);
  static int count();
  void* stream() const { return stream_.get(); }
  void fill(std::byte* to, int value, uint64_t bytes);
  void upload(std::byte* to, const std::byte* from, uint64_t bytes);
  void download(std::byte* to, const std::byte* from, uint64_t bytes);
  /// Waits for the stream.
  void synchronize();
  /// Host memory of this many bytes, for what is compared.
  std::byte* host(uint64_t bytes);

 private:
  cuda::PrimaryContext context_;
  cuda::OwnedStream stream_;
  std::vector<std::byte> host_;
};

}  // namespace rondo::tools
