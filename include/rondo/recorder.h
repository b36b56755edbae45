// Recorder: has the verbs of algorithms. It is the P of a definition, and turns it into one rank's RankSchedule.
// Algorithms outside of this library use the same verbs (algorithm.h).
//
// A definition first calls `chunks`, with the number of chunks of each buffer. Then it calls `lane` for each lane, and
// the verbs of this lane after it. Every verb checks its operands at once. The Recorder keeps the first error with its
// source line (`error`) and records nothing after it. Equal port sets share one table entry.
//
// The last argument of every verb, `at`, has a default: the compiler inserts the line of the call, for error texts.
//
// Thread safety: none. One Recorder records one rank. Learned from: NCCL's PAT step generator (a kernel and the CPU use
// one definition).
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "rondo/rondo.h"
#include "rondo/schedule.h"

namespace rondo {

/// A chunk operand: `in(c)`, `out(c)` or `scratch(c)`, or a range of `num` chunks from c on. The range may continue at
/// chunk 0 after the buffer's last chunk.
struct Chunk {
  Buffer buffer;
  int first;
  int num = 1;
};
constexpr Chunk in(int first, int num = 1) { return {Buffer::kIn, first, num}; }
constexpr Chunk out(int first, int num = 1) { return {Buffer::kOut, first, num}; }
constexpr Chunk scratch(int first, int num = 1) { return {Buffer::kScratch, first, num}; }

/// kFinal: the result of this reduction contains all contributions for the first time.
enum class Sum { kPartial, kFinal };

/// The order of addition: `position` received operands come before the rank's own source.
struct Order {
  int position = 0;
};
inline constexpr Order kOwnFirst{0};
constexpr Order own_after(int received) { return {received}; }

/// A source line of a definition, for messages.
struct TextLine {
  const char* file = nullptr;  // as the compiler names it; nullptr: unknown
  int line = 0;

  /// As a default argument, returns the line of the call.
  static constexpr TextLine here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
  /// Returns "ring.h:52"; empty if unknown.
  RONDO_API std::string text() const;
};
/// Source lines of one rank's instructions, by lane and pc.
using TextLines = std::vector<std::vector<TextLine>>;

class Recorder {
 public:
  Recorder(Rank rank, int nranks) {
    s_.rank = rank;
    s_.nranks = nranks;
  }

  /// Sets the number of chunks of each buffer, 1..65535. scratch_chunks is 0, or equals in_chunks or out_chunks: then
  /// scratch chunk c has the length of their chunk c. Scratch has the wire type.
  RONDO_API void chunks(int in_chunks, int out_chunks, int scratch_chunks = 0, TextLine at = TextLine::here());
  /// Adds the following instructions to lane `index`.
  RONDO_API void lane(int index, TextLine at = TextLine::here());
  /// Returns a set of ports. A receive set lists its ports in the order of addition.
  PortSet ports(std::initializer_list<Port> p) { return PortSet(p); }

  void send(Chunk src, const PortSet& to, TextLine at = TextLine::here()) {
    put(at, Verb::kSend, &src, nullptr, nullptr, &to);
  }
  void copy(Chunk src, Chunk dst, Sum sum = Sum::kPartial, TextLine at = TextLine::here()) {
    put(at, Verb::kCopy, &src, nullptr, &dst, nullptr, sum);
  }
  void copy_send(Chunk src, Chunk dst, const PortSet& to, TextLine at = TextLine::here()) {
    put(at, Verb::kCopySend, &src, nullptr, &dst, &to);
  }
  void recv(const PortSet& from, Chunk dst, TextLine at = TextLine::here()) {
    put(at, Verb::kRecv, nullptr, &from, &dst, nullptr);
  }
  void recv_send(const PortSet& from, Chunk shape, const PortSet& to,  // the message has the extent of `shape`
                 TextLine at = TextLine::here()) {
    put(at, Verb::kRecvSend, nullptr, &from, nullptr, &to, Sum::kPartial, {}, &shape);
  }
  void recv_copy_send(const PortSet& from, Chunk dst, const PortSet& to, TextLine at = TextLine::here()) {
    put(at, Verb::kRecvCopySend, nullptr, &from, &dst, &to);
  }
  void recv_reduce_send(const PortSet& from, Chunk src, const PortSet& to, Order order, Sum sum = Sum::kPartial,
                        TextLine at = TextLine::here()) {
    put(at, Verb::kRecvReduceSend, &src, &from, nullptr, &to, sum, order);
  }
  void recv_reduce_copy(const PortSet& from, Chunk src, Chunk dst, Order order, Sum sum,
                        TextLine at = TextLine::here()) {
    put(at, Verb::kRecvReduceCopy, &src, &from, &dst, nullptr, sum, order);
  }
  void recv_reduce_copy_send(const PortSet& from, Chunk src, Chunk dst, const PortSet& to, Order order, Sum sum,
                             TextLine at = TextLine::here()) {
    put(at, Verb::kRecvReduceCopySend, &src, &from, &dst, &to, sum, order);
  }
  /// Makes the current lane wait until `lane` has finished its instruction `pc` in the same loop.
  RONDO_API void wait(int lane, int pc, TextLine at = TextLine::here());
  /// Makes the next instruction access the peers' own buffers (see kFlagDirect).
  Recorder& direct() {
    next_flags_ |= kFlagDirect;
    return *this;
  }
  /// Reads `theirs`, a chunk of the peer's own in or out buffer, into dst (kFlagDirect).
  void pull(const PortSet& from, Chunk theirs, Chunk dst, TextLine at = TextLine::here()) {
    next_flags_ |= kFlagDirect;
    put(at, Verb::kRecv, nullptr, &from, &dst, nullptr, Sum::kPartial, {}, &theirs);
  }
  /// Sends a message without elements.
  void send_credit(const PortSet& to, TextLine at = TextLine::here()) {
    next_flags_ |= kFlagCredit;
    put(at, Verb::kSend, nullptr, nullptr, nullptr, &to);
  }
  void recv_credit(const PortSet& from, TextLine at = TextLine::here()) {
    next_flags_ |= kFlagCredit;
    put(at, Verb::kRecv, nullptr, &from, nullptr, nullptr);
  }

  /// Stores the source line of each following instruction in `lines`.
  void keep_lines(TextLines* lines) { lines_ = lines; }
  /// Returns the first error with its source line; empty if there is none.
  const std::string& error() const { return error_; }
  /// Returns the lane of the next instruction.
  size_t current_lane() const { return lane_; }
  RankSchedule take() { return std::move(s_); }

 private:
  RONDO_API void put(TextLine at, Verb verb, const Chunk* src, const PortSet* from, const Chunk* dst, const PortSet* to,
                     Sum sum = Sum::kPartial, Order order = {}, const Chunk* shape = nullptr);
  uint16_t operand(const Chunk& c, int num);
  uint16_t intern(const PortSet* set, bool sends);
  void grow_index();
  void append(const Instruction& i);
  void wrong(std::string_view what);

  RankSchedule s_;
  std::vector<uint16_t> index_;  // hash table of port sets: open addressing, 0 is free, 2^k slots
  size_t lane_ = 0;
  uint8_t next_flags_ = 0;
  Verb verb_ = Verb::kWait;  // the verb that is being recorded
  TextLine at_;              // its source line
  TextLines* lines_ = nullptr;
  std::string error_;
};

}  // namespace rondo
