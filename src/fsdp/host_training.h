// Implements rondo/fsdp/device.h for host memory. Every call is complete when it returns. The CUDA kernels are in
// fsdp/optimizer_kernels.h.
// Thread safety: one thread at a time.
#pragma once

#include <cstring>

#include "fsdp/optimizer_rules.h"
#include "rondo/fsdp/device.h"

namespace rondo {

/// step: counted from 1.
RuleConstants rule_constants(const fsdp::OptimizerConfig& config, int64_t step, float scale);

class HostTraining : public fsdp::Device {
 public:
  Memory memory() const final { return Memory::kHost; }
  int ordinal() const final { return -1; }
  Device& host() final { return *this; }
  void* stream(fsdp::Line) const final { return nullptr; }
  Expected<std::byte*> allocate(uint64_t bytes) override;
  void free(std::byte* memory) override;
  Expected<Event*> make_event() final { return static_cast<Event*>(nullptr); }
  void destroy(Event*) final {}
  Status record(Event*, fsdp::Line) final { return {}; }
  Status wait(fsdp::Line, Event*) final { return {}; }
  Status await(Event*) final { return {}; }
  Status synchronize(fsdp::Line) final { return {}; }
  Status zero(void* at, uint64_t bytes) final {
    std::memset(at, 0, bytes);
    return {};
  }
  Status copy(fsdp::Line, void* to, const void* from, uint64_t bytes) final { return read(to, from, bytes); }
  Status read(void* to_host, const void* from, uint64_t bytes) final {
    if (bytes != 0) std::memcpy(to_host, from, bytes);
    return {};
  }
  Status write(void* to, const void* from_host, uint64_t bytes) final { return read(to, from_host, bytes); }
  Status step(const fsdp::StepCall& c) final {
    fsdp::optimizer_step(c.config, c.step, c.scale, c.num_elems, c.params, c.grads, c.states);
    return {};
  }
  Status add(uint64_t num_elems, float* to, const float* from) final;
  Status scale(uint64_t num_elems, float factor, float* x) final;
  Status add_squares(uint64_t num_elems, const float* x, double* lanes) final;
};

}  // namespace rondo
