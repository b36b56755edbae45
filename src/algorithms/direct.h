// Direct algorithms: data goes straight from user buffer to user buffer. All buffers must be mapped in all ranks.
//
//     entry   0 ==> {1 2 3}  1 ==> {0 2 3} ...    "my buffers are ready"
//
//     chunk   in of   0      1      2      3                out of   0      1      2      3
//       0            [*]    [*]    [*]    [*]  --rank 0-->          [*]    [*]    [*]    [*]
//       1            [*]    [*]    [*]    [*]  --rank 1-->          [*]    [*]    [*]    [*]
//       2            [*]    [*]    [*]    [*]  --rank 2-->          [*]    [*]    [*]    [*]
//       3            [*]    [*]    [*]    [*]  --rank 3-->          [*]    [*]    [*]    [*]
//
//     exit    0 ==> {1 2 3}  1 ==> {0 2 3} ...    "I am done with yours"
//
// All-reduce: rank r adds chunk r of all inputs and writes it into all outputs. Reduce-scatter: rank r pulls chunk r of
// all inputs into its output. All-gather: rank r pushes its input into chunk r of all outputs. Broadcast: the root
// pushes its input into all outputs.
// One lane: a rank accesses a peer's buffer after that peer's entry credit, and returns after all exit credits. In
// place is safe: only rank r reads and writes chunk r of any buffer, sources before sinks.
//
// Steps: 2, both credits. Bytes sent per rank: 0, because no data passes through a connection. Pulled: (N-1)/N S in a
// sum. Pushed: (N-1)/N S in an all-reduce or all-gather, (N-1) S in a broadcast.
// Order of addition: ascending ranks.
// Source: shared-address-space collectives, e.g. XPMEM paths of MPI libraries; NCCL's registered-buffer direct mode.
#pragma once

#include "algorithms/all_pairs.h"

namespace rondo::algorithms {

template <class P>
void direct_all_reduce(P& p, Rank rank, int nranks) {
  const AllPairs all(rank, nranks);
  p.chunks(nranks, nranks);
  p.lane(0);
  const PortSet peers = all.everybody(AllPairs::kContribution);
  meet(p, all, AllPairs::kEntry);
  p.direct().recv_reduce_copy_send(peers, in(rank), out(rank), peers, all.order(), Sum::kFinal);
  meet(p, all, AllPairs::kExit);
}

template <class P>
void direct_reduce_scatter(P& p, Rank rank, int nranks) {
  const AllPairs all(rank, nranks);
  p.chunks(nranks, 1);
  p.lane(0);
  meet(p, all, AllPairs::kEntry);
  p.direct().recv_reduce_copy(all.everybody(AllPairs::kContribution), in(rank), out(0), all.order(), Sum::kFinal);
  meet(p, all, AllPairs::kExit);
}

template <class P>
void direct_all_gather(P& p, Rank rank, int nranks) {
  const AllPairs all(rank, nranks);
  p.chunks(1, nranks);
  p.lane(0);
  meet(p, all, AllPairs::kEntry);
  p.direct().copy_send(in(0), out(rank), all.everybody(AllPairs::kComplete));
  meet(p, all, AllPairs::kExit);
}

template <class P>
void direct_broadcast(P& p, Rank rank, int nranks, Rank root) {
  const AllPairs all(rank, nranks);
  p.chunks(1, 1);
  p.lane(0);
  meet(p, all, AllPairs::kEntry);
  if (rank == root) p.direct().copy_send(in(0), out(0), all.everybody(AllPairs::kComplete));
  meet(p, all, AllPairs::kExit);
}

// Credits only: no data passes through a connection.
constexpr Cost direct_cost(int /*nranks*/) { return {2, 0, 1}; }

}  // namespace rondo::algorithms
