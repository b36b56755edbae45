// One message from one rank to another. Only these two ranks call its two ends.
//
//     send to 2      0 --in--> 2      receive from 0
//
// They have no registry rows: there is no algorithm to choose and no agreement with other ranks. The messages of a pair
// have their own tag, because they are not ordered with the surrounding collectives.
//
// Steps: 1. Bytes sent: S.
#pragma once

#include "rondo/recorder.h"

namespace rondo::algorithms {

template <class P>
void send_to(P& p, Rank peer) {
  p.chunks(1, 1);
  p.lane(0);
  p.send(in(0), {{peer, kTagPointToPoint}});
}

template <class P>
void recv_from(P& p, Rank peer) {
  p.chunks(1, 1);
  p.lane(0);
  p.recv({{peer, kTagPointToPoint}}, out(0));
}

}  // namespace rondo::algorithms
