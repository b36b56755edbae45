/* rondo as a contender, through its C API. Rank 0 passes the unique id to the others. */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "contender.h"
#include "placement.h"
#include "rondo/rondo.h"

static rondo_comm* comm_;
static int rank_, nranks_;
static rondo_call call_ = RONDO_CALL_INIT;
static const rondo_call* call_or_null_;

static int checked(rondo_status status) {
  if (status != RONDO_OK) {
    fprintf(stderr, "rank %d: %s: %s\n", rank_, rondo_status_string(status), rondo_last_error(comm_));
    exit(3);
  }
  return 0;
}
static uint64_t block_of(uint64_t count_elems) { return count_elems / (uint64_t)nranks_; }
static float* own_block(float* buffer, uint64_t count_elems) {
  return buffer + (uint64_t)rank_ * block_of(count_elems);
}

static float* result_of(float* buffer, float* second) { return second != NULL ? second : buffer; }

static int all_reduce(float* buffer, float* second, uint64_t count_elems) {
  return (int)rondo_all_reduce(comm_, buffer, result_of(buffer, second), count_elems, RONDO_FLOAT32, RONDO_SUM,
                               call_or_null_, NULL);
}
static int reduce_scatter(float* buffer, float* second, uint64_t count_elems) {
  return (int)rondo_reduce_scatter(comm_, buffer, own_block(result_of(buffer, second), count_elems),
                                   block_of(count_elems), RONDO_FLOAT32, RONDO_SUM, call_or_null_, NULL);
}
static int all_gather(float* buffer, float* second, uint64_t count_elems) {
  return (int)rondo_all_gather(comm_, own_block(buffer, count_elems), result_of(buffer, second), block_of(count_elems),
                               RONDO_FLOAT32, call_or_null_, NULL);
}
static int broadcast(float* buffer, float* second, uint64_t count_elems) {
  (void)second;
  return (int)rondo_broadcast(comm_, buffer, buffer, count_elems, RONDO_FLOAT32, 0, call_or_null_, NULL);
}
static int reduce(float* buffer, float* second, uint64_t count_elems) {
  return (int)rondo_reduce(comm_, buffer, rank_ == 0 ? result_of(buffer, second) : NULL, count_elems, RONDO_FLOAT32,
                           RONDO_SUM, 0, call_or_null_, NULL);
}
static int all_to_all(float* buffer, float* second, uint64_t count_elems) {
  return (int)rondo_all_to_all(comm_, buffer, second, block_of(count_elems), RONDO_FLOAT32, call_or_null_, NULL);
}
static int gather(float* buffer, float* second, uint64_t count_elems) {
  float* result = rank_ == 0 ? result_of(buffer, second) : NULL;
  return (int)rondo_gather(comm_, own_block(buffer, count_elems), result, block_of(count_elems), RONDO_FLOAT32, 0,
                           call_or_null_, NULL);
}
static int scatter(float* buffer, float* second, uint64_t count_elems) {
  return (int)rondo_scatter(comm_, rank_ == 0 ? buffer : NULL, own_block(result_of(buffer, second), count_elems),
                            block_of(count_elems), RONDO_FLOAT32, 0, call_or_null_, NULL);
}
static int barrier(float* buffer, float* second, uint64_t count_elems) {
  (void)buffer, (void)second, (void)count_elems;
  return (int)rondo_barrier(comm_, call_or_null_, NULL);
}
static float* allocate_registered(uint64_t bytes) {
  void* memory = NULL;
  checked(rondo_alloc(comm_, bytes, &memory));
  return memory;
}

static void join(bench_control* control, double limit_s) {
  rondo_unique_id id;
  _Static_assert(sizeof id <= kIdBytes, "the id fits into the control block");
  if (rank_ == 0) {
    checked(rondo_get_unique_id(&id));
    memcpy(control->id, &id, sizeof id);
    atomic_store_explicit(&control->id_ready, 1, memory_order_release);
  }
  const double deadline_s = now_s() + limit_s;
  while (atomic_load_explicit(&control->id_ready, memory_order_acquire) == 0) {
    if (now_s() > deadline_s) {
      fprintf(stderr, "rank %d: no unique id from rank 0\n", rank_);
      exit(4);
    }
    usleep(100);
  }
  memcpy(&id, control->id, sizeof id);
  checked(rondo_comm_init_rank(&comm_, nranks_, &id, rank_, NULL));
}

/* Mounts /sys again, as `ip netns exec` does: UCX finds interfaces there, and /sys shows the mounting namespace. */
static void enter_host(const bench_options* options) {
  if (options->num_netns == 0) return;
  char path[256];
  snprintf(path, sizeof path, "/run/netns/%s", options->netns[rank_ / (nranks_ / options->num_netns)]);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0 || unshare(CLONE_NEWNS) != 0 ||
      mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("sysfs", "/sys", "sysfs", 0, NULL) != 0) {
    perror(path);
    exit(3);
  }
  close(fd);
}

static int run_rank(int rank, const bench_options* options, bench_control* control) {
  rank_ = rank;
  nranks_ = options->nranks;
  bench_pin(rank_, nranks_);
  enter_host(options);
  join(control, options->point_limit_s);
  if (options->algorithm != NULL) {
    call_.algorithm = options->algorithm;
    call_or_null_ = &call_;
  }
  char version[64];
  snprintf(version, sizeof version, "rondo %s", rondo_version());
  const contender self = {.version = version,
                          .rank = rank_,
                          .nranks = nranks_,
                          .calls = {[kBenchAllReduce] = all_reduce,
                                    [kBenchReduceScatter] = reduce_scatter,
                                    [kBenchAllGather] = all_gather,
                                    [kBenchBroadcast] = broadcast,
                                    [kBenchReduce] = reduce,
                                    [kBenchAllToAll] = all_to_all,
                                    [kBenchGather] = gather,
                                    [kBenchScatter] = scatter,
                                    [kBenchBarrier] = barrier},
                          .allocate = options->registered ? allocate_registered : NULL};
  const int status = contender_run(&self, options, control);
  return checked(rondo_comm_destroy(comm_)) + status;
}

int main(int argc, char** argv) {
  static bench_options options;
  bench_parse(argc, argv, &options);
  return bench_fork_ranks(&options, run_rank);
}
