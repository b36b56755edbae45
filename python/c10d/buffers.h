// Buffers: the memory of one call. Calls of rondo need contiguous memory; tensors that are not get staging memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace rondo_c10d {

struct Buffers {
  at::Tensor in, out;                                     // contiguous; either may be undefined
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // when the call is done: from staging memory to the caller's

  const void* in_data() const { return in.defined() ? in.const_data_ptr() : nullptr; }
  void* out_data() const { return out.defined() ? out.data_ptr() : nullptr; }
  /// Makes the copies. The call must be done.
  void finish() const;
};

/// Returns the tensor's elements, contiguous.
at::Tensor to_read(const at::Tensor& t);
/// Returns memory for a result. If `t` is not contiguous, it is copied there at the end.
at::Tensor to_write(const at::Tensor& t, Buffers* b);
/// Returns the tensor's elements, contiguous, in memory that also takes the result.
at::Tensor to_update(const at::Tensor& t, Buffers* b);
/// The same for parts that follow one another in one memory. They are copied unless they already do.
at::Tensor parts_to_read(const std::vector<at::Tensor>& parts);
at::Tensor parts_to_write(const std::vector<at::Tensor>& parts, Buffers* b);

}  // namespace rondo_c10d
