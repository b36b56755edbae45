#include "device/driver/images.h"

#include <cstdint>

namespace rondo {

#if defined(RONDO_HAVE_CUDA_IMAGES)

// cmake/cuda.cmake generates cuda_images.inc: RONDO_IMAGE(name, kind, path of the fatbin) for each image.
#define RONDO_IMAGE(name, kind, path)              \
  asm(".pushsection .rodata,\"a\"\n"               \
      ".balign 64\n"                               \
      ".hidden rondo_image_" #name                 \
      "\n"                                         \
      ".global rondo_image_" #name                 \
      "\n"                                         \
      "rondo_image_" #name                         \
      ":\n"                                        \
      ".incbin \"" path                            \
      "\"\n"                                       \
      ".hidden rondo_image_end_" #name             \
      "\n"                                         \
      ".global rondo_image_end_" #name             \
      "\n"                                         \
      "rondo_image_end_" #name                     \
      ":\n"                                        \
      ".byte 0\n"                                  \
      ".popsection\n");                            \
  extern "C" const std::byte rondo_image_##name[]; \
  extern "C" const std::byte rondo_image_end_##name[];
#include <cuda_images.inc>
#undef RONDO_IMAGE

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
#define RONDO_KERNELS_optimizer(name)                                                                      \
  {                                                                                                        \
    "rondo_optimizer_sgd", "rondo_optimizer_momentum", "rondo_optimizer_adam", "rondo_optimizer_adadelta", \
        "rondo_floats_add", "rondo_floats_scale", "rondo_add_squares"                                      \
  }
#define RONDO_IMAGE(name, kind, path) constexpr std::string_view kKernels_##name[] = RONDO_KERNELS_##kind(#name);
#include <cuda_images.inc>
#undef RONDO_IMAGE

}  // namespace

std::span<const KernelImage> kernel_images() {
  static const KernelImage images[] = {
#define RONDO_IMAGE(name, kind, path) \
  {#name, {rondo_image_##name, static_cast<size_t>(rondo_image_end_##name - rondo_image_##name)}, kKernels_##name},
#include <cuda_images.inc>
#undef RONDO_IMAGE
  };
  return images;
}

#else

std::span<const KernelImage> kernel_images() { return {}; }

#endif

const KernelImage* find_image(std::string_view kernel) {
  for (const KernelImage& image : kernel_images())
    for (const std::string_view name : image.kernels)
      if (name == kernel) return &image;
  return nullptr;
}

}  // namespace rondo
