// The group of threads that work on one message together. SoloGroup means that one thread calls an end of a FIFO. On
// the host, no other thread works on the message. In a kernel, the block's barriers are around the calls.
#pragma once

#include "base/host_device.h"

namespace rondo {

struct SoloGroup {
  RONDO_HOST_DEVICE static constexpr bool leader() { return true; }
  RONDO_HOST_DEVICE static void sync() {}
};

}  // namespace rondo
