// A group of threads that work on one message together, as seen by the ends of a FIFO. SoloGroup: one thread calls an
// end. On the host it works alone; in a kernel, the block's barriers surround the calls.
#pragma once

#include "base/host_device.h"

namespace rondo {

struct SoloGroup {
  RONDO_HOST_DEVICE static constexpr bool leader() { return true; }
  RONDO_HOST_DEVICE static void sync() {}
};

}  // namespace rondo
