// extent(): the only function that maps a chunk to elements.
//
// A buffer of `total_elems` is cut into `num_chunks` chunks that differ by at most one element, the longer ones first.
// A loop is a window of `loop_elems` elements into every chunk of every buffer at once. The engine repeats the schedule
// over loops 0 .. num_loops() - 1, and in each loop a chunk is one message. A shorter chunk may have an empty window:
// then neither end has a message. Any count, any number of chunks; 64-bit throughout; no divisibility rules. Variable
// counts enter only here: a chunk is then one part with its own extent (PartExtents). Kernels get EqualChunks or the
// parts with each call and evaluate the same functions.
//
// Host and device, except PartExtents.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace rondo {

struct Extent {
  uint64_t first_elem = 0;
  uint64_t num_elems = 0;
  friend constexpr bool operator==(const Extent&, const Extent&) = default;
};

/// A buffer that is cut into chunks of `base_elems`. The first `longer` of them have one element more.
struct EqualChunks {
  uint64_t base_elems = 0, longer = 0;
  constexpr Extent chunk(uint64_t c) const {
    return {c * base_elems + (c < longer ? c : longer), base_elems + (c < longer ? 1 : 0)};
  }
};
constexpr EqualChunks equal_chunks(uint64_t total_elems, uint64_t num_chunks) {
  return {total_elems / num_chunks, total_elems % num_chunks};
}

/// Chunk `chunk` of `num_chunks` of `total_elems` elements.
constexpr Extent extent(uint64_t total_elems, uint64_t num_chunks, uint64_t chunk) {
  return equal_chunks(total_elems, num_chunks).chunk(chunk);
}

/// The window of loop `loop` in that chunk; empty beyond the chunk's end.
constexpr Extent extent(uint64_t total_elems, uint64_t num_chunks, uint64_t chunk, uint64_t loop,
                        uint64_t loop_elems) {
  const Extent whole = extent(total_elems, num_chunks, chunk);
  if (loop != 0 && whole.num_elems / loop < loop_elems) {  // loop * loop_elems > num_elems, without overflow
    if (loop > whole.num_elems / loop_elems) return {whole.first_elem + whole.num_elems, 0};
  }
  const uint64_t skip = std::min(whole.num_elems, loop * loop_elems);
  return {whole.first_elem + skip, std::min(loop_elems, whole.num_elems - skip)};
}

/// Individual counts of the parts of a buffer, in elements: part c is chunk c. Packed if there are no offsets.
struct PartExtents {
  std::vector<uint64_t> counts, offsets;
  bool empty() const { return counts.empty(); }
  Extent part(uint64_t c) const { return {offsets[c], counts[c]}; }
  uint64_t longest() const { return counts.empty() ? 0 : *std::ranges::max_element(counts); }
  /// The end of the buffer.
  uint64_t end() const {
    uint64_t end = 0;
    for (size_t c = 0; c < counts.size(); ++c)
      if (counts[c] != 0) end = std::max(end, offsets[c] + counts[c]);
    return end;
  }
  friend bool operator==(const PartExtents&, const PartExtents&) = default;
};

/// Number of loops that cover the longest chunk; 0 if there is no data.
constexpr uint64_t num_loops(uint64_t total_elems, uint64_t num_chunks, uint64_t loop_elems) {
  const uint64_t longest = extent(total_elems, num_chunks, 0).num_elems;
  return longest / loop_elems + (longest % loop_elems != 0 ? 1 : 0);
}

}  // namespace rondo
