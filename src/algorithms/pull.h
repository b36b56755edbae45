// Pull: like direct.h, but a rank only reads its peers' buffers. The kernel can therefore copy from any buffer: no
// staging memory, one copy instead of two.
//
//     all-reduce, 3 ranks     0                     1                     2
//     entry                   -------------------- all ranks' buffers are ready --------------------
//     sums                    out[0] = in[0] + ...  out[1] = in[1] + ...  out[2] = in[2] + ...     pulls in[r] of all
//     middle                  ----------------- every rank's sum is in its out ---------------------
//     the others' sums        out[1] <- 1, [2] <- 2 out[2] <- 2, [0] <- 0 out[0] <- 0, [1] <- 1
//     exit                    ------------------- no rank reads any more ---------------------------
//
// Reduce-scatter is the first half; it is direct.h's, which never pushes. The others pull between two credit exchanges:
// all-gather every rank's `in`, all-to-all this rank's chunk of it, broadcast the root's `in`, scatter this rank's
// chunk of it. In gather and reduce only the root pulls, every rank's `in`.
// One lane. In place is safe: only rank r reads chunk r of any input, before it announces its sum; and a rank copies
// its own part last, when no other rank reads it any more. (All-to-all does not work in place.)
//
// Steps: all-reduce 3, the others 2, all credits. Bytes sent per rank: 0. Pulled: all-reduce 2(N-1)/N S, broadcast S,
// scatter S/N, reduce (N-1) S and gather (N-1)/N S by the root, the others (N-1)/N S.
// Order of addition: ascending ranks.
// Source: kernel-assisted collectives (KNEM, CMA): Ma, Bosilca, Bouteiller and Dongarra (2011).
#pragma once

#include "algorithms/direct.h"

namespace rondo::algorithms {

template <class P>
void pull_all_reduce(P& p, Rank rank, int nranks) {
  const AllPairs all(rank, nranks);
  p.chunks(nranks, nranks);
  p.lane(0);
  meet(p, all, AllPairs::kEntry);
  p.direct().recv_reduce_copy(all.everybody(AllPairs::kContribution), in(rank), out(rank), all.order(), Sum::kFinal);
  meet(p, all, AllPairs::kMiddle);
  for (int hops = 1; hops < nranks; ++hops) {
    const Rank owner = all.neighbour(hops);
    p.pull({{owner, AllPairs::kComplete, kGroupAll}}, out(owner), out(owner));
  }
  meet(p, all, AllPairs::kExit);
}

template <class P>
void pull_all_gather(P& p, Rank rank, int nranks) {
  const AllPairs all(rank, nranks);
  p.chunks(1, nranks);
  p.lane(0);
  meet(p, all, AllPairs::kEntry);
  for (int hops = 1; hops < nranks; ++hops) {
    const Rank owner = all.neighbour(hops);
    p.pull({{owner, AllPairs::kContribution, kGroupAll}}, in(0), out(owner));
  }
  meet(p, all, AllPairs::kExit);
  p.copy(in(0), out(rank));
}

template <class P>
void pull_all_to_all(P& p, Rank rank, int nranks) {
  const AllPairs all(rank, nranks);
  p.chunks(nranks, nranks);
  p.lane(0);
  meet(p, all, AllPairs::kEntry);
  for (int hops = 1; hops < nranks; ++hops) {
    const Rank peer = all.neighbour(hops);
    p.pull({{peer, AllPairs::kContribution, kGroupAll}}, in(rank), out(peer));
  }
  meet(p, all, AllPairs::kExit);
  p.copy(in(rank), out(rank));
}

template <class P>
void pull_broadcast(P& p, Rank rank, int nranks, Rank root) {
  const AllPairs all(rank, nranks);
  p.chunks(1, 1);
  p.lane(0);
  meet(p, all, AllPairs::kEntry);
  if (rank != root) p.pull({{root, AllPairs::kContribution, kGroupAll}}, in(0), out(0));
  meet(p, all, AllPairs::kExit);
  if (rank == root) p.copy(in(0), out(0));
}

template <class P>
void pull_scatter(P& p, Rank rank, int nranks, Rank root) {
  const AllPairs all(rank, nranks);
  p.chunks(nranks, 1);
  p.lane(0);
  meet(p, all, AllPairs::kEntry);
  if (rank != root) p.pull({{root, AllPairs::kContribution, kGroupAll}}, in(rank), out(0));
  meet(p, all, AllPairs::kExit);
  if (rank == root) p.copy(in(rank), out(0));
}

template <class P>
void pull_gather(P& p, Rank rank, int nranks, Rank root) {
  const AllPairs all(rank, nranks);
  p.chunks(1, nranks);
  p.lane(0);
  meet(p, all, AllPairs::kEntry);
  if (rank == root) {
    p.copy(in(0), out(rank));
    for (int hops = 1; hops < nranks; ++hops) {
      const Rank peer = all.neighbour(hops);
      p.pull({{peer, AllPairs::kContribution, kGroupAll}}, in(0), out(peer));
    }
  }
  meet(p, all, AllPairs::kExit);
}

template <class P>
void pull_reduce(P& p, Rank rank, int nranks, Rank root) {
  const AllPairs all(rank, nranks);
  p.chunks(1, 1);
  p.lane(0);
  meet(p, all, AllPairs::kEntry);
  if (rank == root)
    p.direct().recv_reduce_copy(all.everybody(AllPairs::kContribution), in(0), out(0), all.order(), Sum::kFinal);
  meet(p, all, AllPairs::kExit);
}

constexpr Cost pull_all_reduce_cost(int /*nranks*/) { return {3, 0, 1}; }

}  // namespace rondo::algorithms
