// A reduction or copy by a whole grid, without connections, for the stream engine and for bench/: the part of one
// thread. Host and device.
#pragma once

#include <type_traits>

#include "kernels/cuda/reduce_copy.h"

namespace rondo {

/// The only argument. Sources are combined left to right in the accumulator type and rounded once per sink.
struct ReduceArgs {
  static constexpr uint32_t kMaxSources = 16, kMaxSinks = 4;
  const void* src[kMaxSources];
  void* dst[kMaxSinks];
  device_kernels::ReduceStep step;  // its tables and `scale` are set by the kernel. rondo_copy: num_elems are bytes
  const void* premul_at;            // the scale, as in DeviceCall
  alignas(8) std::byte premul[8];
};

template <class Ops>
RONDO_HOST_DEVICE_INLINE void grid_reduce(const ReduceArgs& args, device_kernels::Threads threads) {
  device_kernels::ReduceStep r = args.step;
  r.src = reinterpret_cast<const std::byte* const*>(args.src);
  r.dst = reinterpret_cast<std::byte* const*>(args.dst);
  r.scale_own = r.scale_own && r.own != device_kernels::ReduceStep::kNoOwn;
  if (r.scale_own)
    r.scale = args.premul_at != nullptr
                  ? Ops::scale_from_element(static_cast<const std::byte*>(args.premul_at), r.own_type)
                  : device_kernels::load_aligned<uint64_t>(args.premul);
  if constexpr (std::is_same_v<Ops, device_kernels::BytesOps>) {
    device_kernels::copy_bytes(r, threads);
  } else {
    if constexpr (!Ops::kMixed) {
      if (r.num_src == 1 && !r.scale_own && r.divide_by == 0) {  // copies every bit, also of a NaN
        r.num_elems *= Ops::kBytes;
        return device_kernels::copy_bytes(r, threads);
      }
    }
    device_kernels::reduce_copy<Ops>(r, threads);
  }
}

}  // namespace rondo
