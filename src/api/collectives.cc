// The collectives of Communicator: each makes one Call. This file checks and packs the counts of variable calls.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "api/communicator_impl.h"
#include "base/error.h"

namespace rondo {
namespace {

uint64_t hash_of(const PartExtents& parts, bool packed) {
  uint64_t h = packed ? 1 : 2;
  auto mix = [&h](uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
  };
  for (const uint64_t c : parts.counts) mix(c);
  return h;
}

Status bad(Rank rank, std::string_view argument, std::string_view why) {
  return invalid_argument("rank {}: {} {}", rank, argument, why);
}

// Reads the caller's counts and offsets of one side. If offsets is nullptr, the parts are packed.
Status read_parts(Rank rank, int nranks, std::string_view side, const uint64_t* counts, const uint64_t* offsets,
                  PartExtents* to) {
  const auto n = static_cast<size_t>(nranks);
  if (counts == nullptr) return bad(rank, fmt::format("{}counts", side), "is a null pointer");
  to->counts.assign(counts, counts + n);
  to->offsets.resize(n);
  uint64_t sum = 0;
  constexpr uint64_t kMost = UINT64_MAX / 16;
  for (size_t r = 0; r < n; ++r) {
    to->offsets[r] = offsets != nullptr ? offsets[r] : sum;
    const bool has_offset = offsets != nullptr && counts[r] <= kMost;  // if a check fails, it blames the offset
    if (counts[r] > kMost || to->offsets[r] > kMost - counts[r])
      return bad(rank, fmt::format("{}{}[{}]", side, has_offset ? "offsets" : "counts", r),
                 fmt::format("is {}: more bytes than 64 bits can count", has_offset ? offsets[r] : counts[r]));
    sum += counts[r];
    if (sum > kMost) return bad(rank, fmt::format("{}counts", side), "sum to more bytes than 64 bits can count");
  }
  return {};
}

// Checks that the parts of an output do not overlap.
Status check_disjoint(Rank rank, std::string_view side, const PartExtents& p) {
  std::vector<size_t> order(p.counts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::erase_if(order, [&](size_t r) { return p.counts[r] == 0; });
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p.offsets[a] < p.offsets[b]; });
  for (size_t i = 1; i < order.size(); ++i) {
    const size_t a = order[i - 1], b = order[i];
    if (p.offsets[a] + p.counts[a] > p.offsets[b])
      return bad(rank, fmt::format("{}offsets", side),
                 fmt::format("let the parts of ranks {} and {} overlap in the output", a, b));
  }
  return {};
}

uint64_t sum_of(const PartExtents& p) { return std::accumulate(p.counts.begin(), p.counts.end(), uint64_t{0}); }

// For all_gather_v and reduce_scatter_v, in which all ranks know all counts. The other side is only this rank's part.
Expected<std::shared_ptr<const VariableCounts>> known_counts(Rank rank, int nranks, const uint64_t* counts,
                                                             const uint64_t* offsets, bool gathers) {
  auto v = std::make_shared<VariableCounts>();
  PartExtents &many = gathers ? v->out : v->in, &one = gathers ? v->in : v->out;
  RONDO_TRY(read_parts(rank, nranks, "", counts, offsets, &many));
  if (gathers && offsets != nullptr) RONDO_TRY(check_disjoint(rank, "", many));
  one = {{counts[rank]}, {0}};
  v->packed = offsets == nullptr;
  v->agreed_hash = hash_of(many, v->packed);
  return std::shared_ptr<const VariableCounts>(std::move(v));
}

}  // namespace

Status Communicator::all_reduce(const void* in, void* out, uint64_t count_elems, Dtype dtype, Op op,
                                const CallOptions* options, Work* work) {
  return impl_->submit({{Collective::kAllReduce, count_elems, 0, dtype, op}, in, out}, options, work);
}
Status Communicator::reduce_scatter(const void* in, void* out, uint64_t count_elems, Dtype dtype, Op op,
                                    const CallOptions* options, Work* work) {
  return impl_->submit({{Collective::kReduceScatter, count_elems, 0, dtype, op}, in, out}, options, work);
}
Status Communicator::all_gather(const void* in, void* out, uint64_t count_elems, Dtype dtype,
                                const CallOptions* options, Work* work) {
  return impl_->submit({{Collective::kAllGather, count_elems, 0, dtype}, in, out}, options, work);
}
Status Communicator::broadcast(const void* in, void* out, uint64_t count_elems, Dtype dtype, Rank root,
                               const CallOptions* options, Work* work) {
  return impl_->submit({{Collective::kBroadcast, count_elems, root, dtype}, in, out}, options, work);
}
Status Communicator::reduce(const void* in, void* out, uint64_t count_elems, Dtype dtype, Op op, Rank root,
                            const CallOptions* options, Work* work) {
  return impl_->submit({{Collective::kReduce, count_elems, root, dtype, op}, in, out}, options, work);
}
Status Communicator::all_to_all(const void* in, void* out, uint64_t count_elems, Dtype dtype,
                                const CallOptions* options, Work* work) {
  return impl_->submit({{Collective::kAllToAll, count_elems, 0, dtype}, in, out}, options, work);
}
Status Communicator::gather(const void* in, void* out, uint64_t count_elems, Dtype dtype, Rank root,
                            const CallOptions* options, Work* work) {
  return impl_->submit({{Collective::kGather, count_elems, root, dtype}, in, out}, options, work);
}
Status Communicator::scatter(const void* in, void* out, uint64_t count_elems, Dtype dtype, Rank root,
                             const CallOptions* options, Work* work) {
  return impl_->submit({{Collective::kScatter, count_elems, root, dtype}, in, out}, options, work);
}
Status Communicator::barrier(const CallOptions* options, Work* work) {
  return impl_->submit({{Collective::kBarrier, 0, 0, Dtype::kUint8}}, options, work);
}
Status Communicator::send(const void* buffer, uint64_t count_elems, Dtype dtype, Rank peer, const CallOptions* options,
                          Work* work) {
  return impl_->submit({{Collective::kSend, count_elems, peer, dtype}, buffer}, options, work);
}
Status Communicator::recv(void* buffer, uint64_t count_elems, Dtype dtype, Rank peer, const CallOptions* options,
                          Work* work) {
  return impl_->submit({{Collective::kRecv, count_elems, peer, dtype}, nullptr, buffer}, options, work);
}

Status Communicator::all_gather_v(const void* in, void* out, const uint64_t* counts, const uint64_t* offsets,
                                  Dtype dtype, const CallOptions* options, Work* work) {
  RONDO_TRY_ASSIGN(auto v, known_counts(rank(), size(), counts, offsets, true));
  Call c{{Collective::kAllGather, sum_of(v->out), 0, dtype}, in, out};
  c.shape.counts = std::move(v);
  return impl_->submit(std::move(c), options, work);
}
Status Communicator::reduce_scatter_v(const void* in, void* out, const uint64_t* counts, const uint64_t* offsets,
                                      Dtype dtype, Op op, const CallOptions* options, Work* work) {
  RONDO_TRY_ASSIGN(auto v, known_counts(rank(), size(), counts, offsets, false));
  Call c{{Collective::kReduceScatter, sum_of(v->in), 0, dtype, op}, in, out};
  c.shape.counts = std::move(v);
  return impl_->submit(std::move(c), options, work);
}
Status Communicator::all_to_all_v(const void* in, const uint64_t* in_counts, const uint64_t* in_offsets, void* out,
                                  const uint64_t* out_counts, const uint64_t* out_offsets, Dtype dtype,
                                  const CallOptions* options, Work* work) {
  auto v = std::make_shared<VariableCounts>();
  RONDO_TRY(read_parts(rank(), size(), "in_", in_counts, in_offsets, &v->in));
  RONDO_TRY(read_parts(rank(), size(), "out_", out_counts, out_offsets, &v->out));
  if (out_offsets != nullptr) RONDO_TRY(check_disjoint(rank(), "out_", v->out));
  const auto self = static_cast<size_t>(rank());
  if (in_counts[self] != out_counts[self])
    return bad(rank(), fmt::format("in_counts[{}] and out_counts[{}]", self, self),
               fmt::format("differ ({} and {}): this rank's part for itself", in_counts[self], out_counts[self]));
  v->pairwise = true;
  v->packed = in_offsets == nullptr && out_offsets == nullptr;
  Call c{{Collective::kAllToAll, 0, 0, dtype}, in, out};
  c.shape.counts = std::move(v);
  return impl_->submit(std::move(c), options, work);
}

}  // namespace rondo
