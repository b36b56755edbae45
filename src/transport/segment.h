// Segment: the memory of one rank in one communicator, for transports whose ranks share memory. The transport provides
// the memory.
//
//   when made    | header: abort word, doorbell, status pages | marks of departed ranks (used: rank 0's) | directory |
//   at first use | counters and lines of some connections |   | ring of a connection |
//
// Only the owner makes connections in its segment, as their writer. It publishes each by storing its directory entry's
// key with release; readers search for the key. Offsets count from the start of the memory that holds the segment.
//
// A departing rank stores its mark, as its last access to any segment. Thread safety: one maker; any readers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/pool.h"
#include "transport/transport.h"

namespace rondo {

/// Sizes of a segment, equal on all ranks.
struct SegmentLayout {
  static constexpr uint32_t kLinesPerConnection = 64;
  static constexpr uint32_t kMostMessageBytes = 128 * 1024;  // mostly between hosts; on one host half of it
  explicit SegmentLayout(int nranks, uint32_t longest_bytes = kMostMessageBytes);
  int nranks;
  uint32_t max_connections;
  uint32_t data_lines;  // of a Simple connection
  uint32_t longest_message_bytes;
  /// Returns the length of its ring: enough for one message of 64 KiB for each line, and for kRingMessages + 1 of the
  /// longest messages.
  uint32_t data_bytes() const {
    return std::max(data_lines * kMostMessageBytes / 2, (kRingMessages + 1) * longest_message_bytes);
  }
  uint64_t marks_offset, directory_offset, total_bytes;  // before the first connection
};

struct SegmentHeader {
  alignas(64) uint64_t aborted_by;  // rank + 1; 0: no abort
  uint64_t reason[63];              // of the owner's abort, zero-terminated; empty: its caller requested it
  uint64_t failure_code;            // StatusCode of the failure of the owner's communicator; 0: none
  uint64_t failure[127];            // its text, zero-terminated
  alignas(64) Doorbell bell;
  StatusPage page;
  PairPage pair_page;
};

struct DirectoryEntry {
  uint64_t key;  // 0: free
  uint64_t counters_offset, lines_offset, data_offset;  // in the memory that holds the segment; data: 0: none
};

/// Makes and finds connections in segments of one layout.
class SegmentTransport : public Transport {
 public:
  Expected<FifoView> open_writer(const ConnectionKey& key) override;
  std::optional<FifoView> open_reader(const ConnectionKey& key) override;
  uint32_t counter_index(const ConnectionKey& key, Rank reader) const override {
    return key.group == 0 ? 0 : static_cast<uint32_t>(reader);
  }
  StatusPage* page(Rank r) override { return &header(r).page; }
  PairPage* pair_page(Rank r) override { return &header(r).pair_page; }
  Doorbell* bell(Rank r) override { return &header(r).bell; }
  void raise_abort(Rank by) override;
  std::optional<Rank> aborted_by() override;
  std::string abort_reason(Rank by) override;
  void tell_failure(const Status& cause) override;
  Status parting_failure(Rank r) override;
  bool departed(Rank r) override;
  /// Call before the first connection, with the same value on all ranks.
  void set_longest_message(uint32_t bytes) { layout_.longest_message_bytes = bytes; }

 protected:
  /// The address of a rank's segment in this process.
  struct SegmentAddress {
    std::byte* memory = nullptr;  // nullptr: not mapped
    uint64_t segment_offset = 0;
  };
  SegmentTransport(Rank rank, const SegmentLayout& layout) : rank_(rank), layout_(layout) {}
  /// More of this rank's memory, all zeros. Errors: kExhausted, kSystem.
  virtual Expected<StagingPool::Range> take(uint64_t bytes, StagingPool::Use use) = 0;
  /// Copies `bytes` at address `from` of a peer's process. Errors: kSystem with the errno's text.
  Status copy_by_kernel(Rank peer, pid_t pid, uint64_t from, void* to, uint64_t bytes) const;
  /// By rank, set before the first use.
  void set_places(std::vector<SegmentAddress> places) { places_ = std::move(places); }
  SegmentHeader& header(Rank r) const { return *reinterpret_cast<SegmentHeader*>(segment(r)); }
  /// By rank: 1 when it has departed.
  uint8_t* marks() const { return reinterpret_cast<uint8_t*>(segment(0) + layout_.marks_offset); }
  /// Stores this rank's mark: it must not access any segment afterwards.
  void depart();

  Rank rank_;
  SegmentLayout layout_;

 private:
  std::byte* segment(Rank r) const {
    const SegmentAddress& p = places_[static_cast<size_t>(r)];
    return p.memory + p.segment_offset;
  }
  Status give_up(const ConnectionKey& key, const Status& why);
  FifoView view(Rank owner, const DirectoryEntry& entry) const;

  std::vector<SegmentAddress> places_;
  RangeCutter cutter_;
  uint32_t made_ = 0;
};

}  // namespace rondo
