// Hierarchical broadcast and reduce: one crossing from the root's host to each other host, or back.
//
//     broadcast from 0      0 ==> {1}            inside: written once, read by the local peers
//     2 x 2 ranks           0 ~~> 2   1 ~~> 3    across: each half from its agent (two_levels.h) to its agent there
//                           2 ==> {3} 3 ==> {2}  inside
//     reduce to 0           3 --> 2   2 --> 3    each half of the data to its agent, which adds
//                           2 ~~> 0   3 ~~> 1    across: the host's sums
//                           1 --> 0              inside: half 1, complete
//
// The ranks of a host share the work at the ends of its link (in a broadcast at most eight of them).
//
// Steps: 1 across, 1 in the root's host and 1 in the others if they have several ranks. Bytes (M hosts): (M-1) S over
// the root's host's link, S over the others'. For many hosts and long messages ring and tree send less there.
// Order of addition: the other hosts' sums, ascending, then the ranks of the root's host; inside a host in the layout's
// order, ascending by default.
// Source: Karonis et al., "Exploiting hierarchy in parallel computer networks" (2000).
#pragma once

#include "algorithms/two_levels.h"

namespace rondo::algorithms {

template <class P>
void hierarchical_broadcast(P& p, Rank rank, const HostLayout& hosts, Rank root) {
  const TwoLevels self(rank, hosts, TwoLevels::Cut::kFew);
  const int n = self.num_chunks(), home = hosts.host(root);
  p.chunks(n, n);
  p.lane(0);
  for (int i = 0; i < n; ++i) {
    const bool agent = self.agent(self.host, 0, i) == rank;
    const PortSet across = agent ? self.other_agents(0, i, TwoLevels::kComplete) : PortSet();
    if (rank == root) {
      const PortSet to = across + self.to_local_peers(TwoLevels::kComplete);
      if (to.empty()) p.copy(in(i), out(i));
      else p.copy_send(in(i), out(i), to);
    } else if (self.host == home) {
      const PortSet from{{root, TwoLevels::kComplete, kGroupHost}};
      if (across.empty()) p.recv(from, out(i));
      else p.recv_copy_send(from, out(i), across);
    } else if (agent) {
      const PortSet from{{self.agent(home, 0, i), TwoLevels::kComplete}},
          local_peers = self.to_local_peers(TwoLevels::kPassedOn);
      if (local_peers.empty()) p.recv(from, out(i));
      else p.recv_copy_send(from, out(i), local_peers);
    }
  }
  if (self.host == home) return;
  p.lane(1);
  for (int i = 0; i < n; ++i)
    if (const Rank agent = self.agent(self.host, 0, i); agent != rank)
      p.recv({{agent, TwoLevels::kPassedOn, kGroupHost}}, out(i));
}

template <class P>
void hierarchical_reduce(P& p, Rank rank, const HostLayout& hosts, Rank root) {
  const TwoLevels self(rank, hosts, TwoLevels::Cut::kShared);
  const int n = self.num_chunks(), home = hosts.host(root);
  p.chunks(n, n);
  p.lane(0);
  for (int i = 0; i < n; ++i)
    if (const Rank agent = self.agent(self.host, 0, i); agent != rank) p.send(in(i), {{agent, TwoLevels::kGive}});

  p.lane(1);
  for (int i = self.mine(0).first; i < self.mine(0).last; ++i) {
    PortSet from;
    if (self.host == home) from = self.other_agents(0, i, TwoLevels::kSum);
    const Order order = own_after(static_cast<int>(from.size()) + self.local);
    from = from + self.from_local_peers(TwoLevels::kGive);
    const PortSet across{{self.agent(home, 0, i), TwoLevels::kSum}};
    if (rank == root) p.recv_reduce_copy(from, in(i), out(i), order, Sum::kFinal);
    else if (self.host == home) p.recv_reduce_send(from, in(i), {{root, TwoLevels::kComplete}}, order, Sum::kFinal);
    else if (from.empty()) p.send(in(i), across);
    else p.recv_reduce_send(from, in(i), across, order);
  }
  if (rank != root) return;
  p.lane(2);
  for (int i = 0; i < n; ++i)
    if (const Rank agent = self.agent(self.host, 0, i); agent != rank) p.recv({{agent, TwoLevels::kComplete}}, out(i));
}

}  // namespace rondo::algorithms
