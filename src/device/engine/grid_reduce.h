// A reduction or copy by a whole grid, as described by ReduceArgs: the part of one thread. Host and device.
#pragma once

#include <type_traits>

#include "device/engine/device_program.h"
#include "kernels/cuda/mixed_units.h"
#include "kernels/cuda/reduce_copy.h"

namespace rondo {

template <class Ops>
RONDO_HOST_DEVICE_INLINE void grid_reduce(const ReduceArgs& args, device_kernels::Threads threads) {
  device_kernels::ReduceStep r;
  r.src = reinterpret_cast<const std::byte* const*>(args.src);
  r.dst = reinterpret_cast<std::byte* const*>(args.dst);
  r.num_src = args.num_src;
  r.num_dst = args.num_dst;
  r.num_elems = args.num_elems;
  r.own = args.own;
  r.scale_own = args.premultiply != 0 && args.own != device_kernels::ReduceStep::kNoOwn;
  r.divide_by = args.divide_by;
  r.scale = 0;
  r.own_type = static_cast<Dtype>(args.own_type);
  r.wire_type = static_cast<Dtype>(args.wire_type);
  r.dst_type = static_cast<Dtype>(args.dst_type);
  r.has_dst = args.has_dst != 0;
  r.result_as_wire = args.result_as_wire != 0;
  r.raw = args.raw != 0;
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
