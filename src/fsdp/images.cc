#include "fsdp/images.h"

#include "fsdp/optimizer_kernels.h"

#if defined(RONDO_OPTIMIZER_FATBIN)

RONDO_EMBED_IMAGE(optimizer, RONDO_OPTIMIZER_FATBIN)

rondo::KernelImages rondo::optimizer_images() {
#define RONDO_X(name, ...) #name,
  static constexpr std::string_view kernels[] = {RONDO_OPTIMIZER_KERNELS(RONDO_X)};
#undef RONDO_X
  static const KernelImage images[] = {RONDO_IMAGE_ROW(optimizer, kernels)};
  return images;
}

#else

rondo::KernelImages rondo::optimizer_images() { return {}; }

#endif
