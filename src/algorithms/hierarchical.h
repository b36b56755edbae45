// Hierarchical all-reduce, reduce-scatter and all-gather for ranks on several hosts, whose links are slower than
// memory: reduce-scatter inside the hosts, all-reduce across them, all-gather inside.
//
//       host 0        host 1         Chunk 2 belongs to host 1, and its agents are ranks 0 and 2 (two_levels.h):
//      0      1      2      3        inside     1 --> 0, 3 --> 2            contributions to the agents
//      |      |      |      |        across     0 ~~> 2                     host 0's sum; rank 2 adds: complete
//      +~~~~~ | ~~~~~+      |        across     2 ~~> 0                     the complete chunk
//             +~~~~~~~~~~~~~+        inside     2 ==> {3}, 0 ==> {1}        written once, read by all local peers
//
//   2 x 2 ranks, rank 0 (agent of 0 2):   give   send chunks 3 1 to rank 1
//                                         start  recv x1[2], add mine: host 0's sum; send it to 2
//                                         sum    recv x1[0], and host 1's sum, from 2; add mine: complete; keep it;
//                                                send it to 2 and to {1}
//                                         pass   recv chunk 2 from 2, keep it, send it to {1}
//                                         take   recv chunks 1 3 from 1
//
// Each host sends its sum straight to the host of the chunk, which sends the complete chunk straight to all others: 2
// crossings for any number of hosts. (A ring of hosts would send as many bytes and cross 2(M-1) times. To let each host
// send to its neighbours only, use the ring of all ranks, which enters each host once.)
//
// A second all-reduce has 1 crossing: all hosts exchange their sums of all chunks and all add them. It is for small
// messages, and for two hosts, for which it sends no more bytes.
//
// One lane for each role in the list above: while a loop's chunks cross, the next loop's are added inside.
//
// Bytes over a host's link (M hosts, S = the whole buffer): all-reduce 2(M-1)/M S, in one crossing (M-1) S;
// reduce-scatter and all-gather (M-1)/M S. Ranks of hosts of equal size share them evenly.
// Steps: all-reduce 4, in one crossing 3, reduce-scatter and all-gather 2; fewer if hosts have one rank.
// Order of addition: the other hosts' sums, ascending, then the ranks of the chunk's host; in one crossing the hosts'
// sums, ascending. Ranks of a host are added in the layout's order, ascending by default.
// Source: two-level all-reduce, e.g. Jia et al., "Highly scalable deep learning training system with mixed-precision"
// (2018); Karonis et al., "Exploiting hierarchy in parallel computer networks" (2000).
#pragma once

#include "algorithms/two_levels.h"

namespace rondo::algorithms {

/// Sends chunks to their agents on this host; lane 0.
template <class P>
void give_to_local_peers(P& p, const TwoLevels& self) {
  self.for_all_chunks(TwoLevels::Home::kLast, [&](int home, int i) {
    if (self.is_mine(home, i)) return;
    p.send(in(self.chunk(home, i)),
           {{self.agent(self.host, home, i), home == self.host ? TwoLevels::kGive : TwoLevels::kGiveAway}});
  });
}

/// This rank's part of all sums. Lane 1: sums for other hosts. Lane 2: this host's sums, recorded by `complete(from, i,
/// order)`.
template <class P, class Complete>
void sum_across(P& p, const TwoLevels& self, Complete complete) {
  const PortSet away = self.from_local_peers(TwoLevels::kGiveAway), here = self.from_local_peers(TwoLevels::kGive);
  self.for_all_chunks(TwoLevels::Home::kLast, [&](int home, int i) {
    if (!self.is_mine(home, i)) return;
    if (home == self.host) {
      const PortSet others = self.other_agents(home, i, TwoLevels::kSum);
      p.lane(2);
      return complete(others + here, i, own_after(static_cast<int>(others.size()) + self.local));
    }
    const Chunk mine = in(self.chunk(home, i));
    const PortSet across{{self.agent(home, home, i), TwoLevels::kSum}};
    p.lane(1);
    if (away.empty()) p.send(mine, across);
    else p.recv_reduce_send(away, mine, across, own_after(self.local));
  });
}

/// The receivers of a complete chunk of this host.
inline PortSet to_all(const TwoLevels& self, int i) {
  return self.other_agents(self.host, i, TwoLevels::kComplete) + self.to_local_peers(TwoLevels::kComplete);
}

/// Receives the other hosts' complete chunks and passes them to local peers; receives the chunks of local peers.
template <class P>
void spread(P& p, const TwoLevels& self, int pass, int take) {
  const PortSet local_peers = self.to_local_peers(TwoLevels::kPassedOn);
  p.lane(pass);
  self.for_all_chunks(TwoLevels::Home::kFirst, [&](int home, int i) {
    if (home == self.host || !self.is_mine(home, i)) return;
    const PortSet from{{self.agent(home, home, i), TwoLevels::kComplete}};
    if (local_peers.empty()) p.recv(from, out(self.chunk(home, i)));
    else p.recv_copy_send(from, out(self.chunk(home, i)), local_peers);
  });

  p.lane(take);
  self.for_all_chunks(TwoLevels::Home::kFirst, [&](int home, int i) {
    if (self.is_mine(home, i)) return;
    const uint16_t tag = home == self.host ? TwoLevels::kComplete : TwoLevels::kPassedOn;
    p.recv({{self.agent(self.host, home, i), tag, kGroupHost}}, out(self.chunk(home, i)));
  });
}

template <class P>
void hierarchical_all_reduce(P& p, Rank rank, const HostLayout& hosts) {
  const TwoLevels self(rank, hosts, TwoLevels::Cut::kEven);
  p.chunks(self.num_chunks(), self.num_chunks());
  p.lane(0);
  give_to_local_peers(p, self);
  sum_across(p, self, [&](const PortSet& from, int i, Order order) {
    const int c = self.chunk(self.host, i);
    p.recv_reduce_copy_send(from, in(c), out(c), to_all(self, i), order, Sum::kFinal);
  });
  spread(p, self, 3, 4);
}

template <class P>
void hierarchical_reduce_scatter(P& p, Rank rank, const HostLayout& hosts) {
  const TwoLevels self(rank, hosts, TwoLevels::Cut::kByRank);
  p.chunks(self.num_chunks(), 1);
  p.lane(0);
  give_to_local_peers(p, self);
  sum_across(p, self, [&](const PortSet& from, int, Order order) {
    p.recv_reduce_copy(from, in(rank), out(0), order, Sum::kFinal);
  });
}

template <class P>
void hierarchical_all_gather(P& p, Rank rank, const HostLayout& hosts) {
  const TwoLevels self(rank, hosts, TwoLevels::Cut::kByRank);
  p.chunks(1, self.num_chunks());
  p.lane(0);
  p.copy_send(in(0), out(rank), to_all(self, self.local));
  spread(p, self, 1, 2);
}

/// One crossing: all hosts exchange their sums, and each adds all of them.
template <class P>
void hierarchical_one_shot_all_reduce(P& p, Rank rank, const HostLayout& hosts) {
  const TwoLevels self(rank, hosts, TwoLevels::Cut::kShared);
  const int n = self.num_chunks();
  const auto [first, last] = self.mine(0);
  const bool alone = self.num_local_peers == 0;  // the host's sum is its one rank's input
  p.chunks(n, n, n);
  p.lane(0);
  for (int i = 0; i < n; ++i)
    if (!self.is_mine(0, i)) p.send(in(i), {{self.agent(self.host, 0, i), TwoLevels::kGiveAway}});

  p.lane(1);
  const PortSet local_peers = self.from_local_peers(TwoLevels::kGiveAway);
  for (int i = first; i < last; ++i) {
    const PortSet others = self.other_agents(0, i, TwoLevels::kSum);
    if (alone) p.send(in(i), others);
    else if (!others.empty())
      p.recv_reduce_copy_send(local_peers, in(i), scratch(i), others, own_after(self.local), Sum::kPartial);
    else
      p.recv_reduce_copy_send(local_peers, in(i), out(i), self.to_local_peers(TwoLevels::kComplete),
                              own_after(self.local), Sum::kFinal);
  }

  p.lane(2);
  for (int i = first; i < last && self.num_hosts > 1; ++i) {
    const PortSet others = self.other_agents(0, i, TwoLevels::kSum);
    p.wait(1, i - first);
    if (alone) p.recv_reduce_copy(others, in(i), out(i), own_after(self.host), Sum::kFinal);
    else
      p.recv_reduce_copy_send(others, scratch(i), out(i), self.to_local_peers(TwoLevels::kComplete),
                              own_after(self.host), Sum::kFinal);
  }

  p.lane(3);
  for (int i = 0; i < n; ++i)
    if (!self.is_mine(0, i)) p.recv({{self.agent(self.host, 0, i), TwoLevels::kComplete, kGroupHost}}, out(i));
}

}  // namespace rondo::algorithms
