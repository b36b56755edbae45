// Ranks as threads, and the choice between threads and processes (spawn_processes.cc).
#include "support/spawn.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "support/fault_case.h"
#include "support/shared.h"
#include "support/spawn_processes.h"
#include "support/test_hosts.h"

namespace rondo::testing {
namespace {

// State shared by the ranks of a threaded run and the thread that waits for them.
struct ThreadRun {
  explicit ThreadRun(int nranks) : results(static_cast<size_t>(nranks)), done(static_cast<size_t>(nranks)) {}
  std::vector<RankResult> results;
  std::vector<std::atomic<bool>> done;
  SharedCounter num_done;
};

[[noreturn]] void end_program_over_late_threads(const ThreadRun& run, double deadline_s) {
  std::fprintf(stderr, "spawn: after %.0f s these ranks have not returned:", deadline_s);
  for (size_t r = 0; r < run.done.size(); ++r)
    if (!run.done[r]) std::fprintf(stderr, " %zu", r);
  std::fprintf(stderr, " (threads cannot be killed: the test program ends)\n");
  std::fflush(nullptr);
  std::_Exit(1);
}

std::vector<RankResult> run_threads(int nranks, const OwningRankFn& fn, const SpawnOptions& options) {
  ThreadRun run(nranks);
  auto comms = options.decorate ? init_all_with(options.decorate, nranks, options.config)
                                : Communicator::init_all(nranks, options.config);
  if (!comms.ok()) {
    run.results[0].failures.push_back("init_all: " + comms.status().to_string());
    return std::move(run.results);
  }
  std::vector<std::thread> threads;
  for (Rank r = 0; r < nranks; ++r) {
    threads.emplace_back([&, r, comm = std::move((*comms)[static_cast<size_t>(r)])]() mutable {
      RankResult& result = run.results[static_cast<size_t>(r)];
      result.rank = r;
      const ::testing::ScopedTrace trace(__FILE__, __LINE__, "rank " + std::to_string(r));
      const Status status = fn(std::move(comm));
      if (!status.ok()) result.failures.push_back(status.to_string());
      run.done[static_cast<size_t>(r)] = true;
      run.num_done.add();
    });
  }
  if (!run.num_done.wait_at_least(static_cast<uint32_t>(nranks), options.deadline_s))
    end_program_over_late_threads(run, options.deadline_s);
  for (std::thread& t : threads) t.join();
  return std::move(run.results);
}

std::string describe(const RankResult& result, double deadline_s) {
  switch (result.end) {
    case RankResult::End::kReturned: return "returned";
    case RankResult::End::kSignalled:
      return std::string("was killed by signal ") + std::to_string(result.signal) + " (" + strsignal(result.signal) +
             ")";
    case RankResult::End::kExited: return "exited before its function returned";
    case RankResult::End::kDeadline: return "was killed at the deadline of " + std::to_string(deadline_s) + " s";
  }
  return "?";
}

}  // namespace

void report(const std::vector<RankResult>& results, const SpawnOptions& options) {
  for (const RankResult& result : results) {
    for (const std::string& text : result.failures) ADD_FAILURE() << "rank " << result.rank << ": " << text;
    bool expected = result.end == RankResult::End::kReturned;
    for (const Rank r : options.may_die)
      expected = expected || (r == result.rank && result.end == RankResult::End::kSignalled);
    if (!expected) ADD_FAILURE() << "rank " << result.rank << ": " << describe(result, options.deadline_s);
  }
}

namespace {

constexpr int kMostHosts = 4;

TestHosts* hosts_or_why(std::string* why_not) {
  static std::string why;
  static const std::unique_ptr<TestHosts> hosts = TestHosts::make(kMostHosts, &why);
  *why_not = why;
  return hosts.get();
}

}  // namespace

std::string why_no_world(World w) {
  std::string why;
#ifndef RONDO_HAVE_UCX
  const char* const transport = std::getenv("RONDO_TRANSPORT");
  if (w == World::kUcx || (w == World::kHosts && transport != nullptr && std::string_view(transport) == "shm+ucx"))
    return "this build has no UCX";
#endif
  if (w == World::kHosts) hosts_or_why(&why);
  return why;
}

TestHosts& test_hosts() {
  std::string why;
  return *hosts_or_why(&why);
}

std::vector<RankResult> internal::run(World world, int nranks, const OwningRankFn& fn, const SpawnOptions& options) {
  if (world == World::kThreads) return run_threads(nranks, fn, options);
  IdPipes id_pipes(nranks);
  Config config = options.config;
  if (world == World::kUcx) config.settings += "transport = ucx\n";
  if (world == World::kTcp) config.settings += "transport = tcp\n";
  if (world == World::kHosts) test_hosts();  // the ranks' processes inherit them
  return run_processes_bare(
      nranks,
      [&](Rank rank) -> Status {
        if (world == World::kHosts && !test_hosts().enter(host_of(rank, nranks)))
          return Status(StatusCode::kSystem, "cannot enter the test host");
        RONDO_TRY_ASSIGN(const UniqueId id, id_pipes.exchange(rank));
        RONDO_TRY_ASSIGN(auto comm, Communicator::init_rank(nranks, id, rank, config));
        return fn(std::move(comm));
      },
      options);
}

}  // namespace rondo::testing
