/* The timing loop of all contenders. rondo and its peers differ only in one function a collective.
 *
 * A contender program describes itself (rank, size, the collectives, memory), then contender_run() measures a list of
 * points. For each point it probes the placement of the virtual CPUs, verifies the result of one call and of a burst of
 * back-to-back calls bit for bit, scales the number of calls a repetition, and times the repetitions. Each starts after
 * our own barrier (in shared memory, the same for all contenders), makes `inner` calls back to back and takes the
 * maximum over the ranks. Rank 0 prints one JSON object a line and point.
 *
 * Data are never zero. Sums double in place, so buffers start at 2^-110 and are refilled, outside the timing, before
 * they overflow. If one repetition of a small message overflows, it continues with infinities at full speed.
 *
 * One thread per process. Every wait has a deadline: a point that takes longer than point_limit_s ends the process.
 */
#ifndef RONDO_BENCH_CONTENDER_H_
#define RONDO_BENCH_CONTENDER_H_

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { kMaxRanks = 64, kMaxPoints = 256, kIdBytes = 128, kMaxHosts = 8 };

/* The root is rank 0. */
typedef enum {
  kBenchAllReduce,
  kBenchReduceScatter,
  kBenchAllGather,
  kBenchBroadcast,
  kBenchReduce,
  kBenchAllToAll,
  kBenchGather,
  kBenchScatter,
  kBenchBarrier,
  kBenchCollectives
} bench_collective;
extern const char* const bench_collective_names[kBenchCollectives];

typedef struct {
  bench_collective collective;
  uint64_t bytes; /* the longer of a rank's input and output; barrier: 0 */
} bench_point;

typedef struct {
  bench_point points[kMaxPoints];
  int num_points;
  int repetitions;
  double repetition_us;  /* calls are added until a repetition takes about this long */
  double point_s;        /* repetitions are dropped (never below 3) when a point would take longer */
  double point_limit_s;  /* a point that is not finished by then ends the process */
  int attempts;          /* for a point disturbed by a moved CPU or by other programs */
  uint64_t rotate_bytes; /* 0: hot, one set of buffers; else: calls walk through this many bytes of buffers */
  int small_pages;       /* no huge pages for private buffers */
  int out_of_place;      /* results go to a second buffer */
  const char* control;   /* shared file in which the ranks meet; not used by forked contenders */
  int nranks;            /* forked contenders */
  int registered;        /* rondo: buffers from rondo_alloc */
  const char* algorithm; /* rondo: rondo_call.algorithm, or NULL */
  const char* netns[kMaxHosts]; /* rondo: network namespaces (`ip netns`) as hosts, with equally many ranks each */
  int num_netns;
} bench_options;

/* Shared by the ranks of one launch: zeroed memory, mapped by all. */
typedef struct {
  struct {
    _Alignas(64) atomic_uint arrived;
    double value; /* the rank's value for the others between two barriers */
    double cpu_s;
  } ranks[kMaxRanks];
  _Alignas(64) atomic_uint id_ready;
  char id[kIdBytes];
} bench_control;

/* One operation. Returns 0, or a code of the library. count_elems counts floats of the whole buffer. Rank r's part of a
 * buffer is the r-th. `second` is NULL, and the operation works in place in `buffer`, or it is a buffer as long for the
 * result: of all-to-all always, of a broadcast never. */
typedef int bench_call(float* buffer, float* second, uint64_t count_elems);

typedef struct {
  const char* version;
  int rank;
  int nranks;
  int rs_result_at_front; /* in-place reduce-scatter: result in block 0 (MPI) instead of block `rank` (rondo) */
  bench_call* calls[kBenchCollectives]; /* NULL: the library lacks it */
  float* (*allocate)(uint64_t bytes); /* NULL: private memory, in huge pages unless --small-pages, as for all */
} contender;

/* Parses the command line of a contender. Prints an error and exits with 2 if it is wrong. */
void bench_parse(int argc, char** argv, bench_options* options);
/* Maps the file options->control, and makes it if it is missing. The caller removes it. Exits on errors. */
bench_control* bench_open_control(const bench_options* options);
/* The work of one rank. Returns its exit status. */
typedef int bench_rank(int rank, const bench_options* options, bench_control* control);
/* Forks options->nranks ranks. The first that fails with a status above 1 ends the others. Returns the worst status. */
int bench_fork_ranks(const bench_options* options, bench_rank* run);
/* Pins rank r to the r-th CPU if every rank can have one. Call it before the library starts. */
void bench_pin(int rank, int nranks);
/* Measures all points. Returns the exit status: 0, or 1 if a result was wrong. */
int contender_run(const contender* self, const bench_options* options, bench_control* control);

#endif /* RONDO_BENCH_CONTENDER_H_ */
