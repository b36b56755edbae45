/* Gloo's collectives for contender_gloo.c, which cannot include C++. float32, sums, root 0; over TCP on 127.0.0.1. */
#ifndef RONDO_BENCH_GLOO_CALLS_H_
#define RONDO_BENCH_GLOO_CALLS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The ranks meet through files in `folder`. Returns 0, or prints the error and returns -1. */
int gloo_join(const char* folder, int rank, int nranks);
void gloo_leave(void);

/* Return 0, or print the error and return -1. Gloo has no reduce-scatter without an object for each size. */
int gloo_all_reduce(float* buffer, float* second, uint64_t count_elems);
int gloo_all_gather(float* buffer, float* second, uint64_t count_elems);
int gloo_broadcast(float* buffer, float* second, uint64_t count_elems);
int gloo_reduce(float* buffer, float* second, uint64_t count_elems);
int gloo_all_to_all(float* buffer, float* second, uint64_t count_elems);
int gloo_barrier(float* buffer, float* second, uint64_t count_elems);

#ifdef __cplusplus
}
#endif

#endif /* RONDO_BENCH_GLOO_CALLS_H_ */
