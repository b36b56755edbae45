// Segment: the memory of one rank in one communicator, laid out for any transport whose ranks share memory.
//
//   | header: abort word, doorbell, boards | directory of connections | lines and counters ... | data slots ... |
//
// The owner is the only one that makes connections in its segment (it is their writer) and publishes each by storing
// its directory entry's key with release; readers look for the key. The segment is sparse: address space is taken for
// all connections that could exist, memory only for those that were made.
//
// Thread safety: one maker; any readers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "transport/transport.h"

namespace rondo {

/// Sizes of a segment, equal on all ranks.
struct SegmentLayout {
  static constexpr uint32_t kLinesPerConnection = 64;
  static constexpr uint32_t kSlotBytes = 64 * 1024;
  explicit SegmentLayout(int nranks);
  int nranks;
  uint32_t max_connections;
  uint32_t data_slots;  // of a Simple connection
  uint64_t directory_offset, small_offset, data_offset, total_bytes;
};

struct SegmentHeader {
  alignas(64) uint64_t aborted_by;  // rank + 1; 0: nobody
  uint64_t departed;                // 1 when the owner has destroyed its communicator
  alignas(64) Doorbell bell;
  OperationBoard board;
  PairBoard pair_board;
};

struct DirectoryEntry {
  uint64_t key;  // 0: free
  uint64_t counters_offset, lines_offset, data_offset;
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
  bool departed(Rank r) override;
  uint64_t staging_bytes() const override { return small_used_ + data_used_; }

 protected:
  SegmentTransport(Rank rank, const SegmentLayout& layout) : rank_(rank), layout_(layout) {}
  /// The segments by rank, set before the first use.
  void set_segments(std::vector<std::byte*> bases) { bases_ = std::move(bases); }
  SegmentHeader& header(Rank r) const { return *reinterpret_cast<SegmentHeader*>(bases_[static_cast<size_t>(r)]); }
  void depart();

  Rank rank_;
  SegmentLayout layout_;

 private:
  FifoView view(Rank owner, const DirectoryEntry& entry) const;
  std::vector<std::byte*> bases_;
  uint32_t made_ = 0;
  uint64_t small_used_ = 0, data_used_ = 0;
};

}  // namespace rondo
