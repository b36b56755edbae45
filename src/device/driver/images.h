// The kernels that are compiled into the library, as images (fatbins) that the driver loads.
//
// An image holds the kernels of one dtype, or those of mixed types, or the copies, or the optimizers, for every
// architecture that was compiled for and as PTX for those to come. So a process loads what it uses: find_image says
// where a kernel is, without a look into any image. Names are those of lower.h and optimizer_kernels.h.
//
// A library built without nvcc has no images.
// Thread safety: constant data.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace rondo {

struct KernelImage {
  std::string_view name;                      // "float", "mixed", "copy"
  std::span<const std::byte> fatbin;          // for cuModuleLoadData
  std::span<const std::string_view> kernels;  // the entry points in it
};

/// All images; none in a library built without nvcc.
std::span<const KernelImage> kernel_images();
/// The image with this kernel; nullptr when there is none. O(kernels).
const KernelImage* find_image(std::string_view kernel);

}  // namespace rondo
