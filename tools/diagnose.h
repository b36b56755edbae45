// Merges the flight records of a communicator's ranks into who waits for whom, where, and why.
//
// Each record says where its own rank stands and what it could see of the others (their boards, their processes). A
// rank that left no record, since it was killed or never waited, is known by what the others saw of it.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace rondo::tools {

/// One lane that waits, or an operation under way.
struct LaneView {
  std::string where;  // "step 3 of 6 of lane 1 (recv_reduce_send) in loop 0 of 4"
  std::string state;  // "waits for data", "waits for room", "waits for order", "ready", "done"
  std::vector<int> peers;
};
struct CurrentView {
  uint64_t sequence = 0;
  bool point_to_point = false;
  int peer = -1;  // of a send or recv
  std::string call;  // "all_reduce of 1000 float sum"
  std::string how;   // "ring, simple"
  bool begun = false;
  double waited_s = 0;
  std::vector<LaneView> lanes;
};

/// What is known of one rank of one communicator, from its own record and from the others'.
struct RankView {
  int rank = 0;
  bool has_record = false;
  int64_t pid = 0;
  std::string host;
  std::string process = "unknown";  // running, stopped, gone, unknown
  bool departed = false;
  std::string status, message;  // of its own record
  std::optional<int> lost_rank, aborted_by;
  std::string lost_how;
  uint64_t posted = 0, finished = 0;
  std::map<uint64_t, std::string> calls;  // by sequence, with the algorithm, as far as known
  bool current_known = true;
  std::vector<CurrentView> current;  // under way, the oldest first
  double idle_s = -1;  // since its last operation finished, as of the newest record that says so; -1: unknown
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
  std::string text;         // a sentence or two
  std::vector<int> culprits;  // ranks; of a cycle: in its order
};

/// Reads all *.flight.json of a folder. Files that are no flight records are named in `problems` and left out.
std::vector<CommunicatorView> read_flight_records(const std::string& folder, std::vector<std::string>* problems);
/// The same from texts instead of files.
std::vector<CommunicatorView> merge_flight_records(const std::vector<std::string>& texts,
                                                   std::vector<std::string>* problems);
/// What is wrong, the likeliest cause first; empty when nobody waits. O(ranks^2).
std::vector<Finding> find_causes(const CommunicatorView& comm);
/// Ranks of several communicators that wait for one another through their processes, each in another communicator.
std::vector<Finding> find_cycles_between(const std::vector<CommunicatorView>& comms);

/// What is wrong with a job.
struct Verdict {
  std::vector<Finding> between;              // find_cycles_between: these come first
  std::vector<std::vector<Finding>> within;  // by communicator: find_causes, without those that follow from another
};
/// A rank whose process waits in another communicator misses its call for that reason, or has left for it: then that is
/// left out, unless the records show no other cause.
Verdict find_verdict(const std::vector<CommunicatorView>& comms);
/// One line: where the rank stands.
std::string describe_rank(const RankView& rank);

}  // namespace rondo::tools
