// Error texts of the checker about places in a schedule: an instruction with its line, the writer of a chunk, the
// sender of a message. Internal to the checker.
//
// They are found by searching the schedule after a proof has failed. A connection is a first-in-first-out sequence with
// one writing and one reading lane: its n-th receive takes its n-th send. Thread safety: pure functions. O(instructions
// of the ranks named).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/schedule.h"

namespace rondo {

/// The line of an instruction in its definition, "ring.h:52"; empty if unknown.
using LineOf = std::function<std::string(Rank rank, int lane, int pc)>;

namespace check {

struct Place {
  Rank rank = -1;
  int lane = -1, pc = -1;
};

class Words {
 public:
  Words(const Schedule& schedule, const LineOf& line_of) : s_(schedule), line_of_(line_of) {}

  const Instruction& instruction(const Place& at) const;
  /// "ring.h:52", or empty.
  std::string line(const Place& at) const { return line_of_ ? line_of_(at.rank, at.lane, at.pc) : std::string(); }
  /// "rank 1 lane 0 pc 2 (ring.h:52: recv from {0}, into out[0])".
  std::string place(const Place& at) const;

  /// The instructions that write the chunk, including direct ones of peers.
  std::vector<Place> writers(Rank rank, Buffer buffer, uint32_t chunk) const;
  /// The instruction that sends message `number` (from 0, in one loop) of the connection from `writer` to `reader`.
  std::optional<Place> sender(Rank writer, Rank reader, const Port& port, uint64_t number) const;
  /// The instruction that sends the message that `at` receives from port `from`; `one` is `at` for one chunk of its
  /// range.
  std::optional<Place> sender_to(const Place& at, const Instruction& one, const Port& from) const;

  /// The origin of a result: "; rank 1 lane 0 pc 2 (...) writes it, with data from rank 0 lane 0 pc 0 (...)".
  std::string origin(Rank rank, uint32_t out_chunk) const;
  /// The message that `at` receives from `from`: "data from rank 0 lane 0 pc 0 (ring.h:52: send in[2], to {1})".
  std::string sent(const Place& at, const Instruction& one, const Port& from) const;

 private:
  const RankSchedule& rank(Rank r) const { return s_.ranks[static_cast<size_t>(r)]; }

  const Schedule& s_;
  const LineOf& line_of_;
};

/// "in".
std::string_view buffer_name(Buffer b);
/// "in[2]".
std::string chunk_text(Buffer b, uint32_t chunk);
/// "{0 3}" for the bits set.
std::string ranks_text(uint64_t mask);
/// "1 message", "2 messages".
std::string counted(uint64_t number, const char* what);

}  // namespace check
}  // namespace rondo
