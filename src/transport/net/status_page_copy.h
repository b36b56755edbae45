// Copies of the status pages of ranks on other hosts: requested in long waits, sent as bytes, and stored such that
// concurrent readers get a whole record or none.
//
// Values that are valid on one host only are changed: on other hosts the owner's pid has no namespace, and the time of
// its waits is sent as an age. Thread safety: one storer; any readers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/outcome.h"
#include "trace/operation_record.h"

namespace rondo::net {

/// The final message of a departing rank. Ranks that are still in an operation need to know whether the sender has
/// finished it, and why it departs if they missed an abort, a disagreement or another failure.
struct PartingNote {
  uint64_t posted = 0, finished = 0;
  int64_t aborted_by = -1;
  int64_t differ_by = -1;     // the rank that found the disagreement
  uint64_t differ_place = 0;  // the operation
  std::string reason;         // of the abort
  std::string difference;
  Status failure;  // ok: none

  static constexpr size_t kMostTextBytes = 480, kMostFailureBytes = 1000;
};
template <class C>
void fields(C& c, PartingNote& n) {
  c(n.posted, n.finished, n.aborted_by, n.differ_by, n.differ_place, n.reason, n.difference, n.failure);
}

struct StatusPages {
  StatusPage operations{};
  PairPage pairs{};
};
/// This rank's current status pages, for a peer.
std::string encode_pages(StatusPage& page, PairPage& pairs);

class StatusPageCopy {
 public:
  /// Stores the result of encode_pages() from another host (same_host: from this one). False: invalid bytes. Ignored
  /// after end().
  bool store(std::string_view bytes, bool same_host);
  /// Stores its owner's final position.
  void end(const PartingNote& note);
  bool ended() const { return ended_; }
  /// Only after store() or end().
  StatusPage& page() { return pages_->operations; }
  PairPage& pairs() { return pages_->pairs; }

 private:
  StatusPages& pages() {
    if (pages_ == nullptr) pages_ = std::make_unique<StatusPages>();
    return *pages_;
  }
  std::unique_ptr<StatusPages> pages_;  // 8 KiB, not allocated for the many peers that are never looked at
  bool ended_ = false;
};

}  // namespace rondo::net
