// One message from one rank to another: the two ends of it, which only these two ranks call.
//
//     send to 2      0 --in--> 2      receive from 0
//
// No rows of the registry: the other ranks have no part in it, so there is nothing to choose and nobody to agree with.
// The messages of a pair have a tag of their own, since they are in no order with the collectives around them.
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
