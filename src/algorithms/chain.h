// The ring for collectives with a root: broadcast and reduce along the chain of all ranks.
//
//     broadcast from 1      1 ---> 2 ---> 3 ---> 0      Every rank receives from the previous and sends to the next.
//     reduce to 1           2 ---> 3 ---> 0 ---> 1      Every rank adds its own data to the sum that passes.
//
//   4 ranks, root 1, rank 3:    broadcast   recv from 2, keep it, send it to 0
//                               reduce      recv x2 from 2, send (x2 + x3) to 0
//
// On several hosts the chain visits one host after the other, the root's host first (broadcast) or last (reduce), and
// M-1 of the steps cross hosts.
//
// One chunk: loops are windows of it. A long buffer streams through the chain, and all links are busy at once.
//
// Steps: N-1. Bytes sent per rank: S, except 0 by the last one of the chain.
// Order of addition: x[root+1], x[root+2], ..., x[root]; on hosts and places in the order of the chain.
// Source: the pipelined chain, e.g. Patarasuk, Faraj and Yuan, "Pipelined broadcast on Ethernet switched clusters"
// (2006).
#pragma once

#include "rondo/host_layout.h"
#include "rondo/recorder.h"

namespace rondo::algorithms {

/// A rank's neighbours on the chain, and its distance from the root.
struct ChainLink {
  enum class To { kAll, kRoot };
  ChainLink(Rank r, const HostLayout& layout, Rank the_root, To where)
      : hosts(layout),
        root(the_root),
        to(where),
        hops(hops_of(r)),
        before{{rank_at(hops - 1)}},
        after{{rank_at(hops + 1)}} {}
  const HostLayout& hosts;
  Rank root;
  To to;
  int hops;  // from the root to here
  PortSet before, after;

 private:
  // The root's local peers come first if data flows from the root, and last if it flows to the root. Hop 0 is the root.
  int first_local_peer() const { return to == To::kAll ? 1 : hosts.nranks() - num_local_peers(); }
  int first_other() const { return to == To::kAll ? 1 + num_local_peers() : 1; }
  int num_local_peers() const { return hosts.num_ranks(hosts.host(root)) - 1; }
  int end_of_home() const { return hosts.position(root) - hosts.local(root) + num_local_peers() + 1; }
  int hops_of(Rank r) const {
    if (r == root) return 0;
    if (!hosts.same_host(r, root))
      return first_other() + (hosts.position(r) - end_of_home() + hosts.nranks()) % hosts.nranks();
    return first_local_peer() + (hosts.local(r) - hosts.local(root) + num_local_peers()) % (num_local_peers() + 1);
  }
  Rank rank_at(int hop) const {
    const int n = hosts.nranks(), h = (hop + n) % n;
    if (h == 0) return root;
    if (h >= first_local_peer() && h < first_local_peer() + num_local_peers())
      return hosts.rank(hosts.host(root), (hosts.local(root) + 1 + h - first_local_peer()) % (num_local_peers() + 1));
    return hosts.rank_at((end_of_home() + h - first_other()) % n);
  }
};

template <class P>
void ring_broadcast(P& p, Rank rank, const HostLayout& hosts, Rank root) {
  const ChainLink link(rank, hosts, root, ChainLink::To::kAll);
  const int nranks = hosts.nranks();
  p.chunks(1, 1);
  p.lane(0);
  if (link.hops == 0) p.copy_send(in(0), out(0), link.after);
  else if (link.hops < nranks - 1) p.recv_copy_send(link.before, out(0), link.after);
  else p.recv(link.before, out(0));
}

template <class P>
void ring_reduce(P& p, Rank rank, const HostLayout& hosts, Rank root) {
  const ChainLink link(rank, hosts, root, ChainLink::To::kRoot);
  p.chunks(1, 1);
  p.lane(0);
  if (link.hops == 1) p.send(in(0), link.after);
  else if (link.hops > 1) p.recv_reduce_send(link.before, in(0), link.after, own_after(1));
  else p.recv_reduce_copy(link.before, in(0), out(0), own_after(1), Sum::kFinal);
}

}  // namespace rondo::algorithms
