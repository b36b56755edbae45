// Algorithms with typical mistakes of students, for tests of the checker's messages. The lines of each are numbered
// from line 1 of a file "mine.h", so that messages do not depend on their place here.
#pragma once

#include "algorithms/registry.h"

namespace rondo::student {

inline Cost no_cost(int) { return {0, 0, 1}; }  // no mistake gets as far as its cost
constexpr Algorithm row(Collective collective, void (*record)(Recorder&, Rank, int, Rank)) {
  return {.name = "mine", .collective = collective, .summary = "my own", .record = record, .cost = no_cost};
}

// The correct ring, for the mistakes below: 2(N-1) steps, one lane.
// clang-format off
#line 1 "mine.h"
inline void ring(Recorder& p, Rank rank, int n, Rank) {
  const Rank next = (rank + 1) % n, prev = (rank + n - 1) % n;
  p.chunks(n, n);
  p.lane(0);
  if (n == 1) return p.copy(in(0), out(0), Sum::kFinal);
  p.send(in(prev), {{next, 0}});
  for (int s = 2; s < n; ++s) p.recv_reduce_send({{prev, 0}}, in((rank + n - s) % n), {{next, 0}}, own_after(1));
  p.recv_reduce_copy_send({{prev, 0}}, in(rank), out(rank), {{next, 0}}, own_after(1), Sum::kFinal);
  for (int s = 1; s < n - 1; ++s) p.recv_copy_send({{prev, 0}}, out((rank + n - s) % n), {{next, 0}});
  p.recv({{prev, 0}}, out(next));
}

#line 1 "mine.h"
inline void wrong_chunk(Recorder& p, Rank rank, int n, Rank) {
  const Rank next = (rank + 1) % n, prev = (rank + n - 1) % n;
  p.chunks(n, n);
  p.lane(0);
  p.send(in(prev), {{next, 0}});
  for (int s = 2; s < n; ++s) p.recv_reduce_send({{prev, 0}}, in((rank + n - s + 1) % n), {{next, 0}}, own_after(1));
  p.recv_reduce_copy_send({{prev, 0}}, in(rank), out(rank), {{next, 0}}, own_after(1), Sum::kFinal);
  for (int s = 1; s < n - 1; ++s) p.recv_copy_send({{prev, 0}}, out((rank + n - s) % n), {{next, 0}});
  p.recv({{prev, 0}}, out(next));
}

#line 1 "mine.h"
inline void wrong_place(Recorder& p, Rank rank, int n, Rank) {  // an all-gather
  const Rank next = (rank + 1) % n, prev = (rank + n - 1) % n;
  p.chunks(1, n);
  p.lane(0);
  p.copy_send(in(0), out(rank), {{next, 0}});
  for (int s = 1; s < n - 1; ++s) p.recv_copy_send({{prev, 0}}, out((rank + s) % n), {{next, 0}});
  p.recv({{prev, 0}}, out(prev));
}

#line 1 "mine.h"
inline void send_to_self(Recorder& p, Rank rank, int n, Rank) {
  const Rank next = rank % n, prev = (rank + n - 1) % n;
  p.chunks(n, n);
  p.lane(0);
  p.send(in(prev), {{next, 0}});
}

#line 1 "mine.h"
inline void send_beyond(Recorder& p, Rank rank, int n, Rank) {
  const Rank next = rank + 1, prev = (rank + n - 1) % n;
  p.chunks(n, n);
  p.lane(0);
  p.send(in(prev), {{next, 0}});
}

#line 1 "mine.h"
inline void missing_receive(Recorder& p, Rank rank, int n, Rank) {
  const Rank next = (rank + 1) % n, prev = (rank + n - 1) % n;
  p.chunks(n, n);
  p.lane(0);
  p.send(in(prev), {{next, 0}});
  for (int s = 2; s < n; ++s) p.recv_reduce_send({{prev, 0}}, in((rank + n - s) % n), {{next, 0}}, own_after(1));
  p.recv_reduce_copy_send({{prev, 0}}, in(rank), out(rank), {{next, 0}}, own_after(1), Sum::kFinal);
  for (int s = 1; s < n - 1; ++s) p.recv_copy_send({{prev, 0}}, out((rank + n - s) % n), {{next, 0}});
}

#line 1 "mine.h"
inline void no_receive_at_all(Recorder& p, Rank rank, int n, Rank) {  // an all-gather
  const Rank next = (rank + 1) % n;
  p.chunks(1, n);
  p.lane(0);
  p.copy(in(0), out(rank));
  p.send(in(0), {{next, 0}});
}

#line 1 "mine.h"
inline void missing_send(Recorder& p, Rank rank, int n, Rank) {
  const Rank next = (rank + 1) % n, prev = (rank + n - 1) % n;
  p.chunks(n, n);
  p.lane(0);
  p.send(in(prev), {{next, 0}});
  for (int s = 2; s < n; ++s) p.recv_reduce_send({{prev, 0}}, in((rank + n - s) % n), {{next, 0}}, own_after(1));
  p.recv_reduce_copy({{prev, 0}}, in(rank), out(rank), own_after(1), Sum::kFinal);
  for (int s = 1; s < n; ++s) p.recv({{prev, 0}}, out((rank + n - s) % n));
}

#line 1 "mine.h"
inline void last_send_forgotten(Recorder& p, Rank rank, int n, Rank) {  // an all-gather
  const Rank next = (rank + 1) % n, prev = (rank + n - 1) % n;
  p.chunks(1, n);
  p.lane(0);
  p.copy_send(in(0), out(rank), {{next, 0}});
  for (int s = 1; s < n - 1; ++s) {
    if (rank == 0) p.recv({{prev, 0}}, out((rank + n - s) % n));
    else p.recv_copy_send({{prev, 0}}, out((rank + n - s) % n), {{next, 0}});
  }
  p.recv({{prev, 0}}, out(next));
}

#line 1 "mine.h"
inline void all_receive_first(Recorder& p, Rank rank, int n, Rank) {  // an all-gather
  const Rank next = (rank + 1) % n, prev = (rank + n - 1) % n;
  p.chunks(1, n);
  p.lane(0);
  p.copy(in(0), out(rank));
  for (int s = 1; s < n; ++s) {
    p.recv({{prev, 0}}, out((rank + n - s) % n));
    p.send(out((rank + n - s + 1) % n), {{next, 0}});
  }
}

#line 1 "mine.h"
inline void bad_index(Recorder& p, Rank rank, int n, Rank) {
  const Rank next = (rank + 1) % n, prev = (rank + n - 1) % n;
  p.chunks(n, n);
  p.lane(0);
  p.send(in(prev), {{next, 0}});
  for (int s = 2; s < n; ++s) p.recv_reduce_send({{prev, 0}}, in((rank + n - s) % n), {{next, 0}}, own_after(1));
  p.recv_reduce_copy_send({{prev, 0}}, in(rank), out(rank), {{next, 0}}, own_after(1), Sum::kFinal);
  for (int s = 1; s < n - 1; ++s) p.recv_copy_send({{prev, 0}}, out((rank + n - s) % n), {{next, 0}});
  p.recv({{prev, 0}}, out(rank + 1));
}

#line 1 "mine.h"
inline void missing_wait(Recorder& p, Rank rank, int n, Rank) {  // an all-gather
  const Rank next = (rank + 1) % n, prev = (rank + n - 1) % n;
  p.chunks(1, n);
  p.lane(0);
  p.copy(in(0), out(rank));
  for (int s = 1; s < n; ++s) p.recv({{prev, 0}}, out((rank + n - s) % n));
  p.lane(1);
  for (int s = 0; s < n - 1; ++s) p.send(out((rank + n - s) % n), {{next, 0}});
}

#line 1 "mine.h"
inline void missing_wait_for_a_later_lane(Recorder& p, Rank rank, int n, Rank) {  // an all-gather
  p.chunks(1, n);
  p.lane(0);
  for (int hops = 1; hops < n; ++hops) p.send(out(rank), {{(rank + hops) % n, 0}});
  p.lane(1);
  p.copy(in(0), out(rank));
  for (int hops = 1; hops < n; ++hops) p.recv({{(rank + n - hops) % n, 0}}, out((rank + n - hops) % n));
}

#line 1 "mine.h"
inline void final_forgotten(Recorder& p, Rank rank, int n, Rank) {
  const Rank next = (rank + 1) % n, prev = (rank + n - 1) % n;
  p.chunks(n, n);
  p.lane(0);
  p.send(in(prev), {{next, 0}});
  for (int s = 2; s < n; ++s) p.recv_reduce_send({{prev, 0}}, in((rank + n - s) % n), {{next, 0}}, own_after(1));
  p.recv_reduce_copy_send({{prev, 0}}, in(rank), out(rank), {{next, 0}}, own_after(1), Sum::kPartial);
}

#line 1 "mine.h"
inline void final_too_early(Recorder& p, Rank rank, int n, Rank) {
  const Rank next = (rank + 1) % n, prev = (rank + n - 1) % n;
  p.chunks(n, n);
  p.lane(0);
  p.send(in(prev), {{next, 0}});
  for (int s = 2; s < n; ++s)
    p.recv_reduce_send({{prev, 0}}, in((rank + n - s) % n), {{next, 0}}, own_after(1), Sum::kFinal);
  p.recv_reduce_copy_send({{prev, 0}}, in(rank), out(rank), {{next, 0}}, own_after(1), Sum::kFinal);
}

#line 1 "mine.h"
inline void own_forgotten(Recorder& p, Rank rank, int n, Rank) {  // a star: rank 0 leaves its own input out
  p.chunks(1, 1);
  p.lane(0);
  if (rank != 0) {
    p.send(in(0), {{0, 0}});
    return p.recv({{0, 1}}, out(0));
  }
  p.recv({{1, 0}}, out(0));
  for (Rank leaf = 2; leaf < n; ++leaf) p.recv_reduce_copy({{leaf, 0}}, out(0), out(0), kOwnFirst, Sum::kPartial);
  for (Rank leaf = 1; leaf < n; ++leaf) p.send(out(0), {{leaf, 1}});
}

#line 1 "mine.h"
inline void added_twice(Recorder& p, Rank rank, int n, Rank) {
  const Rank next = (rank + 1) % n, prev = (rank + n - 1) % n;
  p.chunks(1, 1);
  p.lane(0);
  p.send(in(0), {{next, 0}});
  for (int s = 1; s < n - 1; ++s) {
    p.recv_reduce_copy({{prev, 0}}, in(0), out(0), own_after(1), Sum::kPartial);
    p.send(out(0), {{next, 0}});
  }
  p.recv_reduce_copy({{prev, 0}}, out(0), out(0), own_after(1), Sum::kFinal);
}
// clang-format on

}  // namespace rondo::student
