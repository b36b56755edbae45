// One-shot all-pairs all-reduce: every rank publishes its whole buffer, and every rank adds all of them. Its halves
// with a root: in broadcast only the root publishes, in reduce only the root adds.
//
//     0 ===> {1 2 3}     Every rank writes its whole buffer once, into a slot that all others read, and adds the N
//     1 ===> {0 2 3}     buffers itself, in ascending rank order: x0 + x1 + x2 + x3. All ranks get the same bits, equal
//     2 ===> {0 1 3}     to those of one process.
//     3 ===> {0 1 2}
//
//   4 ranks, rank 2:              send in to {0 1 3}
//                                 recv from {0 1 3}; out = x0 + x1 + in + x3
//
//     broadcast from 1     1 ===> {0 2 3}                 written once, read by all
//     reduce to 1          0 --> 1   2 --> 1   3 --> 1    rank 1 adds x0 + in + x2 + x3
//
// Two lanes, "show" and "add": the next loop's data travels while this loop's is added. "add" waits for "show", because
// in place the sum overwrites the published data.
//
// Steps: 1. Bytes sent per rank: S, written once for N - 1 readers (reduce: for one). A rank that adds reads (N-1) S,
// which suits small buffers only.
// Order of addition: ascending ranks.
// Source: the "flat" or all-pairs algorithm of small-message libraries, e.g. MSCCL++'s all-pairs all-reduce.
#pragma once

#include "algorithms/all_pairs.h"

namespace rondo::algorithms {

template <class P>
void one_shot_all_reduce(P& p, Rank rank, int nranks) {
  const AllPairs all(rank, nranks);
  p.chunks(1, 1);
  p.lane(0);
  p.send(in(0), all.everybody(AllPairs::kContribution));

  p.lane(1);
  p.wait(0, 0);
  p.recv_reduce_copy(all.everybody(AllPairs::kContribution), in(0), out(0), all.order(), Sum::kFinal);
}

template <class P>
void one_shot_broadcast(P& p, Rank rank, int nranks, Rank root) {
  const AllPairs all(rank, nranks);
  p.chunks(1, 1);
  p.lane(0);
  if (rank == root) p.copy_send(in(0), out(0), all.everybody(AllPairs::kComplete));
  else p.recv({{root, AllPairs::kComplete, kGroupAll}}, out(0));
}

template <class P>
void one_shot_reduce(P& p, Rank rank, int nranks, Rank root) {
  const AllPairs all(rank, nranks);
  p.chunks(1, 1);
  p.lane(0);
  if (rank != root) p.send(in(0), {{root, AllPairs::kContribution}});
  else p.recv_reduce_copy(all.from_each(AllPairs::kContribution), in(0), out(0), all.order(), Sum::kFinal);
}

constexpr Cost one_shot_cost(int /*nranks*/) { return {1, 1, 1}; }

}  // namespace rondo::algorithms
