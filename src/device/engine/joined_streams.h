// JoinedStreams: one stream that carries work for the callers' streams. It begins after their earlier work, and their
// later work begins after it. Thread safety: one thread; the device's context is current.
#pragma once

#include <algorithm>
#include <vector>

#include "device/driver/handles.h"

namespace rondo {

class JoinedStreams {
 public:
  explicit JoinedStreams(cuda::Stream carrier) : carrier_(carrier) {}
  cuda::Stream carrier() const { return carrier_; }
  void add(cuda::Stream stream) {
    if (stream != carrier_ && std::find(others_.begin(), others_.end(), stream) == others_.end())
      others_.push_back(stream);
  }
  Status begin() {
    if (others_.empty()) return {};
    RONDO_TRY_ASSIGN(event_, cuda::OwnedEvent::make());
    for (const cuda::Stream s : others_) {
      RONDO_TRY(cuda::record(event_.get(), s));
      RONDO_TRY(cuda::wait_for(carrier_, event_.get()));
    }
    return {};
  }
  Status end() {
    if (others_.empty()) return {};
    RONDO_TRY(cuda::record(event_.get(), carrier_));
    for (const cuda::Stream s : others_) RONDO_TRY(cuda::wait_for(s, event_.get()));
    return {};
  }

 private:
  cuda::Stream carrier_;
  std::vector<cuda::Stream> others_;
  cuda::OwnedEvent event_;
};

}  // namespace rondo
