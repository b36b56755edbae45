// Binomial gather and scatter: whole subtrees travel as one message, which makes few steps.
//
//     gather to 0          1 --x1--> 0     3 --x3--> 2         Rank v, counted from the root, has the block of ranks
//                          2 --x2 x3--> 0                      v .. v + lowest bit of v - 1. It collects the blocks of
//                                                              v + 1, v + 2, v + 4, ... and sends its whole block to v
//     scatter from 0       0 --y2 y3--> 2                      without its lowest bit. Scatter sends along the same
//                          0 --y1--> 1     2 --y3--> 3         edges downwards, the largest block first.
//
//   4 ranks, root 0, rank 2:    gather    keep x2 in scratch[2]; recv scratch[3] from 3; send both to 0
//                               scatter   recv scratch[2 3] from 0; send [3] to 3; keep [2]
//
// One lane: each message needs the previous one. Blocks are ranges of chunks, cyclic past rank N - 1.
//
// Steps: floor(log2 N), the maximum number of one bits in a number below N. Bytes sent per rank: gather at most S/2
// (the largest block: min(2^k, N - 2^k) / N S for some 2^k < N), scatter (N-1)/N S by the root.
// Source: textbook, e.g. Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication" (2007).
#pragma once

#include <algorithm>
#include <bit>

#include "rondo/algorithm.h"

namespace rondo::algorithms {

/// A rank's place in the binomial tree.
struct Binomial {
  static constexpr uint16_t kBlock = 0;

  Binomial(Rank r, int n, Rank the_root) : rank(r), nranks(n), root(the_root), v((r - the_root + n) % n) {}
  Rank rank;
  int nranks;
  Rank root;
  int v;  // rank number relative to the root

  Rank at(int place) const { return (place + root) % nranks; }
  /// The end of this rank's block: its lowest bit, for the root all ranks.
  int end() const { return v == 0 ? nranks : v & -v; }
  PortSet parent() const { return {{at(v & (v - 1)), kBlock}}; }
  PortSet child(int bit) const { return {{at(v + bit), kBlock}}; }
  bool has_child(int bit) const { return bit < end() && v + bit < nranks; }
  int child_block(int bit) const { return std::min(bit, nranks - v - bit); }
  int block() const { return v == 0 ? nranks : std::min(end(), nranks - v); }
};

template <class P>
void binomial_gather(P& p, Rank rank, int nranks, Rank root) {
  const Binomial self(rank, nranks, root);
  p.chunks(1, nranks, nranks);
  p.lane(0);
  if (self.block() == 1 && self.v != 0) return p.send(in(0), self.parent());
  const Buffer where = self.v == 0 ? Buffer::kOut : Buffer::kScratch;
  p.copy(in(0), {where, rank});
  for (int bit = 1; self.has_child(bit); bit *= 2)
    p.recv(self.child(bit), {where, self.at(self.v + bit), self.child_block(bit)});
  if (self.v != 0) p.send(scratch(rank, self.block()), self.parent());
}

template <class P>
void binomial_scatter(P& p, Rank rank, int nranks, Rank root) {
  const Binomial self(rank, nranks, root);
  p.chunks(nranks, 1, nranks);
  p.lane(0);
  if (self.block() == 1 && self.v != 0) return p.recv(self.parent(), out(0));
  const Buffer where = self.v == 0 ? Buffer::kIn : Buffer::kScratch;
  if (self.v != 0) p.recv(self.parent(), scratch(rank, self.block()));
  int bit = 1;
  while (self.has_child(bit)) bit *= 2;
  for (bit /= 2; bit >= 1; bit /= 2) p.send({where, self.at(self.v + bit), self.child_block(bit)}, self.child(bit));
  p.copy({where, rank}, out(0));
}

constexpr int64_t binomial_steps(int nranks) { return std::bit_width(static_cast<unsigned>(nranks)) - 1; }
constexpr Cost binomial_scatter_cost(int nranks) { return {binomial_steps(nranks), nranks - 1, nranks}; }
constexpr Cost binomial_gather_cost(int nranks) {  // the largest block that a rank sends
  int64_t largest = 0;
  for (int bit = 1; bit < nranks; bit *= 2) largest = std::max<int64_t>(largest, std::min(bit, nranks - bit));
  return {binomial_steps(nranks), largest, nranks};
}

}  // namespace rondo::algorithms
