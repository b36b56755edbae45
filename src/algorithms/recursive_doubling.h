// Recursive-doubling all-reduce, for any number of ranks.
//
//     round 0   0 <-> 1    2 <-> 3     In round k two ranks whose numbers differ in bit k exchange their sums and add
//     round 1   0 <-> 2    1 <-> 3     them. Afterwards each holds the sum of 2^(k+1) neighbours.
//
//   4 ranks, rank 2:              send x2 to 3
//                                 recv x3, out = x2 + x3, send it to 0
//                                 recv (x0 + x1), out = (x0 + x1) + (x2 + x3)
//
// If N is not a power of two, P is the highest one below it, and the first 2 (N - P) ranks pair up: of (2i, 2i+1) the
// odd one folds its data into the even one's, sits out, and receives the result. Every sum then covers neighbouring
// ranks. The sum of the lower ranks is the left operand on both sides, which gives all ranks the same bits. 6 ranks:
//
//     fold      1 --> 0    3 --> 2     seats: {0 1} = 0, {2 3} = 1, 4 = 2, 5 = 3
//     rounds    0 <-> 2    4 <-> 5     then    0 <-> 4    2 <-> 5
//     result    0 --> 1    2 --> 3
//
// One lane: each message needs the previous one.
//
// Steps: log2 P; 1 more if N is not a power of two, or 2 more if more than half of the seats are shared (otherwise no
// chain of messages leads from a fold through all rounds to another pair's result).
// Bytes sent per rank: S log2 P, S more by a rank that folded.
// Order of addition: a balanced tree over ascending ranks.
// Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005).
#pragma once

#include "rondo/algorithm.h"

namespace rondo::algorithms {

struct RecursiveDoubling {
  static constexpr uint16_t kFold = 0, kExchange = 1, kResult = 2;

  static constexpr int rounds(int nranks) {
    int k = 0;
    while ((2 << k) <= nranks) ++k;
    return k;
  }
  static constexpr int folded(int nranks) { return nranks - (1 << rounds(nranks)); }

  RecursiveDoubling(Rank r, int n) : rank(r), pairs(folded(n)) {}
  Rank rank;
  int pairs;  // ranks below 2 * pairs share a seat with their neighbour
  bool shares_seat() const { return rank < 2 * pairs; }
  bool sits_out() const { return shares_seat() && rank % 2 == 1; }
  int seat() const { return shares_seat() ? rank / 2 : rank - pairs; }
  Rank partner(int round) const {
    const int other = seat() ^ (1 << round);
    return other < pairs ? 2 * other : other + pairs;
  }
  /// The lower ranks' sum is on the left.
  Order order(Rank peer) const { return peer < rank ? own_after(1) : kOwnFirst; }
};

template <class P>
void recursive_doubling_all_reduce(P& p, Rank rank, int nranks) {
  using Self = RecursiveDoubling;
  const Self self(rank, nranks);
  const int rounds = Self::rounds(nranks);
  p.chunks(1, 1);
  p.lane(0);
  if (self.sits_out()) {
    p.send(in(0), {{rank - 1, Self::kFold}});
    p.recv({{rank - 1, Self::kResult}}, out(0));
    return;
  }

  Chunk sum = in(0);
  if (self.shares_seat()) {
    p.recv_reduce_copy_send({{rank + 1, Self::kFold}}, in(0), out(0), {{self.partner(0), Self::kExchange}}, kOwnFirst,
                            Sum::kPartial);
    sum = out(0);
  } else {
    p.send(in(0), {{self.partner(0), Self::kExchange}});
  }
  for (int round = 0; round < rounds - 1; ++round) {
    const Rank peer = self.partner(round);
    p.recv_reduce_copy_send({{peer, Self::kExchange}}, sum, out(0), {{self.partner(round + 1), Self::kExchange}},
                            self.order(peer), Sum::kPartial);
    sum = out(0);
  }
  const Rank last = self.partner(rounds - 1);
  if (self.shares_seat())
    p.recv_reduce_copy_send({{last, Self::kExchange}}, sum, out(0), {{rank + 1, Self::kResult}}, self.order(last),
                            Sum::kFinal);
  else p.recv_reduce_copy({{last, Self::kExchange}}, sum, out(0), self.order(last), Sum::kFinal);
}

/// Steps of the rounds among seats, and of the fold and the result if seats are shared.
constexpr int64_t seat_steps(int nranks) {
  const int rounds = RecursiveDoubling::rounds(nranks), pairs = RecursiveDoubling::folded(nranks);
  return rounds + (pairs == 0 ? 0 : 2 * pairs > 1 << rounds ? 2 : 1);
}
constexpr Cost recursive_doubling_cost(int nranks) {
  return {seat_steps(nranks), RecursiveDoubling::rounds(nranks) + (RecursiveDoubling::folded(nranks) == 0 ? 0 : 1), 1};
}

}  // namespace rondo::algorithms
