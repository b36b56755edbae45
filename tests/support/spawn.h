// Runs a function on every rank of a communicator: ranks as threads (inproc), as processes (shm), as processes that use
// UCX alone, or as processes on several test hosts (shm on a host, ucx between them).
//
// The function's Status, and every failed EXPECT in it, is reported to GoogleTest with the rank, from processes too
// (the text comes back through a pipe). Every run has a deadline: late processes are killed and named; late threads
// cannot be killed, so they are named and the test program ends. Processes die with the test program.
//
// A program that spawns processes must not have made a communicator itself: state that a fork copies is not state that
// a fork shares. Hence one test program for threads and one for processes.
//
// Thread safety: call from the main thread.
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

/// Why a world cannot be had on this machine; empty when it can. To be asked before its first use.
std::string why_no_world(World w);
/// kHosts: three hosts for a multiple of three beyond 3, else two; the first ranks are on host 0.
inline int num_hosts_of(int nranks) { return nranks > 3 && nranks % 3 == 0 ? 3 : 2; }
inline int host_of(int rank, int nranks) {
  const int hosts = num_hosts_of(nranks), on_each = (nranks + hosts - 1) / hosts;
  return rank / on_each;
}
/// Skips what this machine cannot have, and says why.
class WorldTest : public ::testing::TestWithParam<World> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_world(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
};
class TestHosts;
/// The hosts of World::kHosts, made at the first call. Only where why_no_world() is empty.
TestHosts& test_hosts();

/// How one rank ended.
struct RankResult {
  enum class End { kReturned, kSignalled, kExited, kDeadline };
  Rank rank = 0;
  End end = End::kReturned;
  int signal = 0;                     // kSignalled
  std::vector<std::string> failures;  // failed expectations, and the Status when it was not ok
};

struct SpawnOptions {
  Config config;
  TransportDecorator decorate = {};  // of every rank's transport; threads
  double deadline_s = 60;
  std::vector<Rank> may_die;                                 // processes: being killed is no failure of these ranks
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

/// Adds one GoogleTest failure for each rank that did not end well.
void report(const std::vector<RankResult>& results, const SpawnOptions& options);

/// As spawn(), but fn takes std::unique_ptr<Communicator>.
template <class Fn>
void spawn_owning(World world, int nranks, Fn fn, const SpawnOptions& options = {}) {
  report(internal::run(
             world, nranks, [&fn](std::unique_ptr<Communicator> comm) { return internal::call(fn, std::move(comm)); },
             options),
         options);
}

/// Runs fn(Communicator&), which returns a Status or nothing, on nranks ranks.
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

/// Runs fn(rank) in nranks processes without any communicator; the base of the above.
std::vector<RankResult> run_processes_bare(int nranks, const std::function<Status(Rank)>& fn,
                                           const SpawnOptions& options);

}  // namespace rondo::testing
