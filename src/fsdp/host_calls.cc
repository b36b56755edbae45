#include "fsdp/host_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace rondo::fsdp {
namespace {

constexpr uint64_t kMostBytes = 4 << 20;  // larger messages are cut into pieces of this size

}  // namespace

Expected<Block> allocate(Device& device, uint64_t bytes) {
  RONDO_TRY_ASSIGN(std::byte * memory, device.allocate(bytes));
  return Block(memory, Freed{&device});
}

Expected<std::byte*> HostCalls::room(uint64_t bytes) {
  if (room_ == nullptr || room_bytes_ < bytes) {
    room_.reset();
    RONDO_TRY_ASSIGN(room_, allocate(device_, bytes));
    room_bytes_ = bytes;
  }
  return room_.get();
}

// Returns when the call is complete on the device.
template <class Call>
Status HostCalls::run(uint32_t promises, const Call& call) {
  CallOptions options;
  options.promises = promises;
  options.stream = device_.stream(Line::kCompute);
  Work work;
  RONDO_TRY(call(&options, &work));
  return work.wait();
}

Status HostCalls::all_gather(const void* in, void* out, uint64_t n, Dtype dtype) {
  if (direct()) return comm_.all_gather(in, out, n, dtype);
  const uint64_t mine = n * dtype_bytes(dtype), all = mine * static_cast<uint64_t>(comm_.size());
  RONDO_TRY_ASSIGN(std::byte* const at, room(all));
  std::byte* const own = at + mine * static_cast<uint64_t>(comm_.rank());
  RONDO_TRY(device_.write(own, in, mine));
  RONDO_TRY(run(0, [&](const CallOptions* o, Work* w) { return comm_.all_gather(own, at, n, dtype, o, w); }));
  return device_.read(out, at, all);
}

Status HostCalls::broadcast(void* values, uint64_t n, Dtype dtype, Rank root) {
  if (direct()) return comm_.broadcast(values, values, n, dtype, root);
  RONDO_TRY_ASSIGN(std::byte* const at, room(n * dtype_bytes(dtype)));
  if (comm_.rank() == root) RONDO_TRY(device_.write(at, values, n * dtype_bytes(dtype)));
  RONDO_TRY(run(0, [&](const CallOptions* o, Work* w) { return comm_.broadcast(at, at, n, dtype, root, o, w); }));
  return device_.read(values, at, n * dtype_bytes(dtype));
}

Status HostCalls::all_reduce(void* values, uint64_t n, Dtype dtype, Op op, uint32_t promises) {
  CallOptions options;
  options.promises = promises;
  if (direct()) return comm_.all_reduce(values, values, n, dtype, op, &options);
  RONDO_TRY_ASSIGN(std::byte* const at, room(n * dtype_bytes(dtype)));
  RONDO_TRY(device_.write(at, values, n * dtype_bytes(dtype)));
  RONDO_TRY(run(promises, [&](const CallOptions* o, Work* w) { return comm_.all_reduce(at, at, n, dtype, op, o, w); }));
  return device_.read(values, at, n * dtype_bytes(dtype));
}

// Sender and receiver cut messages at the same places.
Status HostCalls::send(const std::byte* values, uint64_t n, Dtype dtype, Rank peer) {
  if (direct()) return comm_.send(values, n, dtype, peer);
  const uint64_t size = dtype_bytes(dtype), most = kMostBytes / size;
  for (uint64_t first = 0; first < n; first += most) {
    const uint64_t count = std::min(most, n - first);
    RONDO_TRY_ASSIGN(std::byte* const at, room(count * size));
    RONDO_TRY(device_.copy(Line::kCompute, at, values + first * size, count * size));
    RONDO_TRY(run(0, [&](const CallOptions* o, Work* w) { return comm_.send(at, count, dtype, peer, o, w); }));
  }
  return {};
}

Status HostCalls::recv(std::byte* values, uint64_t n, Dtype dtype, Rank peer) {
  if (direct()) return comm_.recv(values, n, dtype, peer);
  const uint64_t size = dtype_bytes(dtype), most = kMostBytes / size;
  for (uint64_t first = 0; first < n; first += most) {
    const uint64_t count = std::min(most, n - first);
    RONDO_TRY_ASSIGN(std::byte* const at, room(count * size));
    RONDO_TRY(run(0, [&](const CallOptions* o, Work* w) { return comm_.recv(at, count, dtype, peer, o, w); }));
    RONDO_TRY(device_.read(values + first * size, at, count * size));
  }
  return {};
}

Status HostCalls::agree(const Status& mine) {
  const auto code = static_cast<int32_t>(mine.code());
  std::vector<int32_t> codes(static_cast<size_t>(comm_.size()));
  RONDO_TRY(all_gather(&code, codes.data(), 1, Dtype::kInt32));
  const auto failed = std::ranges::find_if(codes, [](int32_t c) { return c != 0; });
  if (failed == codes.end()) return {};
  const auto rank = static_cast<Rank>(failed - codes.begin());
  char text[2048] = {};
  if (rank == comm_.rank()) std::memcpy(text, mine.message().data(), std::min(mine.message().size(), sizeof text - 1));
  RONDO_TRY(broadcast(text, sizeof text, Dtype::kUint8, rank));
  return Status(static_cast<StatusCode>(*failed), fmt::format("rank {}: {}", rank, text));
}

}  // namespace rondo::fsdp
