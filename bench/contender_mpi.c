/* MPI as a contender: built once with Open MPI's compiler and once with MPICH's. Launched by mpirun. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contender.h"

static int rank_, nranks_;

static int all_reduce(float* buffer, uint64_t count_elems) {
  return MPI_Allreduce(MPI_IN_PLACE, buffer, (int)count_elems, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static int reduce_scatter(float* buffer, uint64_t count_elems) {
  return MPI_Reduce_scatter_block(MPI_IN_PLACE, buffer, (int)(count_elems / (uint64_t)nranks_), MPI_FLOAT, MPI_SUM,
                                  MPI_COMM_WORLD);
}
static int all_gather(float* buffer, uint64_t count_elems) {
  return MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer, (int)(count_elems / (uint64_t)nranks_), MPI_FLOAT,
                       MPI_COMM_WORLD);
}

/* The launcher says the rank before MPI_Init, so that ranks are pinned before the library looks around. */
static int from_environment(const char* const* names) {
  for (; *names != NULL; ++names)
    if (getenv(*names) != NULL) return atoi(getenv(*names));
  return -1;
}

int main(int argc, char** argv) {
  static bench_options options;
  bench_parse(argc, argv, &options);
  const int early_rank = from_environment((const char* const[]){"OMPI_COMM_WORLD_RANK", "PMI_RANK", NULL});
  const int early_size = from_environment((const char* const[]){"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL});
  if (early_rank < 0 || early_size < 1) {
    fprintf(stderr, "start this program with mpirun\n");
    return 2;
  }
  bench_pin(early_rank, early_size);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &nranks_);
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(version, &length);
  version[strcspn(version, "\n,")] = 0; /* the name and number; what follows names the build machine */
  for (char* p = version; *p != 0; ++p)
    if (*p == '\t') *p = ' ';
  const contender self = {.version = version,
                          .rank = rank_,
                          .nranks = nranks_,
                          .rs_result_at_front = 1,
                          .all_reduce = all_reduce,
                          .reduce_scatter = reduce_scatter,
                          .all_gather = all_gather};
  const int status = contender_run(&self, &options, bench_open_control(&options));
  MPI_Finalize();
  return status;
}
