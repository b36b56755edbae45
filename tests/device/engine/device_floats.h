// Arrays, streams and worlds of ranks for tests of communicators of device memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "api/communicator_impl.h"
#include "device/driver/handles.h"
#include "support/emulated_cuda.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {

inline cuda::DevicePtr at(const void* p) { return reinterpret_cast<cuda::DevicePtr>(p); }

// A rank's array of floats on its device.
class Floats {
 public:
  Floats(Communicator& comm, size_t size) : size_(size) {
    auto made = comm.alloc(std::max<size_t>(1, size) * sizeof(float));
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    data_ = static_cast<float*>(*made);
  }
  float* data() const { return data_; }
  size_t size() const { return size_; }
  void set(const std::vector<float>& values) const {
    EXPECT_TRUE(is_ok(cuda::upload(nullptr, at(data_), values.data(), values.size() * sizeof(float))));
  }
  void set_simple(Rank rank) const {
    std::vector<float> v(size_);
    for (size_t i = 0; i < size_; ++i) v[i] = simple_value(rank, i);
    set(v);
  }
  std::vector<float> get() const {
    std::vector<float> v(size_);
    EXPECT_EQ(cuda::driver()->memcpy_device_to_host(v.data(), at(data_), size_ * sizeof(float)), 0);
    return v;
  }
  bool holds_simple_sum(int nranks, float times = 1) const {
    const std::vector<float> v = get();
    for (size_t i = 0; i < size_; ++i)
      if (v[i] != times * simple_sum(nranks, i)) return false;
    return true;
  }

 private:
  size_t size_;
  float* data_ = nullptr;
};

struct Stream {
  Stream() {
    auto made = cuda::OwnedStream::make();
    EXPECT_TRUE(made.ok());
    owned = std::move(*made);
  }
  cuda::Stream get() const { return owned.get(); }
  void wait() const { EXPECT_EQ(cuda::driver()->stream_synchronize(get()), 0); }
  CallOptions options() const {
    CallOptions o;
    o.stream = get();
    return o;
  }
  cuda::OwnedStream owned;
};

// Makes the device's context current in this thread, as callers of CUDA's runtime do.
inline void use_device(Communicator& comm) {
  EXPECT_EQ(cuda::driver()->context_set_current(impl_of(comm).device()->transport().context()), 0);
}

// Runs on both engines. `fn` gets the communicator with its context current.
template <class Fn>
void on_devices(int devices, int nranks, Fn fn, const std::vector<const char*>& engines = {"interpreter", "stream"}) {
  for (const char* engine : engines) {
    SCOPED_TRACE(engine);
    EmulatedCuda cuda(FakeMachine::uniform(devices));
    SpawnOptions options;
    options.config = device_config(std::string("device_blocks = -6\ndevice_engine = ") + engine);
    options.config.deadline_s = 30;
    spawn_threads(
        nranks,
        [&](Communicator& comm) -> Status {
          use_device(comm);
          return fn(comm);
        },
        options);
    EXPECT_EQ(cuda.fake().leaks(), "");
  }
}

}  // namespace rondo::testing
