// A kernel image: a fatbin with kernels that the driver loads, embedded into the library.
//
// Each room with kernels has a table of images (device/engine/images.h, fsdp/images.h). An image holds its kernels for
// every architecture that was compiled for, and as PTX for later ones. A library built without nvcc has no images.
//
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

using KernelImages = std::span<const KernelImage>;

/// The image with this kernel; nullptr when there is none. O(kernels).
inline const KernelImage* find_image(KernelImages images, std::string_view kernel) {
  for (const KernelImage& image : images)
    for (const std::string_view name : image.kernels)
      if (name == kernel) return &image;
  return nullptr;
}

}  // namespace rondo

/// Embeds the file `path` as rondo_image_NAME, up to rondo_image_end_NAME. At file scope, outside of any namespace.
#define RONDO_EMBED_IMAGE(name, path)              \
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
/// The row of an embedded image in a table of KernelImages.
#define RONDO_IMAGE_ROW(name, kernels) \
  { #name, {rondo_image_##name, static_cast < size_t>(rondo_image_end_##name - rondo_image_##name) }, kernels }
