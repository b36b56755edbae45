// Buffers of one rank in `rondo perf`: two arenas, for inputs and outputs. Every operation gets a place in each.
// Thread safety: none; used by one rank. Buffers from rondo_alloc are freed with the communicator.
#pragma once

#include <cstddef>
#include <cstdint>

#include "perf_device.h"
#include "perf_options.h"
#include "rondo/rondo.h"

namespace rondo::tools {

/// Input and output of one operation.
struct Place {
  std::byte* in = nullptr;
  std::byte* out = nullptr;
};

class PerfBuffers {
 public:
  /// Collective if options.registered. `device`: the communicator's device, nullptr for host memory. Throws PerfError.
  PerfBuffers(const PerfOptions& options, rondo_comm* comm, int nranks, PerfDevice* device);
  ~PerfBuffers();
  PerfBuffers(const PerfBuffers&) = delete;
  PerfBuffers& operator=(const PerfBuffers&) = delete;

  /// Sets the shape of the following places.
  void use(const CallShape& shape, const TypeRow& types);
  /// The place of the `ahead`-th next operation.
  Place place(uint64_t ahead) const;
  /// Hot: places do not change. Cold: skips the next `num_ops` places.
  void advance(uint64_t num_ops) { cursor_ = rotate_ ? (cursor_ + num_ops) % num_places_ : 0; }
  static uint64_t arena_bytes(const PerfOptions& options, int nranks);

 private:
  struct Arenas {
    uint64_t in_bytes = 0, out_bytes = 0;
  };
  static Arenas arenas(const PerfOptions& options, int nranks);
  std::byte* allocate(uint64_t bytes);

  rondo_comm* comm_;
  PerfDevice* device_;
  bool registered_, rotate_;
  uint64_t unalign_elems_, sets_;
  Arenas arenas_;
  std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
  uint64_t in_stride_ = 0, out_stride_ = 0, in_shift_ = 0, out_shift_ = 0;  // bytes, for the current shape
  uint64_t num_places_ = 1, cursor_ = 0;
};

}  // namespace rondo::tools
