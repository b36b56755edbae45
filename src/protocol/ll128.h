// LL128: messages on a device in lines of 128 bytes, 120 of data and 8 of flag.
//
//     line     | piece 0 | piece 1 | ... | piece 6 | data, flag |      eight pieces of 16 bytes
//              thread 0   thread 1         thread 6   thread 7         of eight neighbours in a warp
//
// One instruction of a warp stores all pieces of a line, and a line arrives as a whole. Therefore a reader that finds
// the flag has the data. 15/16 of the bytes are data. Only NVLink and accesses within a device guarantee that lines
// arrive as a whole. The code that makes the connection must check this. flag(s) and the free space are as in fifo.h,
// slots as in ll.h. The step has 40 bits in a flag. Therefore the writer never has to fill whole slots as in ll.h.
//
// On the host, one thread stores the pieces in order. It stores the piece with the flag last and with release. Thread
// safety: one group of threads at a time writes a line, each thread its own piece. Learned from: NCCL's LL128 protocol.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/fifo.h"
#include "protocol/memory.h"

namespace rondo {

inline constexpr uint32_t kLl128LineBytes = 128, kLl128DataBytes = 120, kLl128Pieces = 8;

constexpr uint64_t ll128_lines(uint64_t bytes) { return (bytes + kLl128DataBytes - 1) / kLl128DataBytes; }

template <class Mem>
struct Ll128 {
  /// Stores one piece of a line. The flag replaces data.hi of the last piece.
  RONDO_HOST_DEVICE static void store(std::byte* line, uint32_t piece, WordPair data, uint64_t flag) {
    if (piece == kLl128Pieces - 1) data.hi = flag;
    Mem::store_piece(line, piece, data);
  }
  /// One piece of each of kN lines.
  template <uint32_t kN>
  struct Pieces {
    WordPair data[kN];
    uint32_t missing;  // bits: lines that are not of this message
    bool other;        // one of them has another fingerprint
  };
  /// Loads one piece of kN lines, `stride` bytes apart, all in flight together. Then call arrived().
  template <uint32_t kN>
  RONDO_HOST_DEVICE static void load(const std::byte* line, uint32_t stride, uint32_t piece, uint64_t flag,
                                     Pieces<kN>& v) {
    uint64_t found[kN];
    Mem::load_pieces(line, stride, piece, v.data, found);
    v.missing = 0;
    v.other = false;
    RONDO_UNROLL
    for (uint32_t u = 0; u < kN; ++u) check(u, found[u], flag, v);
  }
  /// Returns kReady if all loaded lines are of this message. Loads those again that are not. All threads of a line get
  /// the same result.
  template <uint32_t kN>
  RONDO_HOST_DEVICE static Arrival arrived(const std::byte* line, uint32_t stride, uint32_t piece, uint64_t flag,
                                           Pieces<kN>& v) {
    if (v.missing == 0) return Arrival::kReady;
    if (v.other) return Arrival::kMismatch;
    const uint32_t missing = v.missing;
    v.missing = 0;
    RONDO_UNROLL
    for (uint32_t u = 0; u < kN; ++u) {
      if ((missing >> u & 1) == 0) continue;
      uint64_t found;
      v.data[u] = Mem::load_piece(line + u * stride, piece, found);
      check(u, found, flag, v);
    }
    return Arrival::kNotYet;
  }

 private:
  template <uint32_t kN>
  RONDO_HOST_DEVICE_INLINE static void check(uint32_t u, uint64_t found, uint64_t flag, Pieces<kN>& v) {
    if (found == flag) return;
    v.missing |= 1u << u;
    v.other = v.other || ((found ^ flag) & kStepMask) == 0;
  }
};

}  // namespace rondo
