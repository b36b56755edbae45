/* The command line of the contender programs, the shared file in which their ranks meet, and forked ranks. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "contender.h"

static void usage_and_exit(const char* why) {
  fprintf(stderr,
          "%s\n"
          "  --points LIST          COLLECTIVE:BYTES,...: all_reduce, reduce_scatter, all_gather, broadcast, reduce,\n"
          "                         all_to_all, gather, scatter; barrier:0\n"
          "  --repetitions N        timed repetitions a point (9)\n"
          "  --repetition-us US     calls are added until a repetition takes this long (2000)\n"
          "  --point-s S            fewer repetitions, never below 3, when a point would take longer (4)\n"
          "  --point-limit-s S      deadline of a point (60)\n"
          "  --attempts N           attempts for a disturbed point (2)\n"
          "  --rotate-bytes BYTES   cold regime: calls walk through this many bytes of buffers (0: hot)\n"
          "  --small-pages          no huge pages for the buffers\n"
          "  --out-of-place         results go to a second buffer\n"
          "  --control FILE         MPI contenders: file in shared memory, the same for all ranks\n"
          "  --nranks N             rondo: ranks to start (2)\n"
          "  --registered           rondo: buffers from rondo_alloc\n"
          "  --algorithm NAME       rondo: rondo_call.algorithm\n"
          "  --netns A,B,...        rondo: the hosts, network namespaces; the first ranks are on the first\n",
          why);
  exit(2);
}

static void parse_points(const char* text, bench_options* o) {
  char* copy = strdup(text);
  for (char* item = strtok(copy, ","); item != NULL; item = strtok(NULL, ",")) {
    char* colon = strchr(item, ':');
    if (colon == NULL || o->num_points == kMaxPoints)
      usage_and_exit("a point is COLLECTIVE:BYTES; at most 256 of them");
    *colon = 0;
    bench_point point = {kBenchAllReduce, strtoull(colon + 1, NULL, 10)};
    int known = 0;
    for (int k = 0; k < kBenchCollectives; ++k)
      if (strcmp(item, bench_collective_names[k]) == 0) point.collective = (bench_collective)k, known = 1;
    const int empty = point.bytes == 0, has_no_data = point.collective == kBenchBarrier;
    if (!known || empty != has_no_data || point.bytes % sizeof(float) != 0)
      usage_and_exit("unknown collective, or bytes that are no positive multiple of 4");
    o->points[o->num_points++] = point;
  }
  free(copy);
}

static void parse_netns(const char* text, bench_options* o) {
  for (char* item = strtok(strdup(text), ","); item != NULL; item = strtok(NULL, ",")) {
    if (o->num_netns == kMaxHosts) usage_and_exit("at most 8 network namespaces");
    o->netns[o->num_netns++] = item;
  }
}

void bench_parse(int argc, char** argv, bench_options* o) {
  *o = (bench_options){
      .repetitions = 9, .repetition_us = 2000, .point_s = 4, .point_limit_s = 60, .attempts = 2, .nranks = 2};
  for (int i = 1; i < argc; ++i) {
    const char* name = argv[i];
    if (strcmp(name, "--registered") == 0) {
      o->registered = 1;
      continue;
    }
    if (strcmp(name, "--small-pages") == 0) {
      o->small_pages = 1;
      continue;
    }
    if (strcmp(name, "--out-of-place") == 0) {
      o->out_of_place = 1;
      continue;
    }
    if (i + 1 >= argc) usage_and_exit(name);
    const char* value = argv[++i];
    if (strcmp(name, "--points") == 0) parse_points(value, o);
    else if (strcmp(name, "--repetitions") == 0) o->repetitions = atoi(value);
    else if (strcmp(name, "--repetition-us") == 0) o->repetition_us = atof(value);
    else if (strcmp(name, "--point-s") == 0) o->point_s = atof(value);
    else if (strcmp(name, "--point-limit-s") == 0) o->point_limit_s = atof(value);
    else if (strcmp(name, "--attempts") == 0) o->attempts = atoi(value);
    else if (strcmp(name, "--rotate-bytes") == 0) o->rotate_bytes = strtoull(value, NULL, 10);
    else if (strcmp(name, "--control") == 0) o->control = value;
    else if (strcmp(name, "--nranks") == 0) o->nranks = atoi(value);
    else if (strcmp(name, "--algorithm") == 0) o->algorithm = value;
    else if (strcmp(name, "--netns") == 0) parse_netns(value, o);
    else usage_and_exit(name);
  }
  if (o->num_points == 0) usage_and_exit("--points is missing");
  if (o->repetitions < 3 || o->repetitions > 99 || o->attempts < 1 || o->nranks < 1 || o->nranks > kMaxRanks)
    usage_and_exit("3 to 99 repetitions, at least 1 attempt, 1 to 64 ranks");
  if (o->num_netns != 0 && o->nranks % o->num_netns != 0)
    usage_and_exit("--nranks must be a multiple of the number of network namespaces");
}

bench_control* bench_open_control(const bench_options* o) {
  if (o->control == NULL) usage_and_exit("--control is missing");
  const int fd = open(o->control, O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(bench_control)) != 0) {
    perror(o->control);
    exit(3);
  }
  void* memory = mmap(NULL, sizeof(bench_control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) {
    perror(o->control);
    exit(3);
  }
  return memory;
}

int bench_fork_ranks(const bench_options* options, bench_rank* run) {
  const int nranks = options->nranks;
  bench_control* control = mmap(NULL, sizeof(bench_control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (control == MAP_FAILED) return 3;
  pid_t children[kMaxRanks];
  for (int r = 0; r < nranks; ++r) {
    children[r] = fork();
    if (children[r] < 0) return 3;
    if (children[r] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      exit(run(r, options, control));
    }
  }
  int worst = 0;
  for (int left = nranks; left > 0;) { /* the first rank that fails ends the others */
    int status = 0;
    const pid_t ended = wait(&status);
    if (ended < 0 && errno == EINTR) continue;
    if (ended < 0) break;
    --left;
    for (int r = 0; r < nranks; ++r)
      if (children[r] == ended) children[r] = 0;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code > 1)
      for (int r = 0; r < nranks; ++r)
        if (children[r] != 0) kill(children[r], SIGKILL);
    if (worst == 0) worst = code;
  }
  return worst;
}
