// Messages between ranks without common memory, and their receiver: shared by the rails and their users.
//
// A message is a header of up to 128 bytes and data.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/fifo.h"
#include "protocol/zero_copy.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo::net {

enum class MessageKind : uint8_t {
  kLines,    // header lines of an Inline connection; data: the lines
  kData,     // a message of a Simple connection: its line, and data for the ring
  kCredit,   // a read counter
  kAbort,    // data: the reason
  kLeaving,  // data: a PartingNote; step: number of lines of kLines, and of kData and kSlot messages, to the receiver
  kLeft,     // the answer after all of them have arrived
  kPagesAsked,
  kPages,   // data: a StatusPage and a PairPage
  kOpened,  // for a proxied connection: its reader has registered its memory
  kSlot,    // step: number of a proxied slot; data: its content
  kSlotEmpty,
};
/// Returns true for the kinds whose data are too long for an extra copy. Their header has a line, used or not.
constexpr bool has_line(MessageKind k) { return k == MessageKind::kData || k == MessageKind::kSlot; }

/// Precedes every message. One layout on all hosts: ranks are of one build, whose version the handshake checks. It
/// fills a cache line, so that data keep their alignment and copies are faster.
struct Header {
  uint64_t session = 0;  // of the communicator; messages of other sessions are dropped
  uint64_t step = 0;
  int32_t from = 0;
  uint16_t tag = 0, group = 0;  // of the connection
  MessageKind kind = MessageKind::kLines;
  uint8_t inline_only = 0;
  uint16_t num_lines = 0;
  uint16_t channel = 0;  // of a proxied connection
  uint16_t pad[17] = {};
};
static_assert(sizeof(Header) == 64);
struct DataHeader {
  Header header;
  HeaderLine line;
};
static_assert(sizeof(DataHeader) == 128 && offsetof(DataHeader, line) == 64);

/// The error of rank `rank` for a message whose content is impossible.
Status malformed(Rank rank, const Header& header, size_t bytes);

/// Says if a message may go to a posted receive.
enum class PostedReceiveUse : uint8_t {
  kNo,
  kWhereAsked,  // if posted; otherwise it goes into the ring
  kSoon,        // as kWhereAsked, or ask again `later`: the reader is about to post its receive
  kComplete,    // as kWhereAsked, for a message whose data have all arrived
};

/// The destination of a message's data.
struct ReceiveTarget {
  std::byte* at = nullptr;  // nullptr: piece by piece into `posted_receive`; without one the message is dropped
  PostedReceive* posted_receive = nullptr;  // claimed: finish or drop it
  bool later = false;                       // ask again later
};

class Sink {
 public:
  /// The destination of a kData or kSlot message with `bytes` bytes of data. If there is none, the sink has handled the
  /// error.
  virtual ReceiveTarget place(const Header& header, const HeaderLine& line, size_t bytes, PostedReceiveUse use) = 0;
  /// A complete message. kData, kSlot: the data are already stored.
  virtual void arrived(const Header& header, const HeaderLine* line, const std::byte* data, size_t bytes) = 0;
  /// An unreadable message arrived. It is never sent again: operations that wait for it fail on all ranks with this
  /// error.
  virtual void fail_here(const Status& why) = 0;

  /// Stores the data of a kData or kSlot message, which may already be at place()'s destination. False: no destination,
  /// handled as above.
  bool put(const Header& header, const HeaderLine& line, const std::byte* data, size_t bytes);

 protected:
  ~Sink() = default;
};

}  // namespace rondo::net
