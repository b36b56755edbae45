// The ring (ring.h) on several hosts: it visits one host after the other.
//
//     ranks dealt round robin, 0 2 | 1 3:      0 ---> 2 ~~~> 1 ---> 3 ~~~> 0     two crossings a round instead of four
//
// If the ranks of each host are contiguous, it is the plain ring.
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
  /// The chunk of the rank `back` hops behind.
  int chunk(int back) const { return hosts.rank_at((at - back + nranks) % nranks); }
};

}  // namespace rondo::algorithms
