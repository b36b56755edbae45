// What travels between ranks that share no memory, and who takes it: shared by the wire, its rails and those who use
// them.
//
// A message is a header of up to 128 bytes and data.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/fifo.h"
#include "protocol/lending.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo::net {

enum class Kind : uint8_t {
  kLines,    // header lines of an Inline connection; data: the lines
  kData,     // a message of a Simple connection: its line, and data for the ring
  kCredit,   // a read counter
  kAbort,    // data: the reason
  kLeaving,  // step: how many messages of kLines, kData and kSlot the sender has sent to the receiver
  kLeft,     // the answer when they have all come
  kBoardsAsked,
  kBoards,  // data: an OperationBoard and a PairBoard
  kOpened,  // of a relayed connection: its reader has named its memory
  kSlot,    // step: a relayed slot's number; data: what it holds
  kSlotEmpty,
};
/// Whose data are too long for one copy too many: with a line, whether it says anything or not.
constexpr bool has_line(Kind k) { return k == Kind::kData || k == Kind::kSlot; }

/// Stands before every message. One layout on all hosts: ranks are of one build, which Settings::abi checks. It fills a
/// cache line, so that data lie behind it as they lie where they come from and go to: copies go faster so.
struct Header {
  uint64_t session = 0;  // of the communicator: what strays in is dropped
  uint64_t step = 0;
  int32_t from = 0;
  uint16_t tag = 0, group = 0;  // of the connection
  Kind kind = Kind::kLines;
  uint8_t inline_only = 0;
  uint16_t num_lines = 0;
  uint16_t channel = 0;  // of a relayed connection
  uint16_t pad[17] = {};
};
static_assert(sizeof(Header) == 64);
struct DataHeader {
  Header header;
  HeaderLine line;
};
static_assert(sizeof(DataHeader) == 128 && offsetof(DataHeader, line) == 64);

/// A loan on its way to one reader; stays until the loan is given back.
struct Lent {
  Loan* loan = nullptr;
  void* endpoint = nullptr;  // the rail's
};

/// Whether a message may land in a caller's buffer.
enum class MayLand : uint8_t {
  kNo,
  kWhereAsked,  // else it belongs into the ring
  kSoon,        // and may be left where it is for a moment: its reader is about to ask
};

/// Where the data of a message are to be received.
struct Place {
  std::byte* at = nullptr;     // nullptr: piece by piece in the landing; without one nowhere: the message is dropped
  Landing* landing = nullptr;  // claimed: to be finished or dropped
  bool later = false;          // to be asked again
};

class Sink {
 public:
  /// Of a kData or kSlot message of `bytes` bytes of data that are still to come. Nowhere: the sink knows why.
  virtual Place place(const Header& header, const HeaderLine& line, size_t bytes, MayLand may_land) = 0;
  /// The data of a kData or kSlot message, which are here, perhaps where place() has said: takes them where they
  /// belong. False: nowhere, likewise.
  virtual bool put(const Header& header, const HeaderLine& line, const std::byte* data, size_t bytes) = 0;
  /// A whole message. kData, kSlot: its data are where they belong.
  virtual void arrived(const Header& header, const HeaderLine* line, const std::byte* data, size_t bytes) = 0;
  /// A message came that cannot be taken. It is never sent again: what waits for it fails, on all ranks, for this.
  virtual void fail_here(const Status& why) = 0;

 protected:
  ~Sink() = default;
};

}  // namespace rondo::net
