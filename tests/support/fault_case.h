// One case of the fault matrix: ranks repeat an operation, one rank fails at a chosen moment, and all consequences are
// checked: the status, text and time of each survivor's call, that the communicator then refuses work, that the
// survivors shrink to the same communicator and sum on it, and that nothing is left behind.
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
  kMessages,  // a send to the next rank and a recv from the previous one, in a group; no algorithm
};

enum class Moment : uint8_t {
  kBeforeFirst,  // the rank has made its communicator and makes no call
  kOpening,      // at the first opened connection, in the first operation
  kFirst,        // at the first message of the second operation
  kMiddle,       // after half of its messages
  kLast,         // at the last message
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
/// Deadline of a case's calls if it ends at the deadline; tripled when the machine is too busy.
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

/// Times of one case for the table, in seconds; negative: did not happen.
struct FaultTimes {
  double status_s = -1, shrunk_s = -1, summed_s = -1;
};
void note_for_table(World world, Fault fault, const std::string& outcome, const FaultTimes& times);
/// Prints cases by fault and outcome, with median and worst times.
void print_fault_table();

}  // namespace rondo::testing
