// Merges the flight records of a communicator's ranks and finds out which ranks wait, for which ranks, and why.
//
// Each record contains its own rank's state and the rank's view of the others (their status pages and processes). A
// rank may leave no record, because it was killed or never waited. Then the other ranks' views are used.
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace rondo::tools {

/// A lane that waits, or an operation under way.
struct LaneView {
  std::string where;  // "step 3 of 6 of lane 1 (recv_reduce_send) in loop 0 of 4"
  std::string state;  // "waits for data", "waits for space", "waits for order", "ready", "done"
  std::vector<int> peers;
};
struct CurrentView {
  uint64_t sequence = 0;
  bool point_to_point = false;
  int peer = -1;     // of a send or recv
  std::string call;  // "all_reduce of 1000 float sum"
  std::string how;   // "ring, simple"
  bool begun = false;
  double waited_s = 0;
  std::vector<LaneView> lanes;
};

/// State of one rank of one communicator, merged from its own record and the others'.
struct RankView {
  int rank = 0;
  bool has_record = false;
  int64_t pid = 0;
  std::string host;
  std::string process = "unknown";  // running, stopped, gone, unknown
  bool departed = false;
  std::string status, message;  // from its own record
  std::optional<int> lost_rank, aborted_by;
  std::string lost_how;
  uint64_t posted = 0, finished = 0;
  std::map<uint64_t, std::string> calls;  // by sequence number, with the algorithm if known
  bool current_known = true;
  std::vector<CurrentView> current;  // under way, oldest first
  double idle_s = -1;                // since its last operation finished, per the newest record; -1: unknown
};

struct CommunicatorView {
  std::string id;
  int nranks = 0;
  std::vector<RankView> ranks;  // by rank
};

enum class Cause {
  kNone,
  kDead,
  kDeparted,
  kStopped,
  kAborted,
  kDifferentCall,
  kMissingCall,
  kCycle,
  kStuck,
  kUnknown
};
/// "dead", "missing call", ...
const char* cause_name(Cause cause);

struct Finding {
  Cause cause = Cause::kNone;
  std::string text;           // a sentence or two
  std::vector<int> culprits;  // ranks; for a cycle in its order
};

/// Reads all *.flight.json files of a folder. Files that are not flight records are skipped and listed in `problems`.
std::vector<CommunicatorView> read_flight_records(const std::string& folder, std::vector<std::string>* problems);
/// The same for texts instead of files.
std::vector<CommunicatorView> merge_flight_records(const std::vector<std::string>& texts,
                                                   std::vector<std::string>* problems);
/// Returns the causes, most likely first. Empty if no rank waits. O(ranks^2).
std::vector<Finding> find_causes(const CommunicatorView& comm);
/// Finds cycles of ranks that wait for one another across communicators, because their processes wait in another one.
std::vector<Finding> find_cycles_between(const std::vector<CommunicatorView>& comms);

/// The causes for a whole job.
struct Verdict {
  std::vector<Finding> between;              // from find_cycles_between; these come first
  std::vector<std::vector<Finding>> within;  // by communicator: find_causes without consequences of other findings
};
/// If a rank misses a call because its process waits in another communicator, or left for it, the missing call is left
/// out, unless the records show no other cause.
Verdict find_verdict(const std::vector<CommunicatorView>& comms);
/// Describes the rank's state in one line.
std::string describe_rank(const RankView& rank);

}  // namespace rondo::tools
