// A group of threads that work on one message together, as the ends of a FIFO see it. SoloGroup: one thread calls an
// end, and whoever it works with is its own business: on the host there is nobody, in a kernel the block's barriers
// stand around the calls.
#pragma once

#include "base/host_device.h"

namespace rondo {

struct SoloGroup {
  RONDO_HOST_DEVICE static constexpr bool leader() { return true; }
  RONDO_HOST_DEVICE static void sync() {}
};

}  // namespace rondo
