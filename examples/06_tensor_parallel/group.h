// The ranks that share a layer: three collectives on matrices, counted. A group of one rank needs no communicator and
// is the reference for the others.
//
// All use a ring, which makes the bytes easy to predict: of S bytes each rank sends 2 (N - 1) / N * S for an
// all-reduce, half of that for a reduce-scatter or an all-gather. `rondo trace summary` counts the bytes that were
// really sent.
//
// Thread safety: one thread for each rank.
#pragma once

#include <rondo/communicator.h>

#include "matrix.h"

namespace parallel {

struct Counts {
  int all_reduces = 0, all_gathers = 0, reduce_scatters = 0;
  uint64_t ring_bytes = 0;  // that this rank sends
};

class Group {
 public:
  Group() = default;
  explicit Group(rondo::Communicator& comm) : comm_(&comm) {}

  int rank() const { return comm_ == nullptr ? 0 : comm_->rank(); }
  int size() const { return comm_ == nullptr ? 1 : comm_->size(); }
  rondo::Communicator* comm() { return comm_; }
  Range part(size_t n) const { return part_of(n, rank(), size()); }
  const Counts& counts() const { return counts_; }
  void clear_counts() { counts_ = {}; }

  /// m: the same shape on all ranks. Replaced by the sum, or the maximum, over ranks.
  rondo::Status all_reduce(Matrix& m, rondo::Op op = rondo::Op::kSum) {
    ++counts_.all_reduces;
    count(2 * m.bytes());
    if (comm_ == nullptr) return {};
    return comm_->all_reduce(m.v.data(), m.v.data(), m.v.size(), rondo::Dtype::kFloat32, op, &ring_);
  }

  /// part: n / N x d, the same n on all ranks, a multiple of N. Returns n x d: the stacked parts.
  rondo::Expected<Matrix> all_gather(const Matrix& part) {
    Matrix whole(part.rows * static_cast<size_t>(size()), part.cols);
    ++counts_.all_gathers;
    count(whole.bytes());
    if (comm_ == nullptr) return part;
    RONDO_TRY(comm_->all_gather(part.v.data(), whole.v.data(), part.v.size(), rondo::Dtype::kFloat32, &ring_));
    return whole;
  }

  /// whole: n x d, n a multiple of N. Returns this rank's n / N rows of the sum of all.
  rondo::Expected<Matrix> reduce_scatter(const Matrix& whole) {
    Matrix part(whole.rows / static_cast<size_t>(size()), whole.cols);
    ++counts_.reduce_scatters;
    count(whole.bytes());
    if (comm_ == nullptr) return whole;
    RONDO_TRY(comm_->reduce_scatter(whole.v.data(), part.v.data(), part.v.size(), rondo::Dtype::kFloat32,
                                    rondo::Op::kSum, &ring_));
    return part;
  }

 private:
  void count(uint64_t bytes) {
    counts_.ring_bytes += bytes * static_cast<uint64_t>(size() - 1) / static_cast<uint64_t>(size());
  }

  rondo::Communicator* comm_ = nullptr;
  rondo::CallOptions ring_ = {.algorithm = "ring"};
  Counts counts_;
};

}  // namespace parallel
