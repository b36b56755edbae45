// ProgramCache: the DevicePrograms of a communicator in device memory, by their contents.
//
// A DeviceProgram contains no counts, so calls of any number of shapes need only a few. Only a new program is uploaded,
// which waits for the copy. The least recently found program leaves the cache when it is full. Its memory is used again
// after its last user has dropped it.
// Thread safety: belongs to the holder of the engine's lock; programs may be dropped by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "device/engine/device_program.h"
#include "device/p2p/cuda_transport.h"
#include "rondo/status.h"

namespace rondo {

class ProgramCache {
 public:
  static constexpr size_t kMostPrograms = 1024;
  using Shared = std::shared_ptr<const DeviceProgram>;
  explicit ProgramCache(CudaTransport& transport) : transport_(transport) {}
  /// Returns an equal program in device memory. Its users keep it until no launch reads it any more. Errors: of the
  /// driver. O(bytes).
  Expected<Shared> find_or_upload(std::span<const std::byte> program);
  uint64_t num_uploads() const { return num_uploads_; }

 private:
  struct Unused {  // memory of dropped programs
    std::mutex mutex;
    std::multimap<uint64_t, const std::byte*> by_bytes;
  };
  struct Entry {
    std::string contents;
    Shared on_device;
  };
  Expected<Shared> take(uint64_t bytes);

  CudaTransport& transport_;
  const std::shared_ptr<Unused> unused_ = std::make_shared<Unused>();
  uint64_t num_uploads_ = 0;
  std::list<Entry> entries_;  // the last found first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_contents_;
};

}  // namespace rondo
