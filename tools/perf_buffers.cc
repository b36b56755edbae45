#include "perf_buffers.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "perf_bench.h"

namespace rondo::tools {
namespace {

constexpr uint64_t kPageBytes = 4096;

uint64_t whole_pages(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }
uint64_t sets_of(const PerfOptions& o) { return static_cast<uint64_t>(std::max({1, o.rotate, o.aggregate})); }
/// Size of one place for at most this many bytes.
uint64_t stride(uint64_t bytes, uint64_t shift_bytes) {
  return whole_pages(std::max<uint64_t>(1, bytes + shift_bytes));
}

}  // namespace

PerfBuffers::Arenas PerfBuffers::arenas(const PerfOptions& o, int nranks) {
  uint64_t in = 0, out = 0;
  for (Dtype dtype : o.dtypes) {
    const CallShape shape = call_shape(*o.operation, dtype, nranks, o.max_bytes);
    const TypeRow types = types_of(o, dtype);
    in = std::max(in, shape.in_elems * dtype_bytes(types.input));
    out = std::max(out, shape.out_elems * dtype_bytes(types.output));
  }
  const uint64_t shift_bytes = static_cast<uint64_t>(o.unalign_elems) * 8;
  return {sets_of(o) * stride(in, shift_bytes), sets_of(o) * stride(out, shift_bytes)};
}
uint64_t PerfBuffers::arena_bytes(const PerfOptions& options, int nranks) {
  const Arenas a = arenas(options, nranks);
  return a.in_bytes + a.out_bytes;
}

PerfBuffers::PerfBuffers(const PerfOptions& options, rondo_comm* comm, int nranks, PerfDevice* device)
    : comm_(comm),
      device_(device),
      registered_(options.registered != 0 || device != nullptr),
      rotate_(options.rotate > 1),
      unalign_elems_(static_cast<uint64_t>(options.unalign_elems)),
      sets_(sets_of(options)),
      arenas_(arenas(options, nranks)) {
  in_ = allocate(arenas_.in_bytes);
  out_ = allocate(arenas_.out_bytes);
}

std::byte* PerfBuffers::allocate(uint64_t bytes) {
  void* memory = nullptr;
  if (registered_) {
    if (rondo_alloc(comm_, bytes, &memory) != RONDO_OK)
      throw PerfError(fmt::format("rondo_alloc of {} bytes: {}", bytes, rondo_last_error(comm_)));
  } else {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw PerfError(fmt::format("no memory for {} bytes: {}", bytes, std::strerror(errno)));
  }
  if (device_ != nullptr) device_->fill(static_cast<std::byte*>(memory), 0x5a, bytes);
  else std::memset(memory, 0x5a, bytes);  // page faults must not be measured
  return static_cast<std::byte*>(memory);
}

PerfBuffers::~PerfBuffers() {
  if (registered_) return;
  if (in_ != nullptr) munmap(in_, arenas_.in_bytes);
  if (out_ != nullptr) munmap(out_, arenas_.out_bytes);
}

void PerfBuffers::use(const CallShape& shape, const TypeRow& types) {
  const uint64_t cursor_bytes = cursor_ * in_stride_;  // cold: continue behind the last shape's place
  in_shift_ = unalign_elems_ * dtype_bytes(types.input);
  out_shift_ = unalign_elems_ * dtype_bytes(types.output);
  in_stride_ = stride(shape.in_elems * dtype_bytes(types.input), in_shift_);
  out_stride_ = stride(shape.out_elems * dtype_bytes(types.output), out_shift_);
  num_places_ = rotate_ ? std::min(arenas_.in_bytes / in_stride_, arenas_.out_bytes / out_stride_) : sets_;
  cursor_ = rotate_ ? cursor_bytes / in_stride_ % num_places_ : 0;
}

Place PerfBuffers::place(uint64_t ahead) const {
  const uint64_t index = (cursor_ + ahead) % num_places_;
  return {in_ + index * in_stride_ + in_shift_, out_ + index * out_stride_ + out_shift_};
}

}  // namespace rondo::tools
