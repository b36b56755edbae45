/* Prints the floors of this machine as one line of JSON: the times of a hand-over between two processes.
 *
 *   one_way_ns      a cache line from core to core and back, halved: no operation between two cores can take less
 *   exchange_ns     both store a line and wait for the other's: a barrier of two
 *   yield_us        a switch from one process to the other on the same core by sched_yield
 *
 * Each is the least of 15 runs, so that other work on the machine does not raise it. With one CPU the first two are
 * null.
 */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "placement.h"

enum { kRuns = 15 };
typedef struct {
  _Alignas(128) atomic_uint value;
} line;
typedef enum { kPingPong, kExchange, kYield } kind;

static void wait_for(line* peer, unsigned k, kind what) {
  while ((int)(atomic_load_explicit(&peer->value, memory_order_acquire) - k) < 0)
    if (what == kYield) sched_yield();
}

/* Seconds per turn, as seen by process 0. */
static double run_once(line* lines, int me, kind what, unsigned* k, unsigned turns) {
  line *mine = &lines[me], *peer = &lines[1 - me];
  const double start_s = now_s();
  for (unsigned i = 0; i < turns; ++i) {
    ++*k;
    if (what != kExchange && me == 1) wait_for(peer, *k, what);
    atomic_store_explicit(&mine->value, *k, memory_order_release);
    if (what == kExchange || me == 0) wait_for(peer, *k, what);
  }
  return (now_s() - start_s) / turns / (what == kExchange ? 1 : 2);
}

static double least_s(kind what, int cpu_a, int cpu_b) {
  const unsigned turns = what == kYield ? 2000 : 10000;
  line* lines = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (lines == MAP_FAILED) exit(3);
  const pid_t child = fork();
  if (child < 0) exit(3);
  const int me = child == 0;
  if (me) prctl(PR_SET_PDEATHSIG, SIGKILL);
  pin_to_cpu(me ? cpu_b : cpu_a);
  double least = 1e9;
  unsigned k = 0;
  for (int r = 0; r < kRuns; ++r) {
    const double seconds = run_once(lines, me, what, &k, turns);
    if (seconds < least) least = seconds;
  }
  if (me) _exit(0);
  waitpid(child, NULL, 0);
  munmap(lines, 4096);
  return least;
}

int main(void) {
  alarm(60);
  int cpus[2] = {0, 0};
  const int many = allowed_cpus(cpus, 2) > 1;
  const double yield_us = least_s(kYield, cpus[0], cpus[0]) * 1e6;
  if (many) {
    const double one_way_ns = least_s(kPingPong, cpus[0], cpus[1]) * 1e9;
    const double exchange_ns = least_s(kExchange, cpus[0], cpus[1]) * 1e9;
    printf("{\"one_way_ns\":%.1f,\"exchange_ns\":%.1f,\"yield_us\":%.3f,\"placement\":\"%s\"}\n", one_way_ns,
           exchange_ns, yield_us, placement_name(placement_probe_ns(cpus[0], cpus[1])));
  } else {
    printf("{\"one_way_ns\":null,\"exchange_ns\":null,\"yield_us\":%.3f,\"placement\":\"one\"}\n", yield_us);
  }
  return 0;
}
