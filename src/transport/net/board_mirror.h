// The boards of ranks on other hosts, as they were a moment ago: asked for in long waits, sent as bytes, stored so that
// whoever reads them meanwhile gets a record whole or not at all.
//
// What means something on one host only does not cross: whose process it is, and the clock of its waits, which travels
// as an age.
//
// Thread safety: one storer; any readers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "trace/operation_record.h"
#include "trace/pair_record.h"

namespace rondo::net {

/// What a rank that leaves says of itself: whoever is still in an operation has to know whether it has finished that,
/// and whoever has not heard of an abort, that ranks disagree, or of another failure, why it leaves.
struct PartingNote {
  uint64_t posted = 0, finished = 0;
  int64_t aborted_by = -1;
  int64_t differ_by = -1;     // who found that ranks disagree
  uint64_t differ_place = 0;  // the operation
  std::string reason;         // of the abort
  std::string difference;
  uint8_t failure_code = 0;  // a StatusCode; 0: it has not failed
  std::string failure;

  std::string encode() const;
  static bool decode(const std::byte* bytes, size_t num_bytes, PartingNote* note);
};

class BoardMirror {
 public:
  /// This rank's boards as they stand, for a peer.
  static std::string encode(OperationBoard& board, PairBoard& pairs);
  /// Takes what encode() made on another host (same_host: on this one). False: it is something else. After end() it is
  /// ignored.
  bool store(const std::byte* bytes, size_t num_bytes, bool same_host);
  /// How far its owner came, for good.
  void end(const PartingNote& note);
  bool ended() const { return ended_; }
  /// Where store() or end() was called before.
  OperationBoard& board() { return boards_->operations; }
  PairBoard& pairs() { return boards_->pairs; }

 private:
  struct Boards {  // 8 KiB, which are nobody's business for most of thousands of peers
    OperationBoard operations{};
    PairBoard pairs{};
  };
  Boards& boards() {
    if (boards_ == nullptr) boards_ = std::make_unique<Boards>();
    return *boards_;
  }
  std::unique_ptr<Boards> boards_;
  bool ended_ = false;
};

}  // namespace rondo::net
