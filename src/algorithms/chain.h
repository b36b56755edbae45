// The ring for collectives with a root: broadcast and reduce along the chain of all ranks.
//
//     broadcast from 1      1 ---> 2 ---> 3 ---> 0      Every rank hears from the one before and tells the one after.
//     reduce to 1           2 ---> 3 ---> 0 ---> 1      Every rank adds its own to the sum that comes by.
//
//   4 ranks, root 1, what rank 3 does:     broadcast   recv from 2, keep it, send it to 0
//                                          reduce      recv x2 from 2, send (x2 + x3) to 0
//
// One chunk: loops are windows of it, so a long buffer streams through the chain and all links are busy at once.
//
// Steps: N-1. Bytes sent per rank: S, by the last one of the chain nothing.
// Order of addition: x[root+1], x[root+2], ..., x[root].
// Source: the pipelined chain, e.g. Patarasuk, Faraj and Yuan, "Pipelined broadcast on Ethernet switched clusters"
// (2006).
#pragma once

#include "rondo/recorder.h"

namespace rondo::algorithms {

/// A rank's neighbours on the ring, and how far it stands behind the root.
struct ChainLink {
  ChainLink(Rank r, int n, Rank root) : hops((r - root + n) % n), before{{(r + n - 1) % n}}, after{{(r + 1) % n}} {}
  int hops;  // from the root to here
  PortSet before, after;
};

template <class P>
void ring_broadcast(P& p, Rank rank, int nranks, Rank root) {
  const ChainLink link(rank, nranks, root);
  p.chunks(1, 1);
  p.lane(0);
  if (nranks == 1) p.copy(in(0), out(0));
  else if (link.hops == 0) p.copy_send(in(0), out(0), link.after);
  else if (link.hops < nranks - 1) p.recv_copy_send(link.before, out(0), link.after);
  else p.recv(link.before, out(0));
}

template <class P>
void ring_reduce(P& p, Rank rank, int nranks, Rank root) {
  const ChainLink link(rank, nranks, root);
  p.chunks(1, 1);
  p.lane(0);
  if (nranks == 1) p.copy(in(0), out(0), Sum::kFinal);
  else if (link.hops == 1) p.send(in(0), link.after);
  else if (link.hops > 1) p.recv_reduce_send(link.before, in(0), link.after, own_after(1));
  else p.recv_reduce_copy(link.before, in(0), out(0), own_after(1), Sum::kFinal);
}

}  // namespace rondo::algorithms
