// Circulant reduce-scatter, all-gather and all-reduce: ceil(log2 N) rounds with the ring's volume, for any N.
//
//     skips of 4 ranks: 4, 2, 1     Every rank numbers the chunks from itself: local chunk j is chunk r + j (mod N).
//     skips of 5 ranks: 5, 3, 2, 1  A round goes from one skip s to the next, t = ceil(s / 2). Rank r sends its local
//                                   chunks t .. s-1, which it no longer needs, to rank r + t, and adds the chunks from
//                                   rank r - t to its local chunks 0 .. s-t-1. After the last round local chunk 0
//                                   (chunk r) is complete. The all-gather runs the rounds backwards.
//
//   4 ranks, rank 0:              s 4, t 2   send chunks 2 3 to 2; recv 0 1 from 2, add mine, keep in scratch
//     reduce-scatter              s 2, t 1   send chunk 1 to 1;    recv 0 from 3, add: complete; keep it, and
//     all-gather                  s 2, t 1   send chunk 0 to 3;    recv 1 from 1
//                                 s 4, t 2   send chunks 0 1 to 2; recv 2 3 from 2
//
// Each half has two lanes, "give" and "take". Giving in a round waits for the previous round; taking never waits for
// giving. Partial sums are in scratch. With odd N the middle chunk has no partner in the first round and is copied.
//
// Steps: ceil(log2 N), all-reduce 2 ceil(log2 N). Bytes sent per rank: (N-1)/N S, all-reduce 2(N-1)/N S.
// Order of addition: depends on the chunk; the rank's own operand first. Needs a commutative operator.
// Source: Traeff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms" (arXiv 2410.14234).
#pragma once

#include <bit>
#include <vector>

#include "rondo/algorithm.h"

namespace rondo::algorithms {

struct Circulant {
  static constexpr uint16_t kSum = 0, kComplete = 1;
  static constexpr int kGiveSums = 0, kTakeSums = 1, kGive = 2, kTake = 3;  // lanes of the all-reduce

  /// From skip `s` to skip `t`: sends local chunks t .. s-1.
  struct Round {
    int s, t;
  };

  Circulant(Rank r, int n) : rank(r), nranks(n) {
    for (int s = n; s > 1; s = (s + 1) / 2) rounds.push_back({s, (s + 1) / 2});
  }
  Rank rank;
  int nranks;
  std::vector<Round> rounds;  // of the reduce-scatter

  Rank after(int hops) const { return (rank + hops) % nranks; }
  Rank before(int hops) const { return (rank + nranks - hops) % nranks; }
  Chunk local(Buffer buffer, int first, int num) const { return {buffer, after(first), num}; }
};

/// The reduce-scatter without its last addition; `complete(from, own)` records that.
template <class P, class Complete>
void circulant_sums(P& p, const Circulant& self, Complete complete) {
  const int last = static_cast<int>(self.rounds.size()) - 1;
  p.lane(Circulant::kGiveSums);
  for (int k = 0; k <= last; ++k) {
    const auto [s, t] = self.rounds[k];
    if (k > 0) p.wait(Circulant::kTakeSums, k - 1);
    p.send(self.local(k == 0 ? Buffer::kIn : Buffer::kScratch, t, s - t), {{self.after(t), Circulant::kSum}});
    if (k == 0 && last > 0 && s % 2 == 1)
      p.copy(self.local(Buffer::kIn, s - t, 1), self.local(Buffer::kScratch, s - t, 1));
  }

  p.lane(Circulant::kTakeSums);
  for (int k = 0; k < last; ++k) {
    const auto [s, t] = self.rounds[k];
    p.recv_reduce_copy({{self.before(t), Circulant::kSum}},
                       self.local(k == 0 ? Buffer::kIn : Buffer::kScratch, 0, s - t),
                       self.local(Buffer::kScratch, 0, s - t), kOwnFirst, Sum::kPartial);
  }
  complete(PortSet{{self.before(1), Circulant::kSum}}, self.local(last == 0 ? Buffer::kIn : Buffer::kScratch, 0, 1));
}

/// The all-gather. The rank's own chunk is already in `out` and sent to the previous rank.
template <class P>
void circulant_spread(P& p, const Circulant& self, int give, int take) {
  const int last = static_cast<int>(self.rounds.size()) - 1;
  p.lane(give);
  for (int k = last - 1; k >= 0; --k) {
    const auto [s, t] = self.rounds[k];
    p.wait(take, last - 1 - k);
    p.send(self.local(Buffer::kOut, 0, s - t), {{self.before(t), Circulant::kComplete}});
  }

  p.lane(take);
  for (int k = last; k >= 0; --k) {
    const auto [s, t] = self.rounds[k];
    p.recv({{self.after(t), Circulant::kComplete}}, self.local(Buffer::kOut, t, s - t));
  }
}

template <class P>
void circulant_reduce_scatter(P& p, Rank rank, int nranks) {
  const Circulant self(rank, nranks);
  p.chunks(nranks, 1, nranks);
  p.lane(0);
  circulant_sums(
      p, self, [&](const PortSet& from, Chunk own) { p.recv_reduce_copy(from, own, out(0), kOwnFirst, Sum::kFinal); });
}

template <class P>
void circulant_all_gather(P& p, Rank rank, int nranks) {
  const Circulant self(rank, nranks);
  p.chunks(1, nranks);
  p.lane(0);
  p.copy_send(in(0), out(rank), {{self.before(1), Circulant::kComplete}});
  circulant_spread(p, self, 0, 1);
}

template <class P>
void circulant_all_reduce(P& p, Rank rank, int nranks) {
  const Circulant self(rank, nranks);
  p.chunks(nranks, nranks, nranks);
  p.lane(0);
  circulant_sums(p, self, [&](const PortSet& from, Chunk own) {
    p.recv_reduce_copy_send(from, own, out(rank), {{self.before(1), Circulant::kComplete}}, kOwnFirst, Sum::kFinal);
  });
  p.lane(Circulant::kGive);
  p.wait(Circulant::kTakeSums, static_cast<int>(self.rounds.size()) - 1);  // the rank's own chunk is complete
  circulant_spread(p, self, Circulant::kGive, Circulant::kTake);
}

constexpr Cost circulant_cost(int nranks) {
  return {std::bit_width(static_cast<unsigned>(nranks - 1)), nranks - 1, nranks};
}
constexpr Cost circulant_all_reduce_cost(int nranks) {
  const Cost half = circulant_cost(nranks);
  return {2 * half.steps, 2 * half.sent_num, nranks};
}

}  // namespace rondo::algorithms
