#include "contender_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char* const bench_collective_names[kBenchCollectives] = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "gather", "scatter", "barrier"};

static void fill(float* to, uint64_t first_elem, uint64_t count_elems, const float* table) {
  uint64_t at = first_elem % kPeriod;
  while (count_elems > 0) {
    const uint64_t n = count_elems < kPeriod - at ? count_elems : kPeriod - at;
    memcpy(to, table + at, n * sizeof(float));
    to += n, count_elems -= n, at = 0;
  }
}

static long long first_wrong(const float* from, uint64_t first_elem, uint64_t count_elems, const float* table) {
  uint64_t done = 0, at = first_elem % kPeriod;
  while (done < count_elems) {
    const uint64_t n = count_elems - done < kPeriod - at ? count_elems - done : kPeriod - at;
    if (memcmp(from + done, table + at, n * sizeof(float)) != 0) {
      for (uint64_t i = 0; i < n; ++i)
        if (memcmp(from + done + i, table + at + i, sizeof(float)) != 0) return (long long)(done + i);
    }
    done += n, at = 0;
  }
  return -1;
}

static const float* values_of(const bench_data* data, int rank) { return data->values + (size_t)rank * kPeriod; }

int bench_data_init(bench_data* data, int rank, int nranks) {
  data->rank = rank;
  data->nranks = nranks;
  data->values = calloc((size_t)nranks * kPeriod, sizeof(float));
  data->sums = calloc(kPeriod, sizeof(float));
  data->scratch = calloc(kPeriod, sizeof(float));
  if (data->values == NULL || data->sums == NULL || data->scratch == NULL) return -1;
  for (int r = 0; r < nranks; ++r) {
    for (int i = 0; i < kPeriod; ++i) {
      const uint32_t hash = ((uint32_t)i * 2654435761u + (uint32_t)(r + 1) * 0x9e3779b9u) ^ ((uint32_t)i << 7);
      data->values[(size_t)r * kPeriod + i] = (float)(1 + hash % 97);
      data->sums[i] += values_of(data, r)[i];
    }
  }
  return 0;
}

/* A range of one buffer. */
typedef struct {
  uint64_t first, elems;
} row_range;

static row_range block_of(const bench_data* data, int rank, uint64_t count_elems) {
  const uint64_t block = count_elems / (uint64_t)data->nranks;
  return (row_range){block * (uint64_t)rank, block};
}

/* This rank's input of the collective. */
static row_range given(const bench_data* data, bench_collective collective, uint64_t count_elems) {
  const row_range nothing = {0, 0}, all = {0, count_elems};
  switch (collective) {
    case kBenchAllGather:
    case kBenchGather: return block_of(data, data->rank, count_elems);
    case kBenchBroadcast:
    case kBenchScatter: return data->rank == 0 ? all : nothing;
    case kBenchBarrier: return nothing;
    default: return all;
  }
}

void bench_fill_exact(bench_data* data, bench_collective collective, const bench_memory* memory) {
  for (int i = 0; i < kPeriod; ++i) data->scratch[i] = -1;
  const row_range mine = given(data, collective, memory->count_elems);
  if (mine.elems < memory->count_elems) fill(memory->buffer, 0, memory->count_elems, data->scratch);
  if (memory->second != NULL) fill(memory->second, 0, memory->count_elems, data->scratch);
  fill(memory->buffer + mine.first, mine.first, mine.elems, values_of(data, data->rank));
}

void bench_fill_small(bench_data* data, float* buffer, uint64_t count_elems) {
  for (int i = 0; i < kPeriod; ++i) data->scratch[i] = ldexpf(values_of(data, data->rank)[i], -110);
  fill(buffer, 0, count_elems, data->scratch);
}

uint64_t bench_calls_before_overflow(int nranks) {
  return nranks < 2 ? 1u << 30 : (uint64_t)(220 / log2(nranks)); /* 2^-110 * 97 * nranks^calls < 2^127 */
}

int bench_max_burst(int nranks) {
  if ((nranks & (nranks - 1)) == 0) return 20; /* doubling is exact */
  return 1 + (int)(10 / log2(nranks));         /* 97 * nranks^calls < 2^24 */
}

/* The table of an in-place reduce-scatter's result, position j of the block, after want->calls calls. */
static void expect_reduce_scatter(bench_data* data, const bench_expectation* want, uint64_t block) {
  const uint64_t first = block * (uint64_t)data->rank;
  const float again = (float)(want->calls - 1);
  for (uint64_t j = 0; j < kPeriod; ++j) {
    const uint64_t i = (first + j) % kPeriod; /* the own input has become the sum: each call adds the others' */
    data->scratch[j] = data->sums[i] + again * (data->sums[i] - values_of(data, data->rank)[i]);
  }
}

/* Checks one range: buffer[at..] holds table[first..]. Returns the wrong element's index, or -1. */
static long long check(const float* buffer, uint64_t at, row_range want, const float* table) {
  const long long wrong = first_wrong(buffer + at, want.first, want.elems, table);
  return wrong < 0 ? -1 : wrong + (long long)at;
}

static const float* result_of(const bench_memory* m) { return m->second != NULL ? m->second : m->buffer; }

static long long check_sums(bench_data* data, const bench_expectation* want, const bench_memory* m) {
  const row_range mine = block_of(data, data->rank, m->count_elems), all = {0, m->count_elems};
  if (want->collective == kBenchReduceScatter) {
    expect_reduce_scatter(data, want, mine.elems);
    return check(result_of(m), want->rs_result_at_front ? 0 : mine.first, (row_range){0, mine.elems}, data->scratch);
  }
  if (want->collective == kBenchReduce && data->rank != 0)
    return check(m->buffer, 0, all, values_of(data, data->rank)); /* only read */
  for (int i = 0; i < kPeriod; ++i) {
    const float own = values_of(data, data->rank)[i], calls = (float)want->calls;
    data->scratch[i] = want->collective == kBenchReduce
                           ? own + calls * (data->sums[i] - own) /* each call adds the others' */
                           : data->sums[i] * powf((float)data->nranks, calls - 1);
  }
  return check(result_of(m), 0, all, data->scratch);
}

/* For collectives that move blocks: the source rank of each of this rank's blocks, and its place in that buffer. */
static long long check_blocks(bench_data* data, bench_collective collective, const bench_memory* m) {
  const row_range mine = block_of(data, data->rank, m->count_elems);
  if (collective == kBenchScatter) return check(result_of(m), mine.first, mine, values_of(data, 0));
  if (collective == kBenchGather && data->rank != 0)
    return check(m->buffer, mine.first, mine, values_of(data, data->rank));
  for (int r = 0; r < data->nranks; ++r) {
    const row_range block = block_of(data, r, m->count_elems);
    const long long wrong = collective == kBenchAllToAll ? check(result_of(m), block.first, mine, values_of(data, r))
                                                         : check(result_of(m), block.first, block, values_of(data, r));
    if (wrong >= 0) return wrong;
  }
  return -1;
}

long long bench_first_wrong(bench_data* data, const bench_expectation* want, const bench_memory* memory) {
  switch (want->collective) {
    case kBenchAllReduce:
    case kBenchReduceScatter:
    case kBenchReduce: return check_sums(data, want, memory);
    case kBenchBroadcast: return check(memory->buffer, 0, (row_range){0, memory->count_elems}, values_of(data, 0));
    case kBenchBarrier: return -1;
    default: return check_blocks(data, want->collective, memory);
  }
}
