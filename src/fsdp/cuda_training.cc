// Implements rondo/fsdp/device.h for a CUDA device: streams, events and the kernels of optimizer_kernels.h. Every call
// makes the device's primary context current and then restores the caller's context.
// Thread safety: one thread at a time.
#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "device/driver/handles.h"
#include "device/driver/kernel_loader.h"
#include "fsdp/host_training.h"
#include "fsdp/images.h"
#include "fsdp/optimizer_kernels.h"

namespace rondo {
namespace {

constexpr uint32_t kMostBlocks = 1024;  // a larger grid exceeds every device's capacity and only starts later

cuda::DevicePtr at(const void* p) { return reinterpret_cast<cuda::DevicePtr>(p); }
cuda::Event event_of(fsdp::Device::Event* e) { return reinterpret_cast<cuda::OwnedEvent*>(e)->get(); }

std::string_view kernel_of(const fsdp::OptimizerConfig& c) {
  switch (c.rule) {
    case fsdp::Rule::kSgd: return c.momentum != 0 ? "rondo_optimizer_momentum" : "rondo_optimizer_sgd";
    case fsdp::Rule::kAdam:
    case fsdp::Rule::kAdamW: return "rondo_optimizer_adam";
    case fsdp::Rule::kAdadelta: return "rondo_optimizer_adadelta";
  }
  return {};
}

/// Pinned host memory: device copies from it and to it are asynchronous.
class PinnedTraining final : public HostTraining {
 public:
  explicit PinnedTraining(cuda::Context context) : context_(context) {}
  Expected<std::byte*> allocate(uint64_t bytes) override {
    const cuda::CurrentContext current(context_);
    RONDO_TRY(current.status());
    RONDO_TRY_ASSIGN(auto made, cuda::PinnedMemory::make(std::max<uint64_t>(64, bytes)));
    auto* const begin = made.as();
    memory_.emplace(begin, std::move(made));
    return begin;
  }
  void free(std::byte* memory) override { memory_.erase(memory); }

 private:
  const cuda::Context context_;
  std::unordered_map<std::byte*, cuda::PinnedMemory> memory_;
};

class CudaTraining final : public fsdp::Device {
 public:
  static Expected<std::shared_ptr<CudaTraining>> make(int ordinal, void* compute_stream) {
    RONDO_TRY_ASSIGN(const cuda::Driver* d, cuda::need_driver());
    int count = 0;
    RONDO_TRY(cuda::check(d->device_count(&count), "cuDeviceGetCount"));
    if (ordinal < 0 || ordinal >= count)
      return invalid_argument("ordinal = {}: this process sees {} CUDA devices, numbered from 0", ordinal, count);
    RONDO_TRY_ASSIGN(auto context, cuda::PrimaryContext::retain(ordinal));
    const cuda::CurrentContext current(context.get());
    RONDO_TRY(current.status());
    RONDO_TRY_ASSIGN(auto communication, cuda::OwnedStream::make());
    std::shared_ptr<CudaTraining> made(
        new CudaTraining(std::move(context), static_cast<cuda::Stream>(compute_stream), std::move(communication)));
    // Loading a kernel may wait for all work of the context, so this is done before the first step.
#define RONDO_X(name, ...) RONDO_TRY(made->kernels_->find(optimizer_images(), #name).status());
    RONDO_OPTIMIZER_KERNELS(RONDO_X)
#undef RONDO_X
    return made;
  }

  Memory memory() const override { return Memory::kCuda; }
  int ordinal() const override { return context_.device(); }
  Device& host() override { return host_; }
  void* stream(fsdp::Line line) const override { return stream_of(line); }
  Expected<std::byte*> allocate(uint64_t bytes) override {
    const cuda::CurrentContext current(context_.get());
    RONDO_TRY(current.status());
    const uint64_t need = std::max<uint64_t>(64, bytes);
    cuda::DeviceMemory memory;
    if (const auto fits = spare_.lower_bound(need); fits != spare_.end() && fits->first <= 2 * need) {
      memory = std::move(fits->second);
      spare_.erase(fits);
    } else {
      RONDO_TRY_ASSIGN(memory, cuda::DeviceMemory::make(need));
    }
    RONDO_TRY(cuda::clear(compute_, memory.get(), memory.size_bytes()));
    auto* const begin = memory.as();
    memory_.emplace(begin, std::move(memory));
    return begin;
  }
  // cuMemFree waits for all work of the context, also for a peer's kernel if ranks are threads on one device. That
  // kernel may be waiting for this rank. Therefore memory is kept, not freed.
  void free(std::byte* memory) override {
    const auto it = memory_.find(memory);
    if (it == memory_.end()) return;
    const uint64_t bytes = it->second.size_bytes();
    spare_.emplace(bytes, std::move(it->second));
    memory_.erase(it);
  }
  Expected<Event*> make_event() override {
    const cuda::CurrentContext current(context_.get());
    RONDO_TRY(current.status());
    RONDO_TRY_ASSIGN(auto made, cuda::OwnedEvent::make());
    return reinterpret_cast<Event*>(new cuda::OwnedEvent(std::move(made)));
  }
  void destroy(Event* event) override { delete reinterpret_cast<cuda::OwnedEvent*>(event); }
  Status record(Event* event, fsdp::Line line) override {
    const cuda::CurrentContext current(context_.get());
    return cuda::record(event_of(event), stream_of(line));
  }
  Status wait(fsdp::Line line, Event* event) override {
    const cuda::CurrentContext current(context_.get());
    return cuda::wait_for(stream_of(line), event_of(event));
  }
  Status await(Event* event) override {
    const cuda::CurrentContext current(context_.get());
    return cuda::check(cuda::driver()->event_synchronize(event_of(event)), "cuEventSynchronize");
  }
  Status synchronize(fsdp::Line line) override {
    const cuda::CurrentContext current(context_.get());
    return cuda::check(cuda::driver()->stream_synchronize(stream_of(line)), "cuStreamSynchronize");
  }
  Status zero(void* to, uint64_t bytes) override {
    if (bytes == 0) return {};
    const cuda::CurrentContext current(context_.get());
    return cuda::check(cuda::driver()->memset_d8_async(at(to), 0, bytes, compute_), "cuMemsetD8Async");
  }
  Status copy(fsdp::Line line, void* to, const void* from, uint64_t bytes) override {
    if (bytes == 0 || to == from) return {};
    const cuda::CurrentContext current(context_.get());
    return cuda::check(cuda::driver()->memcpy_async(at(to), at(from), bytes, stream_of(line)), "cuMemcpyAsync");
  }
  Status read(void* to_host, const void* from, uint64_t bytes) override {
    if (bytes == 0) return {};
    const cuda::CurrentContext current(context_.get());
    return cuda::download(compute_, to_host, at(from), bytes);
  }
  Status write(void* to, const void* from_host, uint64_t bytes) override {
    if (bytes == 0) return {};
    const cuda::CurrentContext current(context_.get());
    return cuda::upload(compute_, at(to), from_host, bytes);
  }
  Status step(const fsdp::StepCall& c) override {
    OptimizerArgs args{c.params, c.grads,     {c.states[0], c.states[1]},
                       nullptr,  c.num_elems, rule_constants(c.config, c.step, c.scale)};
    return launch(kernel_of(c.config), args, c.num_elems / 4);
  }
  Status add(uint64_t n, float* to, const float* from) override {
    OptimizerArgs args{to, from, {}, nullptr, n, {}};
    return launch("rondo_floats_add", args, n / 4);
  }
  Status scale(uint64_t n, float factor, float* x) override {
    OptimizerArgs args{x, x, {}, nullptr, n, {}};
    args.constants.scale = factor;
    return launch("rondo_floats_scale", args, n / 4);
  }
  Status add_squares(uint64_t n, const float* x, double* lanes) override {
    OptimizerArgs args{nullptr, x, {}, lanes, n, {}};
    return launch("rondo_add_squares", args, std::min<uint64_t>(n, kSquareLanes));
  }

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
  Status launch(std::string_view kernel, OptimizerArgs& args, uint64_t threads_wanted) {
    if (args.num_elems == 0) return {};
    const cuda::CurrentContext current(context_.get());
    RONDO_TRY(current.status());
    RONDO_TRY_ASSIGN(const cuda::Function function, kernels_->find(optimizer_images(), kernel));
    void* params[] = {&args};
    const auto blocks = static_cast<unsigned>(
        std::clamp<uint64_t>((threads_wanted + kOptimizerThreads - 1) / kOptimizerThreads, 1, kMostBlocks));
    cuda::LaunchConfig config{blocks, 1, 1, kOptimizerThreads, 1, 1, 0, compute_, nullptr, 0};
    return cuda::check(cuda::driver()->launch_kernel(&config, function, params, nullptr), "cuLaunchKernelEx");
  }

  cuda::PrimaryContext context_;  // first, because the other members belong to it
  const cuda::Stream compute_;
  cuda::OwnedStream communication_;
  std::shared_ptr<KernelLoader> kernels_;
  PinnedTraining host_;
  std::unordered_map<std::byte*, cuda::DeviceMemory> memory_;
  std::multimap<uint64_t, cuda::DeviceMemory> spare_;  // freed blocks by size, kept for the next allocation
};

}  // namespace
}  // namespace rondo

namespace rondo::fsdp {

Expected<std::shared_ptr<Device>> cuda_device(int ordinal, void* compute_stream) {
  RONDO_TRY_ASSIGN(auto made, CudaTraining::make(ordinal, compute_stream));
  return std::shared_ptr<Device>(std::move(made));
}

}  // namespace rondo::fsdp
