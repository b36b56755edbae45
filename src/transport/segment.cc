#include "transport/segment.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/outcome.h"
#include "base/round_up.h"

#ifndef MADV_POPULATE_READ  // older headers
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace rondo {
namespace {

uint64_t pack(const ConnectionKey& k) {
  return uint64_t{1} << 63 | static_cast<uint64_t>(k.inline_only) << 62 | static_cast<uint64_t>(k.reader + 1) << 32 |
         static_cast<uint64_t>(k.group) << 16 | k.tag;
}

// Populates the pages at the beginning of a ring at once. Page faults at the first message in each page would cost the
// first calls several times as much as the messages. Without effect before Linux 5.14.
constexpr uint64_t kFirstLapBytes = kLapBytes;

// Strings in shared memory, word by word, because others may read meanwhile.
void store_text(std::string_view text, std::span<uint64_t> words) {
  for (size_t i = 0; i < words.size(); ++i) {
    uint64_t word = 0;  // the last one ends with a zero byte
    const std::string_view piece = text.substr(std::min(text.size(), 8 * i), i + 1 == words.size() ? 7 : 8);
    std::memcpy(&word, piece.data(), piece.size());
    std::atomic_ref<uint64_t>(words[i]).store(word, std::memory_order_relaxed);
  }
}

std::string load_text(std::span<uint64_t> words) {
  std::string text;
  for (uint64_t& w : words) {
    const uint64_t word = std::atomic_ref<uint64_t>(w).load(std::memory_order_relaxed);
    text.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  text.resize(strnlen(text.data(), text.size()));
  return text;
}

void populate(const FifoView& v, int advice) {
  if (v.data != nullptr) (void)::madvise(v.data, std::min<uint64_t>(v.data_bytes, kFirstLapBytes), advice);
}
}  // namespace

// A Simple connection's ring is 2 MiB, about the size of a core's second-level cache. Readers of a much smaller ring
// read from the writer's cache, which is slower (docs/architecture.md, "Staging"). With more than 16 ranks it is 1.1
// MiB. Long messages (set_longest_message) make it larger.
SegmentLayout::SegmentLayout(int n, uint32_t longest_bytes) : nranks(n), longest_message_bytes(longest_bytes) {
  constexpr uint32_t kMost = 32, kLeast = 16;
  static_assert(kMost <= kMaxDataLines && kLeast > kRingMessages);
  data_lines = n <= 16 ? kMost : kLeast;
  max_connections = static_cast<uint32_t>(10 * n + 64);
  marks_offset = round_up(sizeof(SegmentHeader), 64);
  directory_offset = round_up(marks_offset + static_cast<uint64_t>(n), 64);
  total_bytes = directory_offset + sizeof(DirectoryEntry) * max_connections;
}

FifoView SegmentTransport::view(Rank owner, const DirectoryEntry& e) const {
  std::byte* memory = places_[static_cast<size_t>(owner)].memory;
  FifoView v;
  v.counters = reinterpret_cast<ReadCounter*>(memory + e.counters_offset);
  v.lines = reinterpret_cast<HeaderLine*>(memory + e.lines_offset);
  v.data = e.data_offset != 0 ? memory + e.data_offset : nullptr;
  v.num_lines = e.data_offset != 0 ? layout_.data_lines : SegmentLayout::kLinesPerConnection;
  v.data_bytes = e.data_offset != 0 ? layout_.data_bytes() : 0;
  return v;
}

Expected<FifoView> SegmentTransport::open_writer(const ConnectionKey& key) {
  RONDO_CHECK(key.writer == rank_);
  const uint64_t counters = sizeof(ReadCounter) * static_cast<uint64_t>(key.group == 0 ? 1 : layout_.nranks);
  const uint64_t lines =
      sizeof(HeaderLine) * (key.inline_only ? SegmentLayout::kLinesPerConnection : layout_.data_lines);
  if (made_ == layout_.max_connections)
    return give_up(key, make_error(StatusCode::kInternal, "its directory is full: {} were created", made_));
  auto carve = [this](StagingPool::Use use, uint64_t bytes) {
    return cutter_.cut(use, bytes, [&](uint64_t range_bytes) { return take(range_bytes, use); });
  };
  const auto small = carve(StagingPool::Use::kSmall, counters + lines);
  if (!small.ok()) return give_up(key, small.status());
  uint64_t data_offset = 0;
  if (!key.inline_only) {
    const auto data = carve(StagingPool::Use::kData, layout_.data_bytes());
    if (!data.ok()) return give_up(key, data.status());
    data_offset = *data;
  }
  auto& entry = reinterpret_cast<DirectoryEntry*>(segment(rank_) + layout_.directory_offset)[made_++];
  entry.counters_offset = *small;
  entry.lines_offset = *small + counters;
  entry.data_offset = data_offset;
  const FifoView made = view(rank_, entry);
  populate(made, MADV_POPULATE_WRITE);
  std::atomic_ref<uint64_t>(entry.key).store(pack(key), std::memory_order_release);
  return made;
}

// Tells the other ranks the reason, because they would wait for messages that this rank cannot send.
Status SegmentTransport::give_up(const ConnectionKey& key, const Status& why) {
  Status s(why.code(),
           fmt::format("rank {} cannot make a connection to {}: {}", rank_,
                       key.group == 0 ? fmt::format("rank {}", key.reader) : "the other ranks", why.message()));
  SegmentHeader& own = header(rank_);
  // Stores the reason even if others have aborted meanwhile: ranks that this abort reaches first report this one.
  if (aborted_by() != rank_ && std::atomic_ref<uint64_t>(own.reason[0]).load(std::memory_order_relaxed) == 0)
    store_text(s.message(), own.reason);
  raise_abort(rank_);
  return s;
}

std::string SegmentTransport::abort_reason(Rank by) { return load_text(header(by).reason); }

void SegmentTransport::tell_failure(const Status& cause) {
  SegmentHeader& own = header(rank_);
  store_text(cause.message(), own.failure);
  std::atomic_ref<uint64_t>(own.failure_code).store(static_cast<uint64_t>(cause.code()), std::memory_order_release);
}

// A departed rank's segment is unchanged until this rank has departed too.
Status SegmentTransport::parting_failure(Rank r) {
  const uint64_t code = std::atomic_ref<uint64_t>(header(r).failure_code).load(std::memory_order_acquire);
  return code != 0 ? status_from_peer(static_cast<uint8_t>(code), load_text(header(r).failure)) : Status();
}

std::optional<FifoView> SegmentTransport::open_reader(const ConnectionKey& key) {
  auto* entries = reinterpret_cast<DirectoryEntry*>(segment(key.writer) + layout_.directory_offset);
  const uint64_t wanted = pack(key);
  for (uint32_t i = 0; i < layout_.max_connections; ++i) {
    const uint64_t found = std::atomic_ref<uint64_t>(entries[i].key).load(std::memory_order_acquire);
    if (found == wanted) {
      const FifoView v = view(key.writer, entries[i]);
      populate(v, MADV_POPULATE_READ);
      return v;
    }
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
  return std::atomic_ref<uint8_t>(marks()[r]).load(std::memory_order_acquire) != 0;
}

void SegmentTransport::depart() { std::atomic_ref<uint8_t>(marks()[rank_]).store(1, std::memory_order_release); }

Status SegmentTransport::copy_by_kernel(Rank peer, pid_t pid, uint64_t from, void* to, uint64_t bytes) const {
  auto* at = static_cast<std::byte*>(to);
  while (bytes != 0) {
    const iovec local{at, bytes}, remote{reinterpret_cast<void*>(from), bytes};
    const ssize_t n = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (n <= 0)
      return make_error(StatusCode::kSystem, "rank {}: reading {} B of rank {}'s memory failed: {}", rank_, bytes, peer,
                        n < 0 ? strerror(errno) : "nothing read");
    at += n;
    from += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
  return {};
}

}  // namespace rondo
