// Segment: the memory of one rank in one communicator, for transports whose ranks share memory. It is taken from the
// pool of the rank's process (pool.h) on demand.
//
//   when made    | header: abort word, doorbell, status pages | marks of departed ranks | directory |
//   at first use | counters and lines of some connections |   | ring of a connection, or of two       |
//
// Only the owner makes connections in its segment, as their writer. It publishes each by storing its directory entry's
// key with release; readers search for the key. Offsets count from the start of the owner's pool.
//
// A departing rank stores its mark in every rank's segment, as its last access to it: a segment with the marks of all
// ranks goes back to the pool. Thread safety: one maker; any readers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
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
  explicit SegmentLayout(int nranks);
  int nranks;
  uint32_t max_connections;
  uint32_t data_lines;  // of a Simple connection
  uint32_t longest_message_bytes = kMostMessageBytes;
  /// Its ring: on one host as many messages as lines, and the guaranteed number of the longest messages.
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
  OperationBoard board;
  PairBoard pair_board;
};

struct DirectoryEntry {
  uint64_t key;  // 0: free
  uint64_t counters_offset, lines_offset, data_offset;  // in the owner's pool; data: 0: none
};

/// Makes and finds connections in segments of one layout.
class SegmentTransport : public Transport {
 public:
  Expected<FifoView> open_writer(const ConnectionKey& key) override;
  std::optional<FifoView> open_reader(const ConnectionKey& key) override;
  uint32_t counter_index(const ConnectionKey& key, Rank reader) const override {
    return key.group == 0 ? 0 : static_cast<uint32_t>(reader);
  }
  OperationBoard* board(Rank r) override { return &header(r).board; }
  PairBoard* pair_board(Rank r) override { return &header(r).pair_board; }
  Doorbell* bell(Rank r) override { return &header(r).bell; }
  void raise_abort(Rank by) override;
  std::optional<Rank> aborted_by() override;
  std::string abort_reason(Rank by) override;
  void tell_failure(const Status& cause) override;
  Status parting_failure(Rank r) override;
  bool departed(Rank r) override;
  uint64_t staging_bytes() const override { return used_bytes_; }
  /// Call before the first connection, with the same value on all ranks.
  void set_longest_message(uint32_t bytes) { layout_.longest_message_bytes = bytes; }

 protected:
  /// The address of a rank's segment in this process.
  struct SegmentAddress {
    std::byte* pool = nullptr;  // nullptr: not mapped
    uint64_t segment_offset = 0;
  };
  SegmentTransport(Rank rank, const SegmentLayout& layout, std::shared_ptr<StagingPool> pool,
                   StagingPool::Backing backing)
      : rank_(rank), layout_(layout), pool_(std::move(pool)), backing_(backing) {}
  /// This rank's own segment, taken with layout.total_bytes of small memory.
  void set_own(const StagingPool::Range& segment) { taken_.push_back(segment); }
  /// By rank, set before the first use.
  void set_places(std::vector<SegmentAddress> places) { places_ = std::move(places); }
  const std::vector<SegmentAddress>& places() const { return places_; }
  SegmentHeader& header(Rank r) const { return *reinterpret_cast<SegmentHeader*>(segment(r)); }
  uint8_t* marks(Rank r) const { return reinterpret_cast<uint8_t*>(segment(r) + layout_.marks_offset); }
  /// Stores this rank's marks: it must not access any segment afterwards.
  void depart();
  /// This rank's ranges of the pool; the caller frees them when all have departed.
  std::vector<StagingPool::Range> take_ranges() { return std::exchange(taken_, {}); }

  Rank rank_;
  SegmentLayout layout_;
  std::shared_ptr<StagingPool> pool_;

 private:
  // The unused rest of a range of the pool.
  struct PoolRemainder {
    uint64_t offset = 0, bytes = 0;
  };
  std::byte* segment(Rank r) const {
    const SegmentAddress& p = places_[static_cast<size_t>(r)];
    return p.pool + p.segment_offset;
  }
  Expected<uint64_t> carve(StagingPool::Use use, uint64_t bytes);
  Status give_up(const ConnectionKey& key, const Status& why);
  FifoView view(Rank owner, const DirectoryEntry& entry) const;

  const StagingPool::Backing backing_;
  std::vector<StagingPool::Range> taken_;
  std::vector<SegmentAddress> places_;
  PoolRemainder small_, data_;
  uint32_t made_ = 0;
  uint64_t used_bytes_ = 0;
};

}  // namespace rondo
