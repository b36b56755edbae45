// Implements rondo/fsdp/device.h for a CUDA device: streams, events and the kernels of optimizer_kernels.h. Every call
// makes the device's primary context current and then restores the caller's context.
// Thread safety: one thread at a time.
#pragma once

#include <map>
#include <string_view>
#include <unordered_map>

#include "device/driver/handles.h"
#include "device/driver/kernel_loader.h"
#include "fsdp/host_training.h"
#include "fsdp/optimizer_kernels.h"

namespace rondo {

/// Pinned host memory: device copies from it and to it are asynchronous.
class PinnedTraining final : public HostTraining {
 public:
  explicit PinnedTraining(cuda::Context context) : context_(context) {}
  Expected<std::byte*> allocate(uint64_t bytes) override;
  void free(std::byte* memory) override { memory_.erase(memory); }

 private:
  const cuda::Context context_;
  std::unordered_map<std::byte*, cuda::PinnedMemory> memory_;
};

class CudaTraining final : public fsdp::Device {
 public:
  static Expected<std::shared_ptr<CudaTraining>> make(int ordinal, void* compute_stream);

  Memory memory() const override { return Memory::kCuda; }
  int ordinal() const override { return context_.device(); }
  Device& host() override { return host_; }
  void* stream(fsdp::Line line) const override { return stream_of(line); }
  Expected<std::byte*> allocate(uint64_t bytes) override;
  void free(std::byte* memory) override;
  Expected<Event*> make_event() override;
  void destroy(Event* event) override;
  Status record(Event* event, fsdp::Line line) override;
  Status wait(fsdp::Line line, Event* event) override;
  Status await(Event* event) override;
  Status synchronize(fsdp::Line line) override;
  Status zero(void* at, uint64_t bytes) override;
  Status copy(fsdp::Line line, void* to, const void* from, uint64_t bytes) override;
  Status read(void* to_host, const void* from, uint64_t bytes) override;
  Status write(void* to, const void* from_host, uint64_t bytes) override;
  Status step(const fsdp::StepCall& call) override;
  Status add(uint64_t num_elems, float* to, const float* from) override;
  Status scale(uint64_t num_elems, float factor, float* x) override;
  Status add_squares(uint64_t num_elems, const float* x, double* lanes) override;

 private:
  CudaTraining(cuda::PrimaryContext context, cuda::Stream compute, cuda::OwnedStream communication)
      : context_(std::move(context)),
        compute_(compute),
        communication_(std::move(communication)),
        kernels_(KernelLoader::of(context_.get())),
        host_(context_.get()) {}
  cuda::Stream stream_of(fsdp::Line line) const {
    return line == fsdp::Line::kCompute ? compute_ : communication_.get();
  }
  Expected<std::byte*> zeroed(cuda::DeviceMemory memory);
  Status launch(std::string_view kernel, OptimizerArgs& args, uint64_t threads_wanted);

  cuda::PrimaryContext context_;  // first, because the other members belong to it
  const cuda::Stream compute_;
  cuda::OwnedStream communication_;
  std::shared_ptr<KernelLoader> kernels_;
  PinnedTraining host_;
  std::unordered_map<std::byte*, cuda::DeviceMemory> memory_;
  std::multimap<uint64_t, cuda::DeviceMemory> spare_;  // freed blocks by size, kept for the next allocation
};

}  // namespace rondo
