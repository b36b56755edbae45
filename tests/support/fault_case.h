// One case of the fault matrix: some ranks call one operation after the other, one rank goes wrong at a chosen moment,
// and everything that must follow is judged: how each survivor's call ended and what its text says, when, that the
// communicator refuses work from there on, that the survivors shrink to the same communicator and sum on it, and that
// nothing is left behind.
//
// Thread safety: call from the main thread.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "rondo/communicator.h"
#include "support/fault_transport.h"
#include "support/spawn.h"

namespace rondo::testing {

/// How the operation is called.
enum class Calls : uint8_t {
  kBlocking,
  kAsync,     // two at once, then their waits
  kGrouped,   // two in a group
  kMessages,  // a send to the next rank and a recv from the one before, in a group; no algorithm
};

enum class Moment : uint8_t {
  kBeforeFirst,  // the rank has made its communicator and calls nothing
  kOpening,      // it opens its first connection, in the first operation
  kFirst,        // at the first message of the second operation
  kMiddle,       // half of its messages have passed
  kLast,         // at the last one
  kBetween,      // after the first operation
};

struct FaultCase {
  World world = World::kProcesses;
  Fault fault = Fault::kKill;
  Moment moment = Moment::kFirst;
  Calls calls = Calls::kBlocking;
  const Algorithm* algorithm = nullptr;  // kMessages: none
  bool large = false;                    // more than a connection holds; else a few hundred bytes
  Rank victim = 1;
  Rank root = 0;
};

inline constexpr int kFaultRanks = 4;
/// How long the calls of a case may take where its end is the deadline; three times as long when the machine is too
/// busy.
inline constexpr double kFaultDeadlineS = 0.4;

/// For GoogleTest: letters, digits, underscores.
std::string name_of(const FaultCase& c);
void PrintTo(const FaultCase& c, std::ostream* to);
void run_fault_case(const FaultCase& c);

/// Init with a fault: as Communicator::init_rank and init_all.
Expected<std::unique_ptr<Communicator>> init_rank_with(const TransportDecorator& decorate, int nranks,
                                                       const UniqueId& id, Rank rank, const Config& config);
Expected<std::vector<std::unique_ptr<Communicator>>> init_all_with(const TransportDecorator& decorate, int nranks,
                                                                   const Config& config);

/// What happened in one case, for the table; in seconds, negative: did not happen.
struct FaultTimes {
  double status_s = -1, shrunk_s = -1, summed_s = -1;
};
void note_for_table(World world, Fault fault, const std::string& outcome, const FaultTimes& times);
/// Cases by fault and outcome; median and worst times.
void print_fault_table();

}  // namespace rondo::testing
