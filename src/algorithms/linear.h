// Linear gather and scatter: the root receives from, or sends to, one rank after the other.
//
//     gather to 1      0 --x0--> 1      2 --x2--> 1      3 --x3--> 1      out of 1 = [x0 x1 x2 x3]
//     scatter from 1   1 --y0--> 0      1 --y2--> 2      1 --y3--> 3      in of 1  = [y0 y1 y2 y3]
//
//   4 ranks, root 1:    gather    keep its own; recv x2 into chunk 2, x3 into chunk 3, x0 into chunk 0
//                       scatter   keep its own; send chunk 2 to 2, chunk 3 to 3, chunk 0 to 0
//
// Steps: 1. Bytes sent per rank: gather S/N, scatter (N-1)/N S by the root, the minimum.
// Source: textbook. The root's link is the limit; a tree cannot widen it.
#pragma once

#include "algorithms/all_pairs.h"

namespace rondo::algorithms {

template <class P>
void linear_gather(P& p, Rank rank, int nranks, Rank root) {
  const AllPairs all(rank, nranks);
  p.chunks(1, nranks);
  p.lane(0);
  if (rank != root) return p.send(in(0), {{root, AllPairs::kContribution}});
  p.copy(in(0), out(rank));
  for (int hops = 1; hops < nranks; ++hops) {
    const Rank peer = all.neighbour(hops);
    p.recv({{peer, AllPairs::kContribution}}, out(peer));
  }
}

template <class P>
void linear_scatter(P& p, Rank rank, int nranks, Rank root) {
  const AllPairs all(rank, nranks);
  p.chunks(nranks, 1);
  p.lane(0);
  if (rank != root) return p.recv({{root, AllPairs::kContribution}}, out(0));
  p.copy(in(rank), out(0));
  for (int hops = 1; hops < nranks; ++hops) {
    const Rank peer = all.neighbour(hops);
    p.send(in(peer), {{peer, AllPairs::kContribution}});
  }
}

}  // namespace rondo::algorithms
