// Ring all-reduce, reduce-scatter and all-gather.
//
//        0 ---> 1          Every rank r sends only to r + 1 and receives only from r - 1 (modulo N).
//        ^      |          The data has N chunks. In the reduce-scatter half, rank c + 1 sends chunk c, each further
//        |      v          rank adds its contribution, and rank c gets the complete sum. In the all-gather half,
//        3 <--- 2          rank c sends the complete chunk c, and each rank forwards it.
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
// There are three lanes, one for each role of a rank. "start" sends the rank's own contribution, "reduce" adds received
// data, "gather" forwards complete chunks. A rank can therefore start the next loop while it still processes an earlier
// one. A connection has one writing lane and one reading lane. Therefore each kind of message has a tag: kFirst (a
// rank's own contribution), kPartial (a partial sum), kComplete (a complete chunk from its owner), kPassedOn (a
// complete chunk from another rank).
//
// On several hosts the ring visits one host after the other. With M hosts a chunk crosses between hosts M times in one
// circle, however the ranks are distributed. Chunks keep the numbers of their owners. Ranks dealt round robin:
//
//     hosts 0 2 | 1 3      0 ---> 2 ~~~> 1 ---> 3 ~~~> 0     two crossings (~~~>) in a circle instead of four
//
// Steps: all-reduce 2(N-1), the halves N-1. Bytes sent per rank: 2(N-1)/N S and (N-1)/N S.
// Order of addition for chunk c: x[c+1], x[c+2], ..., x[c], or the ring's order on several hosts or places. It
// therefore depends on the number of the chunk.
// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
#pragma once

#include "rondo/host_layout.h"
#include "rondo/recorder.h"

namespace rondo::algorithms {

struct Ring {
  static constexpr uint16_t kFirst = 0, kPartial = 1, kComplete = 2, kPassedOn = 3;

  Ring(Rank r, const HostLayout& h) : hosts(h), nranks(h.nranks()), rank(r), next(away(1)), prev(away(-1)) {}
  const HostLayout& hosts;
  int nranks;
  Rank rank, next, prev;
  /// Returns the rank that is `hops` hops ahead of this one; at least -N.
  Rank away(int hops) const { return hosts.rank_at((hosts.position(rank) + hops + nranks) % nranks); }
  /// Returns the chunk of the rank that is `back` hops behind this one.
  int chunk(int back) const { return away(-back); }
  /// Returns the port that receives the sum of chunk(back). If back is 2, it is one rank's own contribution.
  Port sums(int back) const { return {prev, back == 2 ? kFirst : kPartial}; }
  /// Returns the port that receives the complete chunk(back). If back is 1, its owner sends it.
  Port complete(int back) const { return {prev, back == 1 ? kComplete : kPassedOn}; }
};

template <class P>
void ring_all_reduce(P& p, Rank rank, const HostLayout& hosts) {
  const Ring ring(rank, hosts);
  const int nranks = ring.nranks;
  p.chunks(nranks, nranks);
  p.lane(0);
  p.send(in(ring.chunk(1)), {{ring.next, Ring::kFirst}});

  p.lane(1);
  for (int back = 2; back < nranks; ++back)
    p.recv_reduce_send({ring.sums(back)}, in(ring.chunk(back)), {{ring.next, Ring::kPartial}}, own_after(1));
  p.recv_reduce_copy_send({ring.sums(nranks)}, in(rank), out(rank), {{ring.next, Ring::kComplete}}, own_after(1),
                          Sum::kFinal);

  p.lane(2);
  for (int back = 1; back < nranks - 1; ++back)
    p.recv_copy_send({ring.complete(back)}, out(ring.chunk(back)), {{ring.next, Ring::kPassedOn}});
  p.recv({ring.complete(nranks - 1)}, out(ring.chunk(nranks - 1)));
}

template <class P>
void ring_reduce_scatter(P& p, Rank rank, const HostLayout& hosts) {
  const Ring ring(rank, hosts);
  const int nranks = ring.nranks;
  p.chunks(nranks, 1);
  p.lane(0);
  p.send(in(ring.chunk(1)), {{ring.next, Ring::kFirst}});

  p.lane(1);
  for (int back = 2; back < nranks; ++back)
    p.recv_reduce_send({ring.sums(back)}, in(ring.chunk(back)), {{ring.next, Ring::kPartial}}, own_after(1));
  p.recv_reduce_copy({ring.sums(nranks)}, in(rank), out(0), own_after(1), Sum::kFinal);
}

template <class P>
void ring_all_gather(P& p, Rank rank, const HostLayout& hosts) {
  const Ring ring(rank, hosts);
  const int nranks = ring.nranks;
  p.chunks(1, nranks);
  p.lane(0);
  p.copy_send(in(0), out(rank), {{ring.next, Ring::kComplete}});

  p.lane(1);
  for (int back = 1; back < nranks - 1; ++back)
    p.recv_copy_send({ring.complete(back)}, out(ring.chunk(back)), {{ring.next, Ring::kPassedOn}});
  p.recv({ring.complete(nranks - 1)}, out(ring.chunk(nranks - 1)));
}

}  // namespace rondo::algorithms
