// All other functions of the table, so that none is missing. These are weak; answers.cc has strong ones.
#include "device/driver/driver.h"

using namespace rondo::cuda;  // NOLINT: the prototypes name its types

extern "C" {
#define RONDO_X(member, symbol, args) \
  __attribute__((weak, visibility("default"))) Result symbol args { return kErrorNotSupported; }
RONDO_CUDA_DRIVER(RONDO_X)
#undef RONDO_X
}
