/* The data of a measured point before and after the call, compared bit for bit.
 *
 * Element i of rank r has period kPeriod in i and is a small integer, so that sums are exact in any order. The period
 * is a prime, so that no chunk boundary is a multiple of it. Expected values are tables of one period as well, so
 * filling and checking run at the speed of memory. Not thread safe.
 */
#ifndef RONDO_BENCH_CONTENDER_DATA_H_
#define RONDO_BENCH_CONTENDER_DATA_H_

#include "contender.h"

enum { kPeriod = 4093 };

typedef struct {
  int rank, nranks;
  float* values;  /* nranks x kPeriod */
  float* sums;    /* kPeriod: sums over all ranks */
  float* scratch; /* kPeriod: the table being checked */
} bench_data;

typedef struct {
  float *buffer, *second; /* second: of the result; NULL: in place */
  uint64_t count_elems;   /* of each */
} bench_memory;

typedef struct {
  bench_collective collective;
  int rs_result_at_front; /* allows 1 call only */
  int calls;              /* since bench_fill_exact; they add to the same buffer in place */
} bench_expectation;

/* Returns 0, or -1 without memory. */
int bench_data_init(bench_data* data, int rank, int nranks);
/* Fills this rank's input with integers and the rest with -1, also in `second` if the collective has one. */
void bench_fill_exact(bench_data* data, bench_collective collective, const bench_memory* memory);
/* Fills with the same values times 2^-110, for bench_calls_before_overflow() in-place all-reduces. */
void bench_fill_small(bench_data* data, float* buffer, uint64_t count_elems);
uint64_t bench_calls_before_overflow(int nranks);
/* The largest number of calls after which in-place sums of bench_fill_exact are exact, at most 20. */
int bench_max_burst(int nranks);
/* The index of the first element that differs from `want`, or -1. */
long long bench_first_wrong(bench_data* data, const bench_expectation* want, const bench_memory* memory);

#endif /* RONDO_BENCH_CONTENDER_DATA_H_ */
