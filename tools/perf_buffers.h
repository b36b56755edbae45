// Buffers of one rank in `rondo perf`: two arenas, inputs and outputs, out of which every operation takes its place.
//
// Thread safety: none; one rank's. Freed with the communicator when they come from rondo_alloc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "perf_device.h"
#include "perf_options.h"
#include "rondo/rondo.h"

namespace rondo::tools {

/// The two ends of one operation.
struct Place {
  std::byte* in = nullptr;
  std::byte* out = nullptr;
};

class PerfBuffers {
 public:
  /// Collective when options.registered. `device`: that of the communicator, nullptr for host memory. Throws PerfError.
  PerfBuffers(const PerfOptions& options, rondo_comm* comm, int nranks, PerfDevice* device);
  ~PerfBuffers();
  PerfBuffers(const PerfBuffers&) = delete;
  PerfBuffers& operator=(const PerfBuffers&) = delete;

  /// Places that follow are for calls of this shape.
  void use(const CallShape& shape, const TypeRow& types);
  /// The place of the `ahead`-th next operation.
  Place place(uint64_t ahead) const;
  /// Hot: the places stay; cold: the next `num_ops` are used up.
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
  uint64_t in_stride_ = 0, out_stride_ = 0, in_shift_ = 0, out_shift_ = 0;  // bytes, of the current shape
  uint64_t num_places_ = 1, cursor_ = 0;
};

}  // namespace rondo::tools
