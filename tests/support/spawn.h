// Runs a function on every rank of a communicator: ranks as threads (inproc), as processes (shm), as processes that use
// only UCX, or as processes on several test hosts (shm on a host, ucx between hosts).
//
// The function's Status and every failed EXPECT in it are reported to GoogleTest with the rank, also from processes
// (over a pipe). Every run has a deadline. Late processes are killed and named. Late threads cannot be killed, so they
// are named and the test program ends. Processes die with the test program.
//
// A program that spawns processes must not have made a communicator before: a fork copies its state and does not share
// it. Therefore threads and processes have separate test programs. Thread safety: call from the main thread.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "api/control_plane.h"
#include "rondo/communicator.h"

namespace rondo::testing {

enum class World { kThreads, kProcesses, kUcx, kTcp, kHosts };
inline const char* world_name(World w) {
  constexpr const char* kNames[] = {"threads", "processes", "processes_over_ucx", "processes_over_tcp",
                                    "ranks_on_hosts"};
  return kNames[static_cast<int>(w)];
}

/// The reason why this machine cannot run a world, or an empty string. Call it before the world's first use.
std::string why_no_world(World w);
/// kHosts: three hosts for a multiple of three above 3, else two. The first ranks are on host 0.
inline int num_hosts_of(int nranks) { return nranks > 3 && nranks % 3 == 0 ? 3 : 2; }
inline int host_of(int rank, int nranks) {
  const int hosts = num_hosts_of(nranks), on_each = (nranks + hosts - 1) / hosts;
  return rank / on_each;
}
/// Skips worlds that this machine cannot run, with the reason.
class WorldTest : public ::testing::TestWithParam<World> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_world(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
};
class TestHosts;
/// The hosts of World::kHosts, made at the first call. Call it only if why_no_world() is empty.
TestHosts& test_hosts();

/// The result of one rank.
struct RankResult {
  enum class End { kReturned, kSignalled, kExited, kDeadline };
  Rank rank = 0;
  End end = End::kReturned;
  int signal = 0;                     // kSignalled
  std::vector<std::string> failures;  // failed expectations, and the Status if it was not ok
};

struct SpawnOptions {
  Config config;
  TransportDecorator decorate = {};  // for every rank's transport; threads
  double deadline_s = 60;
  std::vector<Rank> may_die;                                 // processes: these ranks may be killed
  std::function<void(const std::vector<pid_t>&)> in_parent;  // processes: runs in the parent while the ranks run
};

/// Owns its communicator, so that a test may destroy it early.
using OwningRankFn = std::function<Status(std::unique_ptr<Communicator>)>;

namespace internal {
std::vector<RankResult> run(World world, int nranks, const OwningRankFn& fn, const SpawnOptions& options);

template <class Fn, class Arg>
Status call(Fn& fn, Arg&& arg) {
  if constexpr (std::is_void_v<std::invoke_result_t<Fn&, Arg>>) {
    fn(std::forward<Arg>(arg));
    return Status();
  } else {
    return fn(std::forward<Arg>(arg));
  }
}
}  // namespace internal

/// Adds one GoogleTest failure for each rank that failed.
void report(const std::vector<RankResult>& results, const SpawnOptions& options);

/// As spawn(), but fn takes std::unique_ptr<Communicator>.
template <class Fn>
void spawn_owning(World world, int nranks, Fn fn, const SpawnOptions& options = {}) {
  report(internal::run(
             world, nranks, [&fn](std::unique_ptr<Communicator> comm) { return internal::call(fn, std::move(comm)); },
             options),
         options);
}

/// Runs fn(Communicator&), which returns a Status or void, on nranks ranks.
template <class Fn>
void spawn(World world, int nranks, Fn fn, const SpawnOptions& options = {}) {
  spawn_owning(
      world, nranks, [&fn](std::unique_ptr<Communicator> comm) { return internal::call(fn, *comm); }, options);
}

template <class Fn>
void spawn_threads(int nranks, Fn fn, const SpawnOptions& options = {}) {
  spawn(World::kThreads, nranks, std::move(fn), options);
}
template <class Fn>
void spawn_processes(int nranks, Fn fn, const SpawnOptions& options = {}) {
  spawn(World::kProcesses, nranks, std::move(fn), options);
}

/// Runs fn(rank) in nranks processes without a communicator. Used by the functions above.
std::vector<RankResult> run_processes_bare(int nranks, const std::function<Status(Rank)>& fn,
                                           const SpawnOptions& options);

}  // namespace rondo::testing
