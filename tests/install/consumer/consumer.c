/* A C program that uses the installed library: three ranks as threads run and check every collective once. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <rondo/nccl_ext.h>
#include <rondo/rondo.h>

enum { kRanks = 3, kCount = 1000 };

static int failed(rondo_status status, const rondo_comm* comm, const char* what) {
  if (status == RONDO_OK) return 0;
  fprintf(stderr, "%s: %s: %s\n", what, rondo_status_string(status), rondo_last_error(comm));
  return 1;
}

static int wrong(const int32_t* values, int first, int count, int32_t expected, const char* what) {
  for (int i = first; i < first + count; ++i) {
    if (values[i] == expected) continue;
    fprintf(stderr, "%s: element %d is %d, not %d\n", what, i, (int)values[i], (int)expected);
    return 1;
  }
  return 0;
}

/* All elements of rank r are r + 1. */
static void* run_rank(void* argument) {
  rondo_comm* comm = argument;
  static const char kOk[] = "ok";
  int rank = -1, nranks = 0;
  int32_t in[kRanks * kCount], out[kRanks * kCount];
  if (failed(rondo_comm_rank(comm, &rank), comm, "rondo_comm_rank")) return NULL;
  if (failed(rondo_comm_size(comm, &nranks), comm, "rondo_comm_size") || nranks != kRanks) return NULL;
  for (int i = 0; i < kRanks * kCount; ++i) in[i] = rank + 1;

  memset(out, 0, sizeof out);
  if (failed(rondo_all_reduce(comm, in, out, kCount, RONDO_INT32, RONDO_SUM, NULL, NULL), comm, "all_reduce")) return NULL;
  if (wrong(out, 0, kCount, 1 + 2 + 3, "all_reduce")) return NULL;

  rondo_call call = RONDO_CALL_INIT;
  call.algorithm = "ring";
  rondo_work* work = NULL;
  memset(out, 0, sizeof out);
  if (failed(rondo_reduce_scatter(comm, in, out, kCount, RONDO_INT32, RONDO_MAX, &call, &work), comm, "reduce_scatter"))
    return NULL;
  if (failed(rondo_work_wait(work), comm, "work_wait")) return NULL;
  if (wrong(out, 0, kCount, 3, "reduce_scatter")) return NULL;

  memset(out, 0, sizeof out);
  if (failed(rondo_all_gather(comm, in, out, kCount, RONDO_INT32, NULL, NULL), comm, "all_gather")) return NULL;
  for (int r = 0; r < kRanks; ++r)
    if (wrong(out, r * kCount, kCount, r + 1, "all_gather")) return NULL;

  return (void*)kOk;
}

int main(void) {
  rondo_comm* comms[kRanks];
  pthread_t threads[kRanks];
  int good = 0;
  if (failed(rondo_comm_init_all(comms, kRanks, NULL), NULL, "rondo_comm_init_all")) return 1;
  for (int r = 0; r < kRanks; ++r)
    if (pthread_create(&threads[r], NULL, run_rank, comms[r]) != 0) return 1;
  for (int r = 0; r < kRanks; ++r) {
    void* result = NULL;
    pthread_join(threads[r], &result);
    good += result != NULL;
  }
  /* A wrong argument gives a status and a message, not a crash. */
  if (rondo_all_reduce(comms[0], NULL, NULL, 1, RONDO_INT32, RONDO_SUM, NULL, NULL) != RONDO_INVALID_ARGUMENT) return 1;
  if (strlen(rondo_last_error(comms[0])) == 0) return 1;
  for (int r = 0; r < kRanks; ++r)
    if (failed(rondo_comm_destroy(comms[r]), NULL, "rondo_comm_destroy")) return 1;
  printf("rondo %s from C: %d of %d ranks ok\n", rondo_version(), good, kRanks);
  return good == kRanks ? 0 : 1;
}
