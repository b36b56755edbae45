// Detects graph capture of a stream, and excludes work from it.
#pragma once

#include "device/driver/driver.h"

namespace rondo::cuda {

/// The id of the capture that the stream is part of, or 0.
inline uint64_t capture_of(Stream stream) {
  int status = kCaptureNone;
  uint64_t id = 0;
  const Driver* d = driver();
  if (d->stream_capture_info(stream, &status, &id, nullptr, nullptr, nullptr) != kSuccess) return 0;
  return status == kCaptureActive ? id : 0;
}
inline bool captures(Stream stream) { return capture_of(stream) != 0; }

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
