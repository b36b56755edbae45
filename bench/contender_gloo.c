/* Gloo as a contender. The ranks meet through files in a temporary folder, which rank 0 makes and removes. */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "contender.h"
#include "gloo_calls.h"
#include "placement.h"

static int remove_entry(const char* path, const struct stat* facts, int type, struct FTW* where) {
  (void)facts, (void)type, (void)where;
  return remove(path);
}

static void meet(int rank, const bench_options* options, bench_control* control, char* folder) {
  if (rank == 0) {
    if (mkdtemp(folder) == NULL) {
      perror(folder);
      exit(3);
    }
    strcpy(control->id, folder);
    atomic_store_explicit(&control->id_ready, 1, memory_order_release);
  }
  const double deadline_s = now_s() + options->point_limit_s;
  while (atomic_load_explicit(&control->id_ready, memory_order_acquire) == 0) {
    if (now_s() > deadline_s) exit(4);
    usleep(100);
  }
  if (gloo_join(control->id, rank, options->nranks) != 0) exit(3);
}

static int run_rank(int rank, const bench_options* options, bench_control* control) {
  char folder[] = "/tmp/rondo_contender_gloo_XXXXXX";
  bench_pin(rank, options->nranks);
  meet(rank, options, control, folder);
  const contender self = {.version = "Gloo",
                          .rank = rank,
                          .nranks = options->nranks,
                          .calls = {[kBenchAllReduce] = gloo_all_reduce,
                                    [kBenchAllGather] = gloo_all_gather,
                                    [kBenchBroadcast] = gloo_broadcast,
                                    [kBenchReduce] = gloo_reduce,
                                    [kBenchAllToAll] = gloo_all_to_all,
                                    [kBenchBarrier] = gloo_barrier}};
  const int status = contender_run(&self, options, control);
  gloo_leave();
  if (rank == 0) nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
  return status;
}

int main(int argc, char** argv) {
  static bench_options options;
  bench_parse(argc, argv, &options);
  return bench_fork_ranks(&options, run_rank);
}
