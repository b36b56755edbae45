// NoCancel: pthread_cancel() takes effect after the call has returned.
//
// The library is compiled without exceptions: a thread that ended inside it would leave locks taken and memory
// allocated. A cancelled thread therefore ends at the first cancellation point after the call; rondo_comm_abort ends
// the call. A path that only reads and writes memory has no cancellation point and needs no guard.
//
// Thread safety: belongs to the thread that makes it.
#pragma once

#include <pthread.h>

namespace rondo {

class NoCancel {
 public:
  NoCancel() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancel() { pthread_setcancelstate(before_, nullptr); }
  NoCancel(const NoCancel&) = delete;
  NoCancel& operator=(const NoCancel&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace rondo
