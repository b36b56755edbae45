// Recursive halving and doubling: all-reduce, reduce-scatter and all-gather, for any number of ranks.
//
//     halving     0 <-> 2   1 <-> 3     In each round ranks at distance 2^k exchange data, the farthest first. A rank
//                 0 <-> 1   2 <-> 3     sends the half of its block that the partner keeps, and adds the received data
//                                       to its own half. At the end its block is one complete chunk.
//     doubling    0 <-> 1   2 <-> 3     The same exchanges backwards, with complete blocks, which grow to the whole.
//                 0 <-> 2   1 <-> 3
//
//   4 ranks, rank 2:              send chunks 0 1 to 0; recv 2 3 from 0, add mine, keep in scratch
//     halving                     send chunk 3 to 3;    recv 2 from 3, add: complete; keep it, and
//     doubling                    send chunk 2 to 3;    recv 3 from 3
//                                 send chunks 2 3 to 0; recv 0 1 from 0
//
// If N is not a power of two, P is the highest one below it, and the first 2 (N - P) ranks share seats as in
// recursive_doubling.h: the odd rank of a pair adds its data to the even rank's and receives the result from it. An
// all-reduce has one chunk per seat. In the halves a shared seat handles the chunks of both its ranks.
//
// Each half has two lanes, "give" and "take". Giving in a round waits for the previous round; taking never waits for
// giving. Partial sums are in scratch.
//
// Steps, R = log2 P: all-reduce 2 R, or 2 R + 2 if N is not a power of two; the halves R, else R + 1, or R + 2 if more
// than half of the seats are shared.
// Bytes sent by the busiest rank: all-reduce 2(P-1)/P S, else (3P-2)/P S (an even rank of a pair also sends the
// result). Reduce-scatter (N-1)/N S, else S (an odd rank). All-gather (N-1)/N S, else (seat 0, with the most shared
// seats) the sum of d + min(d, N - P) chunks, d = 1, 2, 4, .., P/2, and of the N - 1 passed on to its partner.
// Order of addition: a balanced tree, the lower seats' sum on the left.
// Source: Rabenseifner, "Optimization of collective reduction operations" (2004); Thakur, Rabenseifner, Gropp (2005).
#pragma once

#include <algorithm>

#include "algorithms/recursive_doubling.h"

namespace rondo::algorithms {

/// Seats and their chunks.
struct HalvingDoubling : RecursiveDoubling {
  static constexpr uint16_t kSum = 1, kComplete = 3, kPassedOn = 4;         // in addition to kFold and kResult
  static constexpr int kGiveSums = 0, kTakeSums = 1, kGive = 2, kTake = 3;  // lanes of the all-reduce
  enum class Cut { kBySeat, kByRank };                                      // the unit of a chunk

  HalvingDoubling(Rank r, int n, Cut the_cut)
      : RecursiveDoubling(r, n), nranks(n), num_seats(n - pairs), cut(the_cut) {}
  int nranks;
  int num_seats;  // P
  Cut cut;

  /// The rank on the seat at `distance`.
  Rank across(int distance) const { return rank_of(seat() ^ distance); }
  Rank rank_of(int seat) const { return seat < pairs ? 2 * seat : seat + pairs; }
  int first_chunk(int seat) const { return cut == Cut::kBySeat ? seat : seat + std::min(seat, pairs); }
  /// The chunks of the aligned group of `size` seats that contains `seat`.
  Chunk block(Buffer buffer, int seat, int size) const {
    const int first = seat / size * size;
    return {buffer, first_chunk(first), first_chunk(first + size) - first_chunk(first)};
  }
  Chunk mine(Buffer buffer, int size) const { return block(buffer, seat(), size); }
  Chunk theirs(Buffer buffer, int distance) const { return block(buffer, seat() ^ distance, distance); }
};

/// The halving without its last addition; `complete(from, buffer)` records that. For ranks with a seat.
template <class P, class Complete>
void halving_sums(P& p, const HalvingDoubling& self, Complete complete) {
  using Self = HalvingDoubling;
  const int half = self.num_seats / 2, folds = self.shares_seat() ? 1 : 0;
  auto operand = [&](int distance) { return distance == half && folds == 0 ? Buffer::kIn : Buffer::kScratch; };
  p.lane(Self::kGiveSums);
  for (int distance = half, taken = folds; distance >= 1; distance /= 2, ++taken) {
    if (taken > 0) p.wait(Self::kTakeSums, taken - 1);
    const Chunk theirs = self.theirs(operand(distance), distance);
    const PortSet to{{self.across(distance), Self::kSum}};
    if (distance > 1) p.send(theirs, to);
    else
      for (int k = 0; k < theirs.num; ++k) p.send({theirs.buffer, theirs.first + k}, to);
  }

  p.lane(Self::kTakeSums);
  if (folds != 0)
    p.recv_reduce_copy({{self.rank + 1, Self::kFold}}, self.mine(Buffer::kIn, self.num_seats),
                       self.mine(Buffer::kScratch, self.num_seats), kOwnFirst, Sum::kPartial);
  for (int distance = half; distance > 1; distance /= 2) {
    const Rank peer = self.across(distance);
    p.recv_reduce_copy({{peer, Self::kSum}}, self.mine(operand(distance), distance),
                       self.mine(Buffer::kScratch, distance), self.order(peer), Sum::kPartial);
  }
  complete(self.across(1), operand(1));
}

/// The doubling, for ranks with a seat. The own seat's chunks are already sent to the first partner, and lane `take`
/// has `before` steps already.
template <class P>
void doubling_spread(P& p, const HalvingDoubling& self, int give, int take, int before) {
  using Self = HalvingDoubling;
  p.lane(give);
  for (int distance = 2; distance < self.num_seats; distance *= 2) {
    p.wait(take, before++);
    p.send(self.mine(Buffer::kOut, distance), {{self.across(distance), Self::kComplete}});
  }

  p.lane(take);
  for (int distance = 1; distance < self.num_seats; distance *= 2) {
    const PortSet from{{self.across(distance), Self::kComplete}};
    const Chunk theirs = self.theirs(Buffer::kOut, distance);
    if (self.shares_seat()) p.recv_copy_send(from, theirs, {{self.rank + 1, Self::kPassedOn}});
    else p.recv(from, theirs);
  }
}

/// The chunks that a rank without a seat receives, except its partner's own chunk.
template <class P>
void doubling_passed_on(P& p, const HalvingDoubling& self) {
  for (int distance = 1; distance < self.num_seats; distance *= 2)
    p.recv({{self.rank - 1, HalvingDoubling::kPassedOn}}, self.theirs(Buffer::kOut, distance));
}

template <class P>
void halving_doubling_all_reduce(P& p, Rank rank, int nranks) {
  using Self = HalvingDoubling;
  const Self self(rank, nranks, Self::Cut::kBySeat);
  p.chunks(self.num_seats, self.num_seats, self.num_seats);
  p.lane(0);
  if (self.sits_out()) {
    p.send(in(0, self.num_seats), {{rank - 1, Self::kFold}});
    p.lane(1);
    p.recv({{rank - 1, Self::kResult}}, self.mine(Buffer::kOut, 1));
    return doubling_passed_on(p, self);
  }
  halving_sums(p, self, [&](Rank peer, Buffer buffer) {
    PortSet to{{peer, Self::kComplete}};
    if (self.shares_seat()) to.push_back({rank + 1, Self::kResult});
    p.recv_reduce_copy_send({{peer, Self::kSum}}, self.mine(buffer, 1), self.mine(Buffer::kOut, 1), to,
                            self.order(peer), Sum::kFinal);
  });
  p.lane(Self::kGive);
  p.wait(Self::kTakeSums, Self::rounds(nranks) - (self.shares_seat() ? 0 : 1));  // the own seat's chunk is complete
  doubling_spread(p, self, Self::kGive, Self::kTake, 0);
}

template <class P>
void halving_reduce_scatter(P& p, Rank rank, int nranks) {
  using Self = HalvingDoubling;
  const Self self(rank, nranks, Self::Cut::kByRank);
  p.chunks(nranks, 1, nranks);
  p.lane(0);
  if (self.sits_out()) {
    p.send(in(0, nranks), {{rank - 1, Self::kFold}});
    p.lane(1);
    return p.recv({{rank - 1, Self::kResult}}, out(0));
  }
  halving_sums(p, self, [&](Rank peer, Buffer buffer) {
    const PortSet from{{peer, Self::kSum}};
    p.recv_reduce_copy(from, {buffer, rank}, out(0), self.order(peer), Sum::kFinal);
    if (self.shares_seat())
      p.recv_reduce_send(from, {buffer, rank + 1}, {{rank + 1, Self::kResult}}, self.order(peer), Sum::kFinal);
  });
}

template <class P>
void doubling_all_gather(P& p, Rank rank, int nranks) {
  using Self = HalvingDoubling;
  const Self self(rank, nranks, Self::Cut::kByRank);
  p.chunks(1, nranks);
  p.lane(0);
  if (self.sits_out()) {
    p.copy_send(in(0), out(rank), {{rank - 1, Self::kFold}});
    p.lane(1);
    p.recv({{rank - 1, Self::kResult}}, out(rank - 1));
    return doubling_passed_on(p, self);
  }
  const PortSet first{{self.across(1), Self::kComplete}};
  if (!self.shares_seat()) {
    p.copy_send(in(0), out(rank), first);
    return doubling_spread(p, self, 0, 1, 0);
  }
  p.copy_send(in(0), out(rank), {{rank + 1, Self::kResult}});
  p.wait(1, 0);
  p.send(self.mine(Buffer::kOut, 1), first);
  p.lane(1);
  p.recv({{rank + 1, Self::kFold}}, out(rank + 1));
  doubling_spread(p, self, 0, 1, 1);
}

constexpr Cost halving_doubling_cost(int nranks) {
  const int rounds = RecursiveDoubling::rounds(nranks), seats = 1 << rounds;
  return nranks == seats ? Cost{2 * rounds, 2 * (nranks - 1), nranks} : Cost{2 * rounds + 2, 3 * seats - 2, seats};
}
constexpr Cost halving_cost(int nranks) {
  return {seat_steps(nranks), RecursiveDoubling::folded(nranks) == 0 ? nranks - 1 : nranks, nranks};
}
constexpr Cost doubling_cost(int nranks) {
  const int pairs = RecursiveDoubling::folded(nranks);
  int64_t sent = pairs == 0 ? 0 : nranks - 1;
  for (int block = 1; 2 * block <= nranks; block *= 2) sent += block + std::min(block, pairs);
  return {seat_steps(nranks), sent, nranks};
}

}  // namespace rondo::algorithms
