// The simplest definition of each collective except the ring's, as rows: for tests of the checker and the renderer.
#pragma once

#include "algorithms/registry.h"

namespace rondo::linear {

inline void broadcast(Recorder& p, Rank rank, int nranks, Rank root) {  // the root sends to one rank after the other
  p.chunks(1, 1);
  p.lane(0);
  if (rank != root) return p.recv({{root, 0}}, out(0));
  for (Rank to = 0; to < nranks; ++to)
    if (to != root) p.send(in(0), {{to, 0}});
  p.copy(in(0), out(0));
}

inline void reduce(Recorder& p, Rank rank, int nranks, Rank root) {  // along the ring that ends at the root
  const Rank next = (rank + 1) % nranks, prev = (rank + nranks - 1) % nranks;
  p.chunks(1, 1);
  p.lane(0);
  if (nranks == 1) return p.copy(in(0), out(0), Sum::kFinal);
  if (prev == root) return p.send(in(0), {{next, 0}});
  if (rank != root) return p.recv_reduce_send({{prev, 0}}, in(0), {{next, 0}}, own_after(1));
  p.recv_reduce_copy({{prev, 0}}, in(0), out(0), own_after(1), Sum::kFinal);
}

inline void all_to_all(Recorder& p, Rank rank, int nranks, Rank /*root*/) {  // pairwise: one partner per round
  p.chunks(nranks, nranks);
  p.lane(0);
  p.copy(in(rank), out(rank));
  for (int round = 1; round < nranks; ++round) {
    const Rank to = (rank + round) % nranks, from = (rank + nranks - round) % nranks;
    p.send(in(to), {{to, 0}});
    p.recv({{from, 0}}, out(from));
  }
}

inline void gather(Recorder& p, Rank rank, int nranks, Rank root) {
  p.chunks(1, nranks);
  p.lane(0);
  if (rank != root) return p.send(in(0), {{root, 0}});
  p.copy(in(0), out(root));
  for (Rank from = 0; from < nranks; ++from)
    if (from != root) p.recv({{from, 0}}, out(from));
}

inline void scatter(Recorder& p, Rank rank, int nranks, Rank root) {
  p.chunks(nranks, 1);
  p.lane(0);
  if (rank != root) return p.recv({{root, 0}}, out(0));
  for (Rank to = 0; to < nranks; ++to)
    if (to != root) p.send(in(to), {{to, 0}});
  p.copy(in(root), out(0));
}

inline void barrier(Recorder& p, Rank rank, int nranks, Rank /*root*/) {  // by dissemination
  p.lane(0);
  for (int hops = 1; hops < nranks; hops *= 2) {
    p.send_credit({{(rank + hops) % nranks, 0}});
    p.recv_credit({{(rank + nranks - hops) % nranks, 0}});
  }
}

inline int64_t rounds(int n) {
  int64_t k = 0;
  while (1 << k < n) ++k;
  return k;
}

inline constexpr Algorithm kRows[] = {
    {"linear", Collective::kBroadcast, "from the root to one after the other", broadcast,
     [](int n) {
       return n == 1 ? Cost{0, 0, 1} : Cost{1, n - 1, 1};
     },
     false, true},
    {"linear", Collective::kReduce, "along the ring that ends at the root", reduce,
     [](int n) {
       return n == 1 ? Cost{0, 0, 1} : Cost{n - 1, 1, 1};
     },
     false, false},
    {"linear", Collective::kAllToAll, "one partner in each round", all_to_all,
     [](int n) {
       return Cost{n - 1, n - 1, n};
     },
     false, true},
    {"linear", Collective::kGather, "from one after the other to the root", gather,
     [](int n) {
       return n == 1 ? Cost{0, 0, 1} : Cost{1, 1, n};
     },
     false, true},
    {"linear", Collective::kScatter, "from the root to one after the other", scatter,
     [](int n) {
       return n == 1 ? Cost{0, 0, 1} : Cost{1, n - 1, n};
     },
     false, true},
    {"linear", Collective::kBarrier, "everybody tells others what it knows", barrier,
     [](int n) {
       return Cost{rounds(n), 0, 1};
     },
     false, true},
};

inline const Algorithm& row(Collective collective) {
  for (const Algorithm& a : kRows)
    if (a.collective == collective) return a;
  RONDO_CHECK(false);
  return kRows[0];
}

}  // namespace rondo::linear
