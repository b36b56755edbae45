// All-to-all: chunk j of rank i's input becomes chunk i of rank j's output.
//
//     round 1   0 -> 1   1 -> 2   2 -> 3   3 -> 0      In round k rank r sends to r + k and receives from r - k (modulo
//     round 2   0 -> 2   1 -> 3   2 -> 0   3 -> 1      N): every rank has one sender and one reader in every round.
//     round 3   0 -> 3   1 -> 0   2 -> 1   3 -> 2
//
//   4 ranks, rank 0:              keep its own chunk
//                                  send in[1] to 1, recv out[3] from 3
//                                  send in[2] to 2, recv out[2] from 2
//                                  send in[3] to 3, recv out[1] from 1
//
// Pairwise: one lane. A rank is in one round at a time and has one sender at a time. One-shot: two lanes, "give" and
// "take"; all messages travel at once. Neither works in place: a chunk of the output may arrive before the input at its
// address was sent.
//
// Steps: pairwise N-1, one-shot 1. Bytes sent per rank: (N-1)/N S.
// Source: the pairwise exchange, e.g. Thakur, Rabenseifner and Gropp (2005), section 4.4.
#pragma once

#include "algorithms/all_pairs.h"

namespace rondo::algorithms {

template <class P>
void pairwise_all_to_all(P& p, Rank rank, int nranks) {
  const AllPairs all(rank, nranks);
  p.chunks(nranks, nranks);
  p.lane(0);
  p.copy(in(rank), out(rank));
  for (int round = 1; round < nranks; ++round) {
    const Rank to = all.neighbour(round), from = all.neighbour(nranks - round);
    p.send(in(to), {{to, AllPairs::kContribution}});
    p.recv({{from, AllPairs::kContribution}}, out(from));
  }
}

template <class P>
void one_shot_all_to_all(P& p, Rank rank, int nranks) {
  const AllPairs all(rank, nranks);
  p.chunks(nranks, nranks);
  p.lane(0);
  p.copy(in(rank), out(rank));
  for (int hops = 1; hops < nranks; ++hops) {
    const Rank to = all.neighbour(hops);
    p.send(in(to), {{to, AllPairs::kContribution}});
  }

  p.lane(1);
  for (int hops = 1; hops < nranks; ++hops) {
    const Rank from = all.neighbour(nranks - hops);
    p.recv({{from, AllPairs::kContribution}}, out(from));
  }
}

constexpr Cost pairwise_cost(int nranks) { return {nranks - 1, nranks - 1, nranks}; }

}  // namespace rondo::algorithms
