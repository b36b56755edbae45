// Your own algorithm: the star all-reduce.
//
//     1 --x1--> 0      2 --x2--> 0      3 --x3--> 0      every rank sends its data to rank 0, which adds them in
//     0 ==sum==> {1 2 3}                                 ascending order of ranks and sends the sum to all others
//
// Steps: 2. Bytes sent per rank: S. Order of addition: ascending ranks.
#pragma once

#include <rondo/algorithm.h>

template <class P>
void star_all_reduce(P& p, rondo::Rank rank, int nranks, rondo::Rank /*root: an all-reduce has none*/) {
  using namespace rondo;
  constexpr uint16_t kTag = 0;
  p.chunks(1, 1);  // in and out are one chunk each
  p.lane(0);
  if (nranks == 1) return p.copy(in(0), out(0), Sum::kFinal);
  if (rank == 0) {
    PortSet leaves, readers;
    for (Rank leaf = 1; leaf < nranks; ++leaf) {
      leaves.push_back({leaf, kTag});
      readers.push_back({leaf, kTag, kGroupAll});  // written once, read by all
    }
    p.recv_reduce_copy_send(leaves, in(0), out(0), readers, kOwnFirst, Sum::kFinal);
  } else {
    p.send(in(0), {{0, kTag}});
    p.lane(1);  // a second lane: the next loop's data are sent while this loop's sum is awaited
    p.recv({{0, kTag, kGroupAll}}, out(0));
  }
}

/// The checker must find the same: {steps, bytes sent by the busiest rank as a fraction of S}.
inline rondo::Cost star_cost(int nranks) { return nranks == 1 ? rondo::Cost{0, 0, 1} : rondo::Cost{2, 1, 1}; }

inline constexpr rondo::Algorithm kStar{.name = "star",
                                        .collective = rondo::Collective::kAllReduce,
                                        .summary = "2 steps: everything to rank 0, the sum to all",
                                        .record = star_all_reduce<rondo::Recorder>,
                                        .cost = star_cost,
                                        .rank_order = true};
