// The images of the collectives' kernels: one for each dtype, one for mixed types, one for copies. A communicator of
// device memory loads all. Kernel names are those of lower.h.
#pragma once

#include "device/driver/images.h"

namespace rondo {

/// None in a library built without nvcc.
KernelImages collective_images();

}  // namespace rondo
