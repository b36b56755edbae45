#include "fsdp/host_training.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>

#include "fsdp/host_optimizer.h"

namespace rondo {

static_assert(fsdp::kNormLanes == kSquareLanes);

Expected<std::byte*> HostTraining::allocate(uint64_t bytes) {
  const uint64_t whole = std::max<uint64_t>(64, (bytes + 63) / 64 * 64);
  auto* at = static_cast<std::byte*>(::aligned_alloc(64, whole));
  if (at == nullptr) return Status(StatusCode::kSystem, fmt::format("no memory for {} bytes of a unit", bytes));
  std::memset(at, 0, whole);
  return at;
}
void HostTraining::free(std::byte* memory) { ::free(memory); }

Status HostTraining::zero(void* at, uint64_t bytes) {
  std::memset(at, 0, bytes);
  return {};
}
Status HostTraining::copy(fsdp::Line, void* to, const void* from, uint64_t bytes) { return read(to, from, bytes); }
Status HostTraining::read(void* to, const void* from, uint64_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
  return {};
}
Status HostTraining::write(void* to, const void* from, uint64_t bytes) { return read(to, from, bytes); }

Status HostTraining::step(const fsdp::StepCall& c) {
  fsdp::optimizer_step(c.config, c.step, c.scale, c.num_elems, c.params, c.grads, c.states);
  return {};
}
Status HostTraining::add(uint64_t n, float* to, const float* from) {
  add_floats(n, to, from);
  return {};
}
Status HostTraining::scale(uint64_t n, float factor, float* x) {
  scale_floats(n, factor, x);
  return {};
}
Status HostTraining::add_squares(uint64_t n, const float* x, double* lanes) {
  rondo::add_squares(n, x, lanes);
  return {};
}

}  // namespace rondo

namespace rondo::fsdp {

std::shared_ptr<Device> host_device() { return std::make_shared<HostTraining>(); }

}  // namespace rondo::fsdp
