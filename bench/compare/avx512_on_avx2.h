// The AVX-512 functions of the hand-written reference on a processor that has only AVX2. A vector of 64 bytes is two
// registers. For `gcc -include`.
#pragma once

#include <immintrin.h>
#include <string.h>

#ifndef __AVX512F__
typedef float avx2_pair __attribute__((vector_size(64)));

static inline avx2_pair pair_set1(float value) { return (avx2_pair){} + value; }

static inline avx2_pair pair_load(const void* from) {
  avx2_pair value;
  memcpy(&value, from, sizeof value);
  return value;
}

static inline void pair_store(void* to, avx2_pair value) { memcpy(to, &value, sizeof value); }

static inline void pair_stream(float* to, avx2_pair value) {
  __m256 halves[2];
  memcpy(halves, &value, sizeof value);
  _mm256_stream_ps(to, halves[0]);
  _mm256_stream_ps(to + 8, halves[1]);
}

static inline float pair_sum(avx2_pair value) {
  float sum = 0;
  for (int i = 0; i < 16; ++i) sum += value[i];
  return sum;
}

#define __m512 avx2_pair
#define _mm512_setzero_ps() pair_set1(0)
#define _mm512_set1_ps pair_set1
#define _mm512_loadu_ps pair_load
#define _mm512_storeu_ps pair_store
#define _mm512_stream_ps pair_stream
#define _mm512_add_ps(a, b) ((a) + (b))
#define _mm512_reduce_add_ps pair_sum
#endif
