// The rings (ring.h, chain.h) where ranks stand on several hosts: through one host after the other.
//
//     ranks dealt out by turns, 0 2 | 1 3:     0 ---> 2 ~~~> 1 ---> 3 ~~~> 0     two crossings a round instead of four
//
// Where the ranks of a host follow one another the ring is the same as without hosts.
#pragma once

#include "algorithms/ring.h"
#include "rondo/host_layout.h"

namespace rondo::algorithms {

struct HostRing : Ring {
  HostRing(Rank r, const HostLayout& h) : Ring(h.position(r), h.nranks()), hosts(h), at(rank) {
    rank = r;
    next = h.rank_at(next);
    prev = h.rank_at(prev);
  }
  const HostLayout& hosts;
  int at;
  /// The chunk that belongs to the rank `back` hops behind.
  int chunk(int back) const { return hosts.rank_at((at - back + nranks) % nranks); }
};

}  // namespace rondo::algorithms
