#include "device/engine/images.h"

#if defined(RONDO_HAVE_CUDA_IMAGES)

// cuda_images.inc is made by cmake/cuda.cmake: RONDO_IMAGE(name, kind, path of the fatbin) for each image.
#define RONDO_IMAGE(name, kind, path) RONDO_EMBED_IMAGE(name, path)
#include <cuda_images.inc>
#undef RONDO_IMAGE

namespace rondo {
namespace {

#define RONDO_KERNELS_OF(name)                                                                       \
  {                                                                                                  \
    "rondo_interpret_" name "_sum", "rondo_interpret_" name "_prod", "rondo_interpret_" name "_max", \
        "rondo_interpret_" name "_min", "rondo_reduce_" name "_sum", "rondo_reduce_" name "_prod",   \
        "rondo_reduce_" name "_max", "rondo_reduce_" name "_min"                                     \
  }
#define RONDO_KERNELS_dtype(name) RONDO_KERNELS_OF(name)
#define RONDO_KERNELS_mixed(name) RONDO_KERNELS_OF(name)
#define RONDO_KERNELS_copy(name) \
  { "rondo_interpret_copy", "rondo_copy", "rondo_clock" }
#define RONDO_IMAGE(name, kind, path) constexpr std::string_view kKernels_##name[] = RONDO_KERNELS_##kind(#name);
#include <cuda_images.inc>
#undef RONDO_IMAGE

}  // namespace

KernelImages collective_images() {
  static const KernelImage images[] = {
#define RONDO_IMAGE(name, kind, path) RONDO_IMAGE_ROW(name, kKernels_##name),
#include <cuda_images.inc>
#undef RONDO_IMAGE
  };
  return images;
}

}  // namespace rondo

#else

rondo::KernelImages rondo::collective_images() { return {}; }

#endif
