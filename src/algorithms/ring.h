// Ring all-reduce, reduce-scatter and all-gather.
//
//        0 ---> 1          Every rank r sends only to r + 1 and receives only from r - 1 (modulo N).
//        ^      |          The data is cut into N chunks. In the reduce-scatter half, chunk c starts at rank c + 1,
//        |      v          collects one contribution per hop and is complete at rank c. In the all-gather half the
//        3 <--- 2          complete chunk c goes round once more.
//
//   4 ranks, rank 0:              step 1  send chunk 3
//     reduce-scatter              step 2  recv chunk 2, add mine, send on
//                                 step 3  recv chunk 1, add mine, send on
//                                         recv chunk 0, add mine: complete; keep it, and
//     all-gather                  step 4  send it
//                                 step 5  recv chunk 3, keep it, send on
//                                 step 6  recv chunk 2, keep it, send on
//                                         recv chunk 1, keep it
//
// Three lanes, one for each role of a rank: "start" sends its own contribution, "reduce" adds received data, "gather"
// passes complete chunks on. A rank may therefore start the next loop's chunk while an earlier one still travels. A
// connection has one writing and one reading lane. Tags distinguish the four kinds of message: kFirst (a rank's own
// contribution), kPartial (a partial sum), kComplete (a complete chunk from its owner), kPassedOn.
//
// On several hosts the ring visits one host after the other (host_ring.h): a message crosses M times on its way round M
// hosts, however the ranks are distributed. Chunks keep the numbers of their owners.
//
// Steps: all-reduce 2(N-1), the halves N-1. Bytes sent per rank: 2(N-1)/N S and (N-1)/N S.
// Order of addition: x[c+1], x[c+2], ..., x[c] for chunk c, or in ring order on hosts and places; it depends on the
// partition.
// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
#pragma once

#include "rondo/recorder.h"

namespace rondo::algorithms {

struct Ring {
  static constexpr uint16_t kFirst = 0, kPartial = 1, kComplete = 2, kPassedOn = 3;

  constexpr Ring(Rank r, int n) : rank(r), nranks(n), next((r + 1) % n), prev((r + n - 1) % n) {}
  Rank rank;
  int nranks;
  Rank next, prev;
  /// The chunk of the rank `back` hops behind.
  constexpr int chunk(int back) const { return (rank - back + nranks) % nranks; }
  /// The port of the sum of chunk(back): its first hop carries one rank's own contribution.
  constexpr Port sums(int back) const { return {prev, back == 2 ? kFirst : kPartial}; }
  /// The port of the complete chunk(back): its first hop comes from its owner.
  constexpr Port complete(int back) const { return {prev, back == 1 ? kComplete : kPassedOn}; }
};

template <class P, class Circle>
void ring_all_reduce(P& p, const Circle& ring) {
  const int nranks = ring.nranks;
  p.chunks(nranks, nranks);
  p.lane(0);
  if (nranks == 1) return p.copy(in(0), out(0), Sum::kFinal);
  p.send(in(ring.chunk(1)), {{ring.next, Ring::kFirst}});

  p.lane(1);
  for (int back = 2; back < nranks; ++back)
    p.recv_reduce_send({ring.sums(back)}, in(ring.chunk(back)), {{ring.next, Ring::kPartial}}, own_after(1));
  p.recv_reduce_copy_send({ring.sums(nranks)}, in(ring.rank), out(ring.rank), {{ring.next, Ring::kComplete}},
                          own_after(1), Sum::kFinal);

  p.lane(2);
  for (int back = 1; back < nranks - 1; ++back)
    p.recv_copy_send({ring.complete(back)}, out(ring.chunk(back)), {{ring.next, Ring::kPassedOn}});
  p.recv({ring.complete(nranks - 1)}, out(ring.chunk(nranks - 1)));
}

template <class P, class Circle>
void ring_reduce_scatter(P& p, const Circle& ring) {
  const int nranks = ring.nranks;
  p.chunks(nranks, 1);
  p.lane(0);
  if (nranks == 1) return p.copy(in(0), out(0), Sum::kFinal);
  p.send(in(ring.chunk(1)), {{ring.next, Ring::kFirst}});

  p.lane(1);
  for (int back = 2; back < nranks; ++back)
    p.recv_reduce_send({ring.sums(back)}, in(ring.chunk(back)), {{ring.next, Ring::kPartial}}, own_after(1));
  p.recv_reduce_copy({ring.sums(nranks)}, in(ring.rank), out(0), own_after(1), Sum::kFinal);
}

template <class P, class Circle>
void ring_all_gather(P& p, const Circle& ring) {
  const int nranks = ring.nranks;
  p.chunks(1, nranks);
  p.lane(0);
  if (nranks == 1) return p.copy(in(0), out(0));
  p.copy_send(in(0), out(ring.rank), {{ring.next, Ring::kComplete}});

  p.lane(1);
  for (int back = 1; back < nranks - 1; ++back)
    p.recv_copy_send({ring.complete(back)}, out(ring.chunk(back)), {{ring.next, Ring::kPassedOn}});
  p.recv({ring.complete(nranks - 1)}, out(ring.chunk(nranks - 1)));
}

template <class P>
void ring_all_reduce(P& p, Rank rank, int nranks) {
  ring_all_reduce(p, Ring(rank, nranks));
}
template <class P>
void ring_reduce_scatter(P& p, Rank rank, int nranks) {
  ring_reduce_scatter(p, Ring(rank, nranks));
}
template <class P>
void ring_all_gather(P& p, Rank rank, int nranks) {
  ring_all_gather(p, Ring(rank, nranks));
}

}  // namespace rondo::algorithms
