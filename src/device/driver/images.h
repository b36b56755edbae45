// The kernels of the library, as images (fatbins) that the driver loads.
//
// An image contains the kernels of one dtype, or of mixed types, or the copies, or the optimizers, for every compiled
// architecture and as PTX for later ones. A process loads only the images that it uses: find_image maps a kernel to its
// image without reading images. Names are those of lower.h and optimizer_kernels.h. A library built without nvcc has no
// images. Thread safety: constant data.
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

/// All images; none if the library was built without nvcc.
std::span<const KernelImage> kernel_images();
/// The image with this kernel, or nullptr. O(kernels).
const KernelImage* find_image(std::string_view kernel);

}  // namespace rondo
