// Ranks on fake devices whose lines are slow: missing events show as wrong orders sooner or later. Needs "// links:
// host_kernels".
#pragma once

#include <chrono>
#include <memory>
#include <random>
#include <thread>

#include "api/communicator_impl.h"
#include "device/driver/handles.h"
#include "fsdp/training.h"
#include "support/emulated_cuda.h"

namespace rondo::fsdp::testing {

/// Maximum sleep of a line before the next operation.
struct Delays {
  int compute_us = 0, communication_us = 0;
};

/// A CUDA device with its own compute stream.
class FakeDevice final : public Device {
 public:
  FakeDevice(Communicator& comm, Delays delays) : delays_(delays), random_(static_cast<uint32_t>(comm.rank())) {
    EXPECT_EQ(cuda::driver()->context_set_current(impl_of(comm).device()->transport().context()), cuda::kSuccess);
    auto stream = cuda::OwnedStream::make();
    EXPECT_TRUE(stream.ok());
    compute_ = std::move(*stream);
    auto device = cuda_device(device_of(comm), compute_.get());
    EXPECT_TRUE(device.ok()) << device.status().to_string();
    device_ = std::move(*device);
  }
  rondo::Memory memory() const override { return device_->memory(); }
  int ordinal() const override { return device_->ordinal(); }
  Device& host() override { return device_->host(); }
  void* stream(Line line) const override { return device_->stream(line); }
  Expected<std::byte*> allocate(uint64_t bytes) override { return device_->allocate(bytes); }
  void free(std::byte* memory) override { device_->free(memory); }
  Expected<Event*> make_event() override { return device_->make_event(); }
  void destroy(Event* event) override { device_->destroy(event); }
  Status record(Event* event, Line line) override { return device_->record(event, line); }
  Status wait(Line line, Event* event) override {
    RONDO_TRY(device_->wait(line, event));
    dawdle(line);
    return {};
  }
  Status await(Event* event) override { return device_->await(event); }
  Status synchronize(Line line) override { return device_->synchronize(line); }
  Status zero(void* at, uint64_t bytes) override { return device_->zero(at, bytes); }
  Status copy(Line line, void* to, const void* from, uint64_t bytes) override {
    dawdle(line);
    return device_->copy(line, to, from, bytes);
  }
  Status read(void* to, const void* from, uint64_t bytes) override { return device_->read(to, from, bytes); }
  Status write(void* to, const void* from, uint64_t bytes) override { return device_->write(to, from, bytes); }
  Status step(const StepCall& call) override {
    dawdle(Line::kCompute);
    return device_->step(call);
  }
  Status add(uint64_t n, float* to, const float* from) override { return device_->add(n, to, from); }
  Status scale(uint64_t n, float by, float* x) override { return device_->scale(n, by, x); }
  Status add_squares(uint64_t n, const float* x, double* lanes) override { return device_->add_squares(n, x, lanes); }

 private:
  void dawdle(Line line) {
    const int most = line == Line::kCompute ? delays_.compute_us : delays_.communication_us;
    if (most == 0) return;
    const auto sleep = [](void* us) {
      std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<uintptr_t>(us)));
    };
    const uintptr_t us = random_() % static_cast<uint32_t>(most);
    EXPECT_EQ(cuda::driver()->launch_host_function(static_cast<cuda::Stream>(stream(line)), sleep,
                                                   reinterpret_cast<void*>(us)),
              cuda::kSuccess);
  }

  const Delays delays_;
  std::mt19937 random_;
  cuda::OwnedStream compute_;
  std::shared_ptr<Device> device_;
};

/// Trains on one fake device per rank, and leaves nothing there.
inline void expect_same_on_devices(Setting s, Delays delays = {}, float tolerance = 0) {
  rondo::testing::FakeMachine machine = rondo::testing::FakeMachine::uniform(s.plan.nranks);
  rondo::testing::EmulatedCuda cuda(machine);
  s.memory = rondo::Memory::kCuda;
  s.communicator += "p2p_level = sys\ndevice_blocks = -3\n";
  s.device = [delays](Communicator& comm) { return std::make_shared<FakeDevice>(comm, delays); };
  expect_same_training(World::kThreads, s, tolerance);
  EXPECT_EQ(cuda.fake().leaks(), "");
}

}  // namespace rondo::fsdp::testing
