// The images of the collectives' kernels: one for each dtype, one for mixed types, one for copies. A process loads only
// those that it uses. Kernel names are those of lower.h.
#pragma once

#include "device/driver/images.h"

namespace rondo {

/// None in a library built without nvcc.
KernelImages collective_images();

}  // namespace rondo
