#include "placement.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { kRoundTrips = 4000, kBatch = 200 };

typedef struct {
  _Alignas(128) atomic_uint value;
} probe_line;

typedef struct {
  probe_line lines[2];
  int cpu_b;
} probe_state;

double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int pin_to_cpu(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof set, &set);
}

int allowed_cpus(int* cpus, int capacity) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
  int found = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    if (found < capacity) cpus[found] = cpu;
    ++found;
  }
  return found;
}

static void* probe_answer(void* argument) {
  probe_state* state = argument;
  pin_to_cpu(state->cpu_b);
  for (unsigned k = 1; k <= kRoundTrips; ++k) {
    while (atomic_load_explicit(&state->lines[0].value, memory_order_acquire) != k) {
    }
    atomic_store_explicit(&state->lines[1].value, k, memory_order_release);
  }
  return NULL;
}

double placement_probe_ns(int cpu_a, int cpu_b) {
  if (cpu_a == cpu_b) return 0;
  static probe_state state;
  memset(&state, 0, sizeof state);
  state.cpu_b = cpu_b;
  cpu_set_t own;
  sched_getaffinity(0, sizeof own, &own);
  pthread_t answerer;
  if (pthread_create(&answerer, NULL, probe_answer, &state) != 0) return 0;
  pin_to_cpu(cpu_a);
  double best_s = 1e9, start_s = now_s();
  for (unsigned k = 1; k <= kRoundTrips; ++k) {
    atomic_store_explicit(&state.lines[0].value, k, memory_order_release);
    while (atomic_load_explicit(&state.lines[1].value, memory_order_acquire) != k) {
    }
    if (k % kBatch == 0) {
      double end_s = now_s();
      if (end_s - start_s < best_s) best_s = end_s - start_s;
      start_s = end_s;
    }
  }
  pthread_join(answerer, NULL);
  sched_setaffinity(0, sizeof own, &own);
  return best_s / (2.0 * kBatch) * 1e9;
}

const char* placement_name(double ns) {
  if (ns == 0) return "one";
  return ns < 35 ? "smt" : ns < 170 ? "near" : "far";
}

int placement_moved(double before_ns, double after_ns) {
  double low = before_ns < after_ns ? before_ns : after_ns, high = before_ns < after_ns ? after_ns : before_ns;
  return strcmp(placement_name(before_ns), placement_name(after_ns)) != 0 && high > 1.3 * low;
}

double machine_busy_s(void) {
  unsigned long long user, nice_, system, idle, iowait, irq, softirq, steal = 0;
  FILE* f = fopen("/proc/stat", "r");
  if (f == NULL) return 0;
  int fields = fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice_, &system, &idle, &iowait, &irq,
                      &softirq, &steal);
  fclose(f);
  if (fields < 7) return 0;
  return (double)(user + nice_ + system + irq + softirq + steal) / 100.0;
}

double own_busy_s(void) {
  struct rusage self, children;
  getrusage(RUSAGE_SELF, &self);
  getrusage(RUSAGE_CHILDREN, &children);
  const struct timeval parts[] = {self.ru_utime, self.ru_stime, children.ru_utime, children.ru_stime};
  double sum = 0;
  for (int i = 0; i < 4; ++i) sum += (double)parts[i].tv_sec + (double)parts[i].tv_usec * 1e-6;
  return sum;
}
