#include "transport/segment.h"

#include <fmt/format.h>

#include <atomic>

namespace rondo {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

uint64_t pack(const ConnectionKey& k) {
  return uint64_t{1} << 63 | static_cast<uint64_t>(k.inline_only) << 62 | static_cast<uint64_t>(k.reader + 1) << 32 |
         static_cast<uint64_t>(k.group) << 16 | k.tag;
}

}  // namespace

// A Simple connection's ring is 2 MiB: about the size of a core's second level cache, so that slots are read from the
// shared cache and not, slowly, from the writer's (docs/architecture.md, "Staging"); smaller when there are very many.
SegmentLayout::SegmentLayout(int n) : nranks(n) {
  data_slots = n <= 16 ? 32 : 16;
  max_connections = static_cast<uint32_t>(8 * n + 64);
  const uint64_t small_each = round_up(sizeof(ReadCounter) * static_cast<uint64_t>(n), 64) +
                              sizeof(HeaderLine) * kLinesPerConnection;
  directory_offset = round_up(sizeof(SegmentHeader), 4096);
  small_offset = round_up(directory_offset + sizeof(DirectoryEntry) * max_connections, 4096);
  data_offset = round_up(small_offset + small_each * max_connections, kHugePage);
  total_bytes = data_offset + uint64_t{data_slots} * kSlotBytes * (max_connections / 2);
}

FifoView SegmentTransport::view(Rank owner, const DirectoryEntry& e) const {
  std::byte* base = bases_[static_cast<size_t>(owner)];
  FifoView v;
  v.counters = reinterpret_cast<ReadCounter*>(base + e.counters_offset);
  v.lines = reinterpret_cast<HeaderLine*>(base + e.lines_offset);
  v.data = e.data_offset != 0 ? base + e.data_offset : nullptr;
  v.num_slots = e.data_offset != 0 ? layout_.data_slots : SegmentLayout::kLinesPerConnection;
  v.slot_bytes = e.data_offset != 0 ? SegmentLayout::kSlotBytes : 0;
  return v;
}

Expected<FifoView> SegmentTransport::open_writer(const ConnectionKey& key) {
  RONDO_CHECK(key.writer == rank_);
  const uint64_t counters = sizeof(ReadCounter) * static_cast<uint64_t>(key.group == 0 ? 1 : layout_.nranks);
  const uint64_t lines = sizeof(HeaderLine) * (key.inline_only ? SegmentLayout::kLinesPerConnection : layout_.data_slots);
  const uint64_t data = key.inline_only ? 0 : uint64_t{layout_.data_slots} * SegmentLayout::kSlotBytes;
  const bool fits = made_ < layout_.max_connections &&
                    small_used_ + counters + lines <= layout_.data_offset - layout_.small_offset &&
                    data_used_ + data <= layout_.total_bytes - layout_.data_offset;
  if (!fits)
    return Status(StatusCode::kInternal,
                  fmt::format("rank {}: no room for another connection (tag {}, {} made) in its segment of {} MiB", rank_,
                              key.tag, made_, layout_.total_bytes >> 20));
  auto& entry = reinterpret_cast<DirectoryEntry*>(bases_[static_cast<size_t>(rank_)] + layout_.directory_offset)[made_++];
  entry.counters_offset = layout_.small_offset + small_used_;
  entry.lines_offset = entry.counters_offset + counters;
  entry.data_offset = data != 0 ? layout_.data_offset + data_used_ : 0;
  small_used_ += counters + lines;
  data_used_ += data;
  std::atomic_ref<uint64_t>(entry.key).store(pack(key), std::memory_order_release);
  return view(rank_, entry);
}

std::optional<FifoView> SegmentTransport::open_reader(const ConnectionKey& key) {
  auto* entries =
      reinterpret_cast<DirectoryEntry*>(bases_[static_cast<size_t>(key.writer)] + layout_.directory_offset);
  const uint64_t wanted = pack(key);
  for (uint32_t i = 0; i < layout_.max_connections; ++i) {
    const uint64_t found = std::atomic_ref<uint64_t>(entries[i].key).load(std::memory_order_acquire);
    if (found == wanted) return view(key.writer, entries[i]);
    if (found == 0) break;
  }
  return std::nullopt;
}

void SegmentTransport::raise_abort(Rank by) {
  for (Rank r = 0; r < layout_.nranks; ++r) {
    uint64_t nobody = 0;
    std::atomic_ref<uint64_t>(header(r).aborted_by).compare_exchange_strong(nobody, static_cast<uint64_t>(by) + 1);
    ring(header(r).bell);
  }
}

std::optional<Rank> SegmentTransport::aborted_by() {
  const uint64_t by = std::atomic_ref<uint64_t>(header(rank_).aborted_by).load(std::memory_order_acquire);
  if (by == 0) return std::nullopt;
  return static_cast<Rank>(by - 1);
}

bool SegmentTransport::departed(Rank r) {
  return std::atomic_ref<uint64_t>(header(r).departed).load(std::memory_order_acquire) != 0;
}

void SegmentTransport::depart() {
  std::atomic_ref<uint64_t>(header(rank_).departed).store(1, std::memory_order_release);
}

}  // namespace rondo
