/* MPI as a contender. Built with Open MPI's compiler and with MPICH's; launched by mpirun. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contender.h"

static int rank_, nranks_;

static int block_of(uint64_t count_elems) { return (int)(count_elems / (uint64_t)nranks_); }
static float* own_block(float* buffer, uint64_t count_elems) {
  return buffer + (size_t)rank_ * (size_t)block_of(count_elems);
}

/* In place if there is no second buffer. */
static const void* input_of(const float* input, const float* second) {
  return second != NULL ? (const void*)input : MPI_IN_PLACE;
}
static float* result_of(float* buffer, float* second) { return second != NULL ? second : buffer; }

static int all_reduce(float* buffer, float* second, uint64_t count_elems) {
  return MPI_Allreduce(input_of(buffer, second), result_of(buffer, second), (int)count_elems, MPI_FLOAT, MPI_SUM,
                       MPI_COMM_WORLD);
}
static int reduce_scatter(float* buffer, float* second, uint64_t count_elems) {
  float* result = second != NULL ? own_block(second, count_elems) : buffer;
  return MPI_Reduce_scatter_block(input_of(buffer, second), result, block_of(count_elems), MPI_FLOAT, MPI_SUM,
                                  MPI_COMM_WORLD);
}
static int all_gather(float* buffer, float* second, uint64_t count_elems) {
  const int block = block_of(count_elems);
  return MPI_Allgather(input_of(own_block(buffer, count_elems), second), block, MPI_FLOAT, result_of(buffer, second),
                       block, MPI_FLOAT, MPI_COMM_WORLD);
}
static int broadcast(float* buffer, float* second, uint64_t count_elems) {
  (void)second;
  return MPI_Bcast(buffer, (int)count_elems, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static int reduce(float* buffer, float* second, uint64_t count_elems) {
  return MPI_Reduce(rank_ == 0 ? input_of(buffer, second) : buffer, result_of(buffer, second), (int)count_elems,
                    MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}
static int all_to_all(float* buffer, float* second, uint64_t count_elems) {
  const int block = block_of(count_elems);
  return MPI_Alltoall(buffer, block, MPI_FLOAT, second, block, MPI_FLOAT, MPI_COMM_WORLD);
}
static int gather(float* buffer, float* second, uint64_t count_elems) {
  const int block = block_of(count_elems);
  float* own = own_block(buffer, count_elems);
  return MPI_Gather(rank_ == 0 ? input_of(own, second) : own, block, MPI_FLOAT, result_of(buffer, second), block,
                    MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static int scatter(float* buffer, float* second, uint64_t count_elems) {
  const int block = block_of(count_elems);
  void* result = rank_ == 0 && second == NULL ? MPI_IN_PLACE : (void*)own_block(result_of(buffer, second), count_elems);
  return MPI_Scatter(buffer, block, MPI_FLOAT, result, block, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static int barrier(float* buffer, float* second, uint64_t count_elems) {
  (void)buffer, (void)second, (void)count_elems;
  return MPI_Barrier(MPI_COMM_WORLD);
}

/* The launcher sets the rank before MPI_Init, so that ranks are pinned before the library inspects the machine. */
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
  version[strcspn(version, "\n,")] = 0; /* keeps name and number; the rest names the build machine */
  for (char* p = version; *p != 0; ++p)
    if (*p == '\t') *p = ' ';
  const contender self = {.version = version,
                          .rank = rank_,
                          .nranks = nranks_,
                          .rs_result_at_front = 1,
                          .calls = {[kBenchAllReduce] = all_reduce,
                                    [kBenchReduceScatter] = reduce_scatter,
                                    [kBenchAllGather] = all_gather,
                                    [kBenchBroadcast] = broadcast,
                                    [kBenchReduce] = reduce,
                                    [kBenchAllToAll] = all_to_all,
                                    [kBenchGather] = gather,
                                    [kBenchScatter] = scatter,
                                    [kBenchBarrier] = barrier}};
  const int status = contender_run(&self, &options, bench_open_control(&options));
  MPI_Finalize();
  return status;
}
