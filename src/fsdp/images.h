// The image of the optimizer kernels. Their names are those of optimizer_kernels.h.
#pragma once

#include "device/driver/images.h"

namespace rondo {

/// None in a library built without nvcc.
KernelImages optimizer_images();

}  // namespace rondo
