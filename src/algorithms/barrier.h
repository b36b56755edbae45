// Barrier: no rank returns before all ranks have called. Its messages are credits: they carry no elements.
//
//     one-shot         0 ==> {1 2 3}   1 ==> {0 2 3}   ...           every rank signals all others and waits for all
//
//     dissemination    round 1   0 -> 1   1 -> 2   2 -> 3   3 -> 0   In round k rank r signals r + 2^k and waits for
//                      round 2   0 -> 2   1 -> 3   2 -> 0   3 -> 1   r - 2^k (modulo N). It then has, directly or via
//                                                                    others, the signals of 2^(k+1) ranks.
//
// One lane: a rank waits for each round before it signals the next.
//
// Steps: one-shot 1, dissemination ceil(log2 N). Bytes sent per rank: 0. A rank writes 1 credit and reads N - 1, or
// writes and reads ceil(log2 N).
// Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization" (1988).
#pragma once

#include <bit>

#include "algorithms/all_pairs.h"

namespace rondo::algorithms {

template <class P>
void one_shot_barrier(P& p, Rank rank, int nranks) {
  const AllPairs all(rank, nranks);
  p.chunks(1, 1);
  p.lane(0);
  meet(p, all, AllPairs::kEntry);
}

template <class P>
void dissemination_barrier(P& p, Rank rank, int nranks) {
  const AllPairs all(rank, nranks);
  p.chunks(1, 1);
  p.lane(0);
  for (int hops = 1; hops < nranks; hops *= 2) {
    p.send_credit({{all.neighbour(hops), AllPairs::kEntry}});
    p.recv_credit({{all.neighbour(nranks - hops), AllPairs::kEntry}});
  }
}

constexpr Cost one_shot_barrier_cost(int /*nranks*/) { return {1, 0, 1}; }
constexpr Cost dissemination_cost(int nranks) { return {std::bit_width(static_cast<unsigned>(nranks - 1)), 0, 1}; }

}  // namespace rondo::algorithms
