// Ranks of a benchmark: forked processes that synchronise in shared memory, so that a timing begins when all of them
// exist and ends when the last is ready.
//
// The forking program must not have used rondo before. Every wait has a deadline. A rank that fails prints the reason
// on stderr and ends the run.
//
// Thread safety: none needed; one thread in each process.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "rondo/communicator.h"

namespace rondo::bench {

inline constexpr int kMaxRanks = 4096;
inline constexpr double kDeadlineS = 60;

/// CLOCK_MONOTONIC, in ms.
double now_ms();

/// Shared by the ranks of a run. Zeroed.
struct Shared {
  std::atomic<uint32_t> arrived, turns;  // of the barrier
  std::atomic<uint32_t> ids_made;        // ids that rank 0 has put into `id`
  std::atomic<uint32_t> failed;
  UniqueId id;
  double start_ms;  // when the last rank arrived at line_up()
  double ready_ms[kMaxRanks];
  double values[kMaxRanks][8];  // results of a measurement for the parent
};

class Crew {
 public:
  Crew(Shared& shared, int rank, int nranks) : shared_(shared), rank_(rank), nranks_(nranks) {}
  int rank() const { return rank_; }
  int nranks() const { return nranks_; }
  Shared& shared() { return shared_; }
  /// A barrier that sleeps. The last rank to arrive stores the time.
  void line_up();
  /// Rank 0 makes an id, the others wait for it.
  const UniqueId& agree_on_id();
  /// A communicator under such an id.
  std::unique_ptr<Communicator> make_communicator();
  /// Ends the process with the reason on stderr if the status is not ok.
  void need(const Status& status);

 private:
  Shared& shared_;
  const int rank_, nranks_;
  uint32_t ids_seen_ = 0;
};

/// Forks nranks processes that run `body`, waits for them, and returns their shared memory. False: one of them failed.
bool run_ranks(int nranks, Shared* result, const std::function<void(Crew&)>& body);

}  // namespace rondo::bench
