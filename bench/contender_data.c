#include "contender_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

void bench_fill_exact(bench_data* data, bench_collective collective, float* buffer, uint64_t count_elems) {
  if (collective != kBenchAllGather) {
    fill(buffer, 0, count_elems, values_of(data, data->rank));
    return;
  }
  for (int i = 0; i < kPeriod; ++i) data->scratch[i] = -1;
  fill(buffer, 0, count_elems, data->scratch);
  const uint64_t block = count_elems / (uint64_t)data->nranks, first = block * (uint64_t)data->rank;
  fill(buffer + first, first, block, values_of(data, data->rank));
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
    const uint64_t i = (first + j) % kPeriod; /* my contribution has become the sum: each call adds the others' */
    data->scratch[j] = data->sums[i] + again * (data->sums[i] - values_of(data, data->rank)[i]);
  }
}

long long bench_first_wrong(bench_data* data, const bench_expectation* want, const float* buffer,
                            uint64_t count_elems) {
  const uint64_t block = count_elems / (uint64_t)data->nranks;
  if (want->collective == kBenchAllReduce) {
    const float scale = powf((float)data->nranks, (float)(want->calls - 1));
    for (int i = 0; i < kPeriod; ++i) data->scratch[i] = data->sums[i] * scale;
    return first_wrong(buffer, 0, count_elems, data->scratch);
  }
  if (want->collective == kBenchReduceScatter) {
    expect_reduce_scatter(data, want, block);
    const uint64_t at = want->rs_result_at_front ? 0 : block * (uint64_t)data->rank;
    const long long wrong = first_wrong(buffer + at, 0, block, data->scratch);
    return wrong < 0 ? -1 : wrong + (long long)at;
  }
  for (int r = 0; r < data->nranks; ++r) {
    const uint64_t first = block * (uint64_t)r;
    const long long wrong = first_wrong(buffer + first, first, block, values_of(data, r));
    if (wrong >= 0) return wrong + (long long)first;
  }
  return -1;
}
