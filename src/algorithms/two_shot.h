// Two-shot all-pairs all-reduce, its two halves (reduce-scatter and all-gather), and reduce.
//
//     shot 1   0 --1--> 1     0 --2--> 2     0 --3--> 3      chunk j of every rank goes to its owner j,
//              1 --0--> 0     1 --2--> 2     1 --3--> 3      which adds the N contributions in ascending
//              ...                                           rank order
//     shot 2   0 ===> {1 2 3}   1 ===> {0 2 3}   ...         the owner writes the sum once, all others read it
//
//   4 ranks, rank 0:              send in[1] to 1, in[2] to 2, in[3] to 3
//                                 recv x1[0], x2[0], x3[0]; out[0] = in[0] + x1[0] + x2[0] + x3[0]; send it to {1 2 3}
//                                 recv out[1] from 1, out[2] from 2, out[3] from 3
//
// Reduce: in shot 2 the owners send their sums to the root only. All ranks share the additions.
//
// Three lanes, one for each role: "give" sends contributions, "own" completes the rank's own chunk, "take" receives the
// rest.
//
// Steps: all-reduce and reduce 2, the halves 1. Bytes sent per rank: shot 1 (N-1)/N S; shot 2 S/N, in the all-reduce
// written once for N - 1 readers.
// Order of addition: ascending ranks. Each sum is rounded once and has the bits of one process.
// Source: the direct (all-pairs) exchange; MSCCL++'s two-shot all-reduce.
#pragma once

#include "algorithms/all_pairs.h"

namespace rondo::algorithms {

/// Shot 1, sending: chunk j to its owner j.
template <class P>
void two_shot_give(P& p, const AllPairs& all) {
  for (int hops = 1; hops < all.nranks; ++hops) {
    const Rank owner = all.neighbour(hops);
    p.send(in(owner), {{owner, AllPairs::kContribution}});
  }
}

/// Shot 2, receiving: chunk j from its owner j.
template <class P>
void two_shot_take(P& p, const AllPairs& all) {
  for (int hops = 1; hops < all.nranks; ++hops) {
    const Rank owner = all.neighbour(hops);
    p.recv({{owner, AllPairs::kComplete, kGroupAll}}, out(owner));
  }
}

template <class P>
void two_shot_all_reduce(P& p, Rank rank, int nranks) {
  const AllPairs all(rank, nranks);
  p.chunks(nranks, nranks);
  p.lane(0);
  two_shot_give(p, all);

  p.lane(1);
  p.recv_reduce_copy_send(all.from_each(AllPairs::kContribution), in(rank), out(rank),
                          all.everybody(AllPairs::kComplete), all.order(), Sum::kFinal);

  p.lane(2);
  two_shot_take(p, all);
}

template <class P>
void two_shot_reduce(P& p, Rank rank, int nranks, Rank root) {
  const AllPairs all(rank, nranks);
  p.chunks(nranks, nranks);
  p.lane(0);
  two_shot_give(p, all);

  p.lane(1);
  const PortSet contributions = all.from_each(AllPairs::kContribution);
  if (rank != root)
    return p.recv_reduce_send(contributions, in(rank), {{root, AllPairs::kComplete}}, all.order(), Sum::kFinal);
  p.recv_reduce_copy(contributions, in(rank), out(rank), all.order(), Sum::kFinal);

  p.lane(2);
  for (int hops = 1; hops < nranks; ++hops) {
    const Rank owner = all.neighbour(hops);
    p.recv({{owner, AllPairs::kComplete}}, out(owner));
  }
}

template <class P>
void all_pairs_reduce_scatter(P& p, Rank rank, int nranks) {
  const AllPairs all(rank, nranks);
  p.chunks(nranks, 1);
  p.lane(0);
  two_shot_give(p, all);

  p.lane(1);
  p.recv_reduce_copy(all.from_each(AllPairs::kContribution), in(rank), out(0), all.order(), Sum::kFinal);
}

template <class P>
void all_pairs_all_gather(P& p, Rank rank, int nranks) {
  const AllPairs all(rank, nranks);
  p.chunks(1, nranks);
  p.lane(0);
  p.copy_send(in(0), out(rank), all.everybody(AllPairs::kComplete));

  p.lane(1);
  two_shot_take(p, all);
}

constexpr Cost two_shot_cost(int nranks) { return {2, nranks, nranks}; }

}  // namespace rondo::algorithms
