#include "contender.h"

#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "contender_data.h"
#include "placement.h"

enum { kMaxCpus = 1024, kMaxRepetitions = 101, kMaxInner = 50000, kBurst = 20 };
static int cpus_at_start[kMaxCpus];
static int num_cpus_at_start = 0;

typedef struct {
  const contender* self;
  const bench_options* options;
  bench_control* control;
  bench_data data;
  float* arena;
  uint64_t arena_bytes;
  unsigned phase; /* of the barrier */
  int oversubscribed; /* more ranks than CPUs: waits yield the CPU */
} bench_loop;

typedef struct {
  bench_point point;
  uint64_t count_elems;
  uint64_t stride_bytes;
  uint64_t sets; /* buffers used in turn; 1 in the hot regime */
  uint64_t next_set;
  uint64_t calls_left; /* before the sums overflow */
} bench_case;

typedef struct {
  int inner, repetitions, attempts, moved, disturbed;
  double us[kMaxRepetitions];
  double placement_ns[2];
  double foreign_s, wall_s;
} bench_result;

/* ---- barriers between ranks ---- */

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static void barrier(bench_loop* l, int quiet) {
  const unsigned phase = ++l->phase;
  atomic_store_explicit(&l->control->ranks[l->self->rank].arrived, phase, memory_order_release);
  const double limit_s = now_s() + l->options->point_limit_s;
  for (int r = 0; r < l->self->nranks; ++r) {
    unsigned spins = 0;
    while ((int)(atomic_load_explicit(&l->control->ranks[r].arrived, memory_order_acquire) - phase) < 0) {
      ++spins;
      if (quiet) {
        usleep(30);
      } else if (l->oversubscribed && spins > 20) {
        sched_yield();
      } else {
        relax();
      }
      if (spins % 4096 == 0 && now_s() > limit_s) {
        fprintf(stderr, "rank %d: rank %d did not arrive at a barrier in time\n", l->self->rank, r);
        _exit(4);
      }
    }
  }
}

static double max_over_ranks(bench_loop* l, double value) {
  l->control->ranks[l->self->rank].value = value;
  barrier(l, 0);
  double most = value;
  for (int r = 0; r < l->self->nranks; ++r) most = fmax(most, l->control->ranks[r].value);
  barrier(l, 0);
  return most;
}

/* ---- calls ---- */

static uint64_t padded(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }
static int has_second(const bench_options* options, bench_collective collective) {
  if (collective == kBenchBroadcast || collective == kBenchBarrier) return 0;
  return options->out_of_place || collective == kBenchAllToAll;
}
/* The operands of one call. */
static uint64_t memory_bytes(const bench_options* options, bench_point point) {
  return padded(point.bytes > 0 ? point.bytes : 1) * (has_second(options, point.collective) ? 2 : 1);
}

static bench_memory set_of(const bench_loop* l, const bench_case* c, uint64_t set) {
  char* buffer = (char*)l->arena + set * c->stride_bytes;
  float* second = has_second(l->options, c->point.collective) ? (float*)(buffer + padded(c->point.bytes)) : NULL;
  return (bench_memory){(float*)buffer, second, c->count_elems};
}

/* Makes `calls` back-to-back calls and returns their seconds on this rank. */
static double timed_calls(bench_loop* l, bench_case* c, uint64_t calls) {
  bench_call* const operation = l->self->calls[c->point.collective];
  uint64_t set = c->next_set;
  int code = 0;
  const double start_s = now_s();
  for (uint64_t k = 0; k < calls; ++k) {
    const bench_memory m = set_of(l, c, set);
    code |= operation(m.buffer, m.second, m.count_elems);
    if (++set == c->sets) set = 0;
  }
  const double seconds = now_s() - start_s;
  c->next_set = set;
  if (code != 0) {
    fprintf(stderr, "rank %d: %s of %llu bytes failed with code %d\n", l->self->rank,
            bench_collective_names[c->point.collective], (unsigned long long)c->point.bytes, code);
    exit(3);
  }
  return seconds;
}

static void refill(bench_loop* l, bench_case* c) {
  for (uint64_t set = 0; set < c->sets; ++set) bench_fill_small(&l->data, set_of(l, c, set).buffer, c->count_elems);
  const int adds = !has_second(l->options, c->point.collective);
  c->calls_left = adds ? bench_calls_before_overflow(l->self->nranks) * c->sets : UINT64_MAX;
}

static double repetition(bench_loop* l, bench_case* c, uint64_t calls) {
  if (c->calls_left < calls) refill(l, c);
  c->calls_left -= calls < c->calls_left ? calls : c->calls_left;
  barrier(l, 0);
  return max_over_ranks(l, timed_calls(l, c, calls));
}

/* One verified call, then a burst that may run ahead, verified at its end. Returns the first call's seconds, or -1. */
static double verify(bench_loop* l, bench_case* c) {
  double call_s = 0;
  for (int calls = 1;;) {
    c->next_set = 0;
    uint64_t sets = c->sets;
    c->sets = 1;
    const bench_memory memory = set_of(l, c, 0);
    bench_fill_exact(&l->data, c->point.collective, &memory);
    barrier(l, 0);
    const double seconds = timed_calls(l, c, (uint64_t)calls);
    c->sets = sets;
    const int in_place = memory.second == NULL, at_front = in_place && l->self->rs_result_at_front;
    const bench_expectation want = {c->point.collective, at_front, in_place ? calls : 1};
    const long long wrong = bench_first_wrong(&l->data, &want, &memory);
    if (wrong >= 0)
      fprintf(stderr, "rank %d: %s of %llu bytes: element %lld is wrong after %d calls\n", l->self->rank,
              bench_collective_names[c->point.collective], (unsigned long long)c->point.bytes, wrong, calls);
    const double slowest_s = max_over_ranks(l, seconds);
    if (max_over_ranks(l, wrong >= 0) > 0) return -1;
    if (calls > 1) return call_s;
    call_s = slowest_s;
    calls = (int)fmin(bench_max_burst(l->self->nranks), 0.05 / call_s);
    /* MPI leaves the rest of an in-place reduce-scatter's buffer undefined, and it is the next input. */
    const int undefined = at_front && c->point.collective == kBenchReduceScatter;
    if (calls < 2 || undefined) return call_s;
  }
}

/* Returns the number of calls that make a repetition last about repetition_us. Increases it until the time is reliable.
 * A first call makes connections, so its time counts only if it is far too long to try again. */
static uint64_t calibrate(bench_loop* l, bench_case* c, double first_call_s) {
  const double target_s = l->options->repetition_us * 1e-6;
  double call_s = first_call_s;
  for (uint64_t calls = 2; call_s < 20 * target_s && calls <= kMaxInner; calls *= 4) {
    const double seconds = repetition(l, c, calls);
    call_s = seconds / (double)calls;
    if (calls > 2 && seconds > target_s / 4) break;
  }
  const double inner = fmin(fmax(target_s / call_s, 2), kMaxInner);
  return inner * call_s * l->options->repetitions > l->options->point_s ? 1 : (uint64_t)inner;
}

static void timed_repetitions(bench_loop* l, bench_case* c, uint64_t inner, bench_result* result) {
  if (c->point.bytes < 4u << 20 || c->sets > 1) repetition(l, c, inner); /* warm-up, after the pause of the probe */
  const double start_s = now_s();
  result->inner = (int)inner;
  for (int k = 0; k < l->options->repetitions; ++k) {
    result->us[k] = repetition(l, c, inner) / (double)inner * 1e6;
    result->repetitions = k + 1;
    if (k >= 2 && max_over_ranks(l, now_s() - start_s) > l->options->point_s) break;
  }
}

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return x < y ? -1 : x > y;
}

/* ---- one point ---- */

static double probe_alone(bench_loop* l) { /* rank 0 probes while the others sleep */
  barrier(l, 1);
  double ns = 0;
  if (l->self->rank == 0) ns = placement_probe_ns(cpus_at_start[0], cpus_at_start[num_cpus_at_start > 1 ? 1 : 0]);
  barrier(l, 1);
  return ns;
}

static double others_busy_s(bench_loop* l) {
  double own = 0;
  for (int r = 0; r < l->self->nranks; ++r) own += l->control->ranks[r].cpu_s;
  return machine_busy_s() - own;
}

static int measure_attempt(bench_loop* l, bench_case* c, double first_call_s, bench_result* result) {
  result->placement_ns[0] = probe_alone(l);
  l->control->ranks[l->self->rank].cpu_s = own_busy_s();
  barrier(l, 0);
  const double before_s = others_busy_s(l), start_s = now_s();
  barrier(l, 0);
  timed_repetitions(l, c, calibrate(l, c, first_call_s), result);
  l->control->ranks[l->self->rank].cpu_s = own_busy_s();
  barrier(l, 0);
  result->wall_s = now_s() - start_s;
  result->foreign_s = others_busy_s(l) - before_s;
  result->placement_ns[1] = probe_alone(l);
  result->moved = placement_moved(result->placement_ns[0], result->placement_ns[1]);
  result->disturbed = result->foreign_s > 0.03 * num_cpus_at_start * result->wall_s + 0.05;
  const int again = l->self->rank == 0 && (result->moved || result->disturbed);
  return max_over_ranks(l, again) > 0; /* rank 0 decides for all */
}

static void print_result(const bench_loop* l, const bench_case* c, bench_result* r) {
  qsort(r->us, (size_t)r->repetitions, sizeof r->us[0], by_value);
  const double* us = r->us;
  const int n = r->repetitions;
  const double median = n % 2 ? us[n / 2] : (us[n / 2 - 1] + us[n / 2]) / 2;
  printf(
      "{\"collective\":\"%s\",\"bytes\":%llu,\"nranks\":%d,\"regime\":\"%s\",\"verified\":true,"
      "\"median_us\":%.4f,\"min_us\":%.4f,\"max_us\":%.4f,\"inner\":%d,\"repetitions\":%d,"
      "\"placement\":\"%s\",\"placement_ns\":[%.1f,%.1f],\"moved\":%s,\"disturbed\":%s,\"foreign_s\":%.3f,\"wall_s\":%."
      "3f,"
      "\"attempts\":%d}\n",
      bench_collective_names[c->point.collective], (unsigned long long)c->point.bytes, l->self->nranks,
      l->options->rotate_bytes ? "cold" : "hot", median, us[0], us[n - 1], r->inner, n,
      placement_name(r->placement_ns[0]), r->placement_ns[0], r->placement_ns[1], r->moved ? "true" : "false",
      r->disturbed ? "true" : "false", r->foreign_s, r->wall_s, r->attempts);
}

static char alarm_line[256];
static void on_alarm(int signal_number) {
  (void)signal_number;
  if (write(1, alarm_line, strlen(alarm_line)) < 0) _exit(5);
  _exit(4);
}

static void watch_point(const bench_loop* l, const bench_case* c) {
  snprintf(
      alarm_line, sizeof alarm_line,
      l->self->rank != 0 ? "" : "{\"collective\":\"%s\",\"bytes\":%llu,\"error\":\"not finished within %.0f s\"}\n",
      bench_collective_names[c->point.collective], (unsigned long long)c->point.bytes, l->options->point_limit_s);
  signal(SIGALRM, on_alarm);
  alarm((unsigned)ceil(l->options->point_limit_s));
}

static int measure_point(bench_loop* l, bench_point point) {
  if (l->self->calls[point.collective] == NULL) {
    fprintf(stderr, "%s has no %s\n", l->self->version, bench_collective_names[point.collective]);
    return 2;
  }
  bench_case c = {.point = point, .count_elems = point.bytes / sizeof(float), .sets = 1};
  c.stride_bytes = memory_bytes(l->options, point);
  if (l->options->rotate_bytes > c.stride_bytes) c.sets = l->options->rotate_bytes / c.stride_bytes;
  watch_point(l, &c);
  const double call_s = verify(l, &c);
  if (call_s < 0) {
    if (l->self->rank == 0)
      printf("{\"collective\":\"%s\",\"bytes\":%llu,\"error\":\"wrong result\"}\n",
             bench_collective_names[point.collective], (unsigned long long)point.bytes);
    return 1;
  }
  bench_result result = {0};
  do {
    ++result.attempts;
  } while (measure_attempt(l, &c, call_s, &result) && result.attempts < l->options->attempts);
  if (l->self->rank == 0) print_result(l, &c, &result);
  fflush(stdout);
  alarm(0);
  return 0;
}

static float* allocate_private(uint64_t bytes, int small_pages) {
  const uint64_t huge = 2u << 20;
  char* raw = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return NULL;
  char* aligned = (char*)(((uintptr_t)raw + huge - 1) / huge * huge);
  madvise(aligned, bytes, small_pages ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  return (float*)aligned;
}

void bench_pin(int rank, int nranks) {
  if (num_cpus_at_start == 0) num_cpus_at_start = allowed_cpus(cpus_at_start, kMaxCpus);
  if (nranks <= num_cpus_at_start && nranks <= kMaxCpus) pin_to_cpu(cpus_at_start[rank]);
}

int contender_run(const contender* self, const bench_options* options, bench_control* control) {
  bench_loop l = {.self = self, .options = options, .control = control};
  l.oversubscribed = self->nranks > num_cpus_at_start;
  l.arena_bytes = options->rotate_bytes;
  for (int p = 0; p < options->num_points; ++p)
    if (memory_bytes(options, options->points[p]) > l.arena_bytes)
      l.arena_bytes = memory_bytes(options, options->points[p]);
  l.arena_bytes = padded(l.arena_bytes);
  l.arena = self->allocate ? self->allocate(l.arena_bytes) : allocate_private(l.arena_bytes, options->small_pages);
  if (l.arena == NULL || bench_data_init(&l.data, self->rank, self->nranks) != 0) {
    fprintf(stderr, "rank %d: no memory for %llu bytes\n", self->rank, (unsigned long long)l.arena_bytes);
    return 3;
  }
  memset(l.arena, 0x3f, l.arena_bytes); /* faults the pages in */
  if (self->rank == 0)
    printf("{\"version\":\"%s\",\"nranks\":%d,\"cpus\":%d}\n", self->version, self->nranks, num_cpus_at_start);
  fflush(stdout);
  int status = 0;
  for (int p = 0; p < options->num_points; ++p) status |= measure_point(&l, options->points[p]);
  barrier(&l, 1);
  return status;
}
