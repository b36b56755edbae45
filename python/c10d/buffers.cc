#include "buffers.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <numeric>
#include <optional>

namespace rondo_c10d {
namespace {

int64_t total(const std::vector<at::Tensor>& parts) {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                         [](int64_t n, const auto& t) { return n + t.numel(); });
}

// Returns the parts as one tensor if they follow one another in memory.
std::optional<at::Tensor> as_one(const std::vector<at::Tensor>& parts) {
  const char* next = static_cast<const char*>(parts[0].const_data_ptr());
  for (const at::Tensor& t : parts) {
    if (!t.is_contiguous() || t.is_conj() || t.is_neg() || !t.is_alias_of(parts[0]) || t.const_data_ptr() != next)
      return std::nullopt;
    next += t.nbytes();
  }
  return parts[0].as_strided({total(parts)}, {1});
}

}  // namespace

void Buffers::finish() const {
  if (copies.empty()) return;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (const auto& [from, to] : copies) to.copy_(from);
}

at::Tensor to_read(const at::Tensor& t) { return t.resolve_conj().resolve_neg().contiguous(); }

at::Tensor to_write(const at::Tensor& t, Buffers* b) {
  at::assert_no_internal_overlap(t);
  if (t.is_contiguous() && !t.is_conj() && !t.is_neg()) return t;
  const at::Tensor staging = at::empty(t.sizes(), t.options().memory_format(at::MemoryFormat::Contiguous));
  b->copies.emplace_back(staging, t);
  return staging;
}

at::Tensor to_update(const at::Tensor& t, Buffers* b) {
  at::assert_no_internal_overlap(t);
  const at::Tensor memory = to_read(t);
  if (!memory.is_same(t)) b->copies.emplace_back(memory, t);
  return memory;
}

at::Tensor parts_to_read(const std::vector<at::Tensor>& parts) {
  if (auto one = as_one(parts)) return *one;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& t : parts) flat.push_back(to_read(t).view({-1}));
  return at::cat(flat);
}

at::Tensor parts_to_write(const std::vector<at::Tensor>& parts, Buffers* b) {
  if (auto one = as_one(parts)) return *one;
  const at::Tensor staging = at::empty({total(parts)}, parts[0].options().memory_format(at::MemoryFormat::Contiguous));
  int64_t at = 0;
  for (const at::Tensor& t : parts) {
    b->copies.emplace_back(staging.narrow(0, at, t.numel()).view(t.sizes()), t);
    at += t.numel();
  }
  return staging;
}

}  // namespace rondo_c10d
