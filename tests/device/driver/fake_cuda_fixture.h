// A fixture for tests of the fake CUDA driver, and a kernel that waits.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "device/driver/handles.h"
#include "support/fake_cuda/fake_cuda.h"

namespace rondo::testing {

using namespace rondo::cuda;  // NOLINT: tests of the driver's own names

// The driver's functions, with the first device's context current.
class Fake : public ::testing::Test {
 protected:
  void start(FakeMachine machine = FakeMachine::uniform(2)) {
    machine.limits = {};  // whatever FAKE_CUDA asks for
    cuda_ = std::make_unique<FakeCuda>(std::move(machine));
    d = driver();
    for (int i = 0; i < count(); ++i) {
      Context c;
      ASSERT_EQ(d->primary_context_retain(&c, i), kSuccess);
      contexts.push_back(c);
    }
    ASSERT_EQ(d->context_set_current(contexts[0]), kSuccess);
  }
  void TearDown() override {
    if (cuda_ == nullptr) return;
    for (int i = 0; i < count(); ++i) EXPECT_EQ(d->primary_context_release(i), kSuccess);
    EXPECT_EQ(cuda_->leaks(), "");
    cuda_.reset();
  }
  int count() const {
    int n = 0;
    EXPECT_EQ(d->device_count(&n), kSuccess);
    return n;
  }
  DevicePtr alloc(size_t bytes) {
    DevicePtr p = 0;
    EXPECT_EQ(d->mem_alloc(&p, bytes), kSuccess);
    return p;
  }
  Stream stream(unsigned flags = kStreamNonBlocking) {
    Stream s = nullptr;
    EXPECT_EQ(d->stream_create(&s, flags, 0), kSuccess);
    return s;
  }
  Event event(unsigned flags = kEventDisableTiming) {
    Event e = nullptr;
    EXPECT_EQ(d->event_create(&e, flags), kSuccess);
    return e;
  }
  Function function(const char* name) {
    if (module_ == nullptr) {
      EXPECT_EQ(d->module_load_data(&module_, "image"), kSuccess);
    }
    Function f = nullptr;
    EXPECT_EQ(d->module_get_function(&f, module_, name), kSuccess);
    return f;
  }
  void unload() { EXPECT_EQ(d->module_unload(std::exchange(module_, nullptr)), kSuccess); }
  template <class Args>
  Result launch(Function f, Stream s, unsigned grid, Args args, std::vector<LaunchAttribute> attributes = {}) {
    LaunchConfig config{grid, 1, 1, 128, 1, 1, 0, s, attributes.data(), static_cast<unsigned>(attributes.size())};
    void* params[] = {&args};
    return d->launch_kernel(&config, f, params, nullptr);
  }
  static BatchMemOp mem_op(int kind, DevicePtr at, uint32_t value, unsigned flags = 0) {
    BatchMemOp op;
    std::memset(&op, 0, sizeof op);
    op.value.operation = kind;
    op.value.address = at;
    op.value.value = value;
    op.value.flags = flags;
    return op;
  }

  std::unique_ptr<FakeCuda> cuda_;
  const Driver* d = nullptr;
  std::vector<Context> contexts;
  Module module_ = nullptr;
};

// A word that a kernel waits for, and one that it sets first.
struct Meeting {
  std::atomic<int>* arrived;
  std::atomic<int>* wanted;
  int until;
};
inline void meet(const void* args, uint32_t grid, uint32_t) {
  const auto* m = static_cast<const Meeting*>(args);
  m->arrived->fetch_add(static_cast<int>(grid));
  while (m->wanted->load() < m->until) sched_yield();
}

}  // namespace rondo::testing
