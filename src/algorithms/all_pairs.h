// Port sets for algorithms in which every rank exchanges with every other rank: one_shot.h, two_shot.h, linear.h,
// all_to_all.h, barrier.h, direct.h and pull.h.
//
// `everybody` names multicast connections: a rank writes a message once, into its own slot, and all others read it
// there. `from_each` names unicast connections, one for each ordered pair of ranks. Sets are in ascending rank order,
// the order of addition; `order` gives the place of the rank's own operand.
#pragma once

#include "rondo/algorithm.h"

namespace rondo::algorithms {

struct AllPairs {
  static constexpr uint16_t kContribution = 0, kComplete = 1, kEntry = 2, kMiddle = 4, kExit = 3;  // kinds of message

  AllPairs(Rank r, int n) : rank(r), nranks(n) {}
  Rank rank;
  int nranks;

  /// The rank `hops` further round the circle. Each rank starts with its own neighbour, which spreads the load.
  Rank neighbour(int hops) const { return (rank + hops) % nranks; }
  /// This rank's slot, read by all others. As a receive set: the slots of all others.
  PortSet everybody(uint16_t tag) const { return others(tag, kGroupAll); }
  /// Messages that every other rank sends to this rank only.
  PortSet from_each(uint16_t tag) const { return others(tag, kUnicast); }
  /// The place of the rank's own operand among all ranks' operands.
  Order order() const { return own_after(rank); }

 private:
  PortSet others(uint16_t tag, uint16_t group) const {
    PortSet ports;
    ports.reserve(static_cast<size_t>(nranks) - 1);
    for (Rank peer = 0; peer < nranks; ++peer)
      if (peer != rank) ports.push_back({peer, tag, group});
    return ports;
  }
};

/// The cost of a step in which the busiest rank sends its own chunk, to one rank or at once to all.
constexpr Cost send_own_cost(int nranks) { return {1, 1, nranks}; }
/// The cost of a step in which the busiest rank sends each chunk but its own.
constexpr Cost send_others_cost(int nranks) { return {1, nranks - 1, nranks}; }

/// Waits until all ranks have reached this point.
template <class P>
void meet(P& p, const AllPairs& all, uint16_t tag) {
  p.send_credit(all.everybody(tag));
  p.recv_credit(all.everybody(tag));
}

}  // namespace rondo::algorithms
