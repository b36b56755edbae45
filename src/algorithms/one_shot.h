// One-shot all-pairs all-reduce: everybody shows everything, everybody adds everything. Its halves with a root:
// broadcast, in which the root alone shows, and reduce, in which the root alone adds.
//
//     0 ===> {1 2 3}     Every rank writes its whole buffer once, into a slot that all others read, and adds up the N
//     1 ===> {0 2 3}     buffers itself, in ascending order of ranks: x0 + x1 + x2 + x3 on every rank, so all ranks get
//     2 ===> {0 1 3}     the same bits, and those are the bits that one process gets.
//     3 ===> {0 1 2}
//
//   4 ranks, what rank 2 does:     send in to {0 1 3}
//                                  recv from {0 1 3}; out = x0 + x1 + in + x3
//
//     broadcast from 1     1 ===> {0 2 3}                 written once, read by all
//     reduce to 1          0 --> 1   2 --> 1   3 --> 1    rank 1 adds x0 + in + x2 + x3
//
// Two lanes, "show" and "add", so that the next loop's data is on its way while this loop's is added. "add" waits for
// "show": in place, the sum overwrites what is being shown.
//
// Steps: 1. Bytes sent per rank: S, written once for N - 1 readers (reduce: for one). Who adds reads (N-1) S: for small
// buffers.
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
  if (nranks == 1) return p.copy(in(0), out(0), Sum::kFinal);
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
  if (nranks == 1) p.copy(in(0), out(0));
  else if (rank == root) p.copy_send(in(0), out(0), all.everybody(AllPairs::kComplete));
  else p.recv({{root, AllPairs::kComplete, kGroupAll}}, out(0));
}

template <class P>
void one_shot_reduce(P& p, Rank rank, int nranks, Rank root) {
  const AllPairs all(rank, nranks);
  p.chunks(1, 1);
  p.lane(0);
  if (nranks == 1) p.copy(in(0), out(0), Sum::kFinal);
  else if (rank != root) p.send(in(0), {{root, AllPairs::kContribution}});
  else p.recv_reduce_copy(all.from_each(AllPairs::kContribution), in(0), out(0), all.order(), Sum::kFinal);
}

}  // namespace rondo::algorithms
