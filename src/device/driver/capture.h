// Detects graph capture of a stream, and excludes work from it.
#pragma once

#include "device/driver/driver.h"

namespace rondo::cuda {

inline bool captures(Stream stream) {
  int status = kCaptureNone;
  const Driver* d = driver();
  if (d->stream_capture_info(stream, &status, nullptr, nullptr, nullptr, nullptr) != kSuccess) return false;
  return status == kCaptureActive;
}

/// Permits copies and allocations for set-up while the caller's stream is captured. They are not part of the graph.
class OutsideCapture {
 public:
  OutsideCapture() { driver()->thread_exchange_capture_mode(&mode_); }
  ~OutsideCapture() { driver()->thread_exchange_capture_mode(&mode_); }
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;

 private:
  int mode_ = 2;  // relaxed
};

}  // namespace rondo::cuda
