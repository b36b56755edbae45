// Who talks to whom when every rank talks to every other: what one_shot.h, two_shot.h, linear.h, all_to_all.h,
// barrier.h, direct.h and pull.h share.
//
// `everybody` names multicast connections: a rank writes a message once, into its own slot, and all others read
// it there. `from_each` names unicast connections, one for each ordered pair of ranks.
// Sets are listed by ascending rank: that is the order of addition, with the own operand in its place (`order`).
#pragma once

#include "rondo/recorder.h"

namespace rondo::algorithms {

struct AllPairs {
  static constexpr uint16_t kContribution = 0, kComplete = 1, kEntry = 2, kMiddle = 4, kExit = 3;  // kinds of message

  AllPairs(Rank r, int n) : rank(r), nranks(n) {}
  Rank rank;
  int nranks;

  /// The rank `hops` further round the circle: as everybody starts with its own neighbour, nobody meets a crowd.
  Rank neighbour(int hops) const { return (rank + hops) % nranks; }
  /// My slot, read by all others. As a receive set: the slots of all others.
  PortSet everybody(uint16_t tag) const { return others(tag, kGroupAll); }
  /// Messages that every other rank sends to me alone.
  PortSet from_each(uint16_t tag) const { return others(tag, kUnicast); }
  /// The own operand's place among those of all ranks.
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

/// Waits until everybody has come here.
template <class P>
void meet(P& p, const AllPairs& all, uint16_t tag) {
  p.send_credit(all.everybody(tag));
  p.recv_credit(all.everybody(tag));
}

}  // namespace rondo::algorithms
