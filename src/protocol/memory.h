// HostMem: the memory-order policy of host threads and processes.
//
// The protocol code accesses words that it shares with another rank only through a policy. The release store and the
// acquire load of a flag or counter give the order. ThreadSanitizer understands them, and devices have them at system
// scope. On a device one fence may serve several stores (fence, store_fenced). ThreadSanitizer does not understand
// fences. Therefore each of these stores is a release store here. DeviceMem (device_memory.cuh) has the same interface.
//
// A pair is two adjacent 64-bit words, 16-byte aligned. Each word is atomic. A line of 128 bytes ends with a flag. A
// reader that finds the flag has the whole line (ll128.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rondo {

struct WordPair {
  uint64_t lo, hi;
};

struct HostMem {
  static uint64_t load_acquire(const uint64_t* p) {
    return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(p)).load(std::memory_order_acquire);
  }
  static uint64_t load_relaxed(const uint64_t* p) {
    return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(p)).load(std::memory_order_relaxed);
  }
  static void store_release(uint64_t* p, uint64_t v) {
#ifdef RONDO_MUTATE_RELEASE_STORE  // the tests must fail in this build: see scripts/ci_mutation.sh
    std::atomic_ref<uint64_t>(*p).store(v, std::memory_order_relaxed);
#else
    std::atomic_ref<uint64_t>(*p).store(v, std::memory_order_release);
#endif
  }
  /// A store_fenced() after fence() is ordered after all that this thread did before the fence, and after all that
  /// other threads did before the last barrier that this thread passed.
  static void fence() {}
  static void store_fenced(uint64_t* p, uint64_t v) { store_release(p, v); }
  /// Fetches a line from the reader's cache, because it will be written soon. This hides the latency of the fetch.
  static void prefetch_for_write(const void* p) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(p)));
#else
    __builtin_prefetch(p, 1, 3);
#endif
  }
  /// Fetches a line that will be read soon.
  static void prefetch_for_read(const void* p) { __builtin_prefetch(p, 0, 3); }
  static void store_relaxed(uint64_t* p, uint64_t v) {
    std::atomic_ref<uint64_t>(*p).store(v, std::memory_order_relaxed);
  }
  static uint32_t load_acquire32(const uint32_t* p) {
    return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(p)).load(std::memory_order_acquire);
  }
  static void store_release32(uint32_t* p, uint32_t v) {
    std::atomic_ref<uint32_t>(*p).store(v, std::memory_order_release);
  }
  /// Adds v. Returns the previous value. Acquires and releases.
  static uint64_t fetch_add(uint64_t* p, uint64_t v) {
    return std::atomic_ref<uint64_t>(*p).fetch_add(v, std::memory_order_acq_rel);
  }
  static uint64_t fetch_or(uint64_t* p, uint64_t v) {
    return std::atomic_ref<uint64_t>(*p).fetch_or(v, std::memory_order_acq_rel);
  }
  // On a device both words are relaxed: a store follows the reads whose data it stores, because it depends on them. C++
  // gives no such order. Therefore the host stores the second word with release and loads it with acquire.
  static WordPair load_pair(const std::byte* p) {
    const auto* words = reinterpret_cast<const uint64_t*>(p);
    const uint64_t hi = load_acquire(words + 1);
    return {load_relaxed(words), hi};
  }
  static void store_pair(std::byte* p, WordPair v) {
    auto* words = reinterpret_cast<uint64_t*>(p);
    store_relaxed(words, v.lo);
    store_release(words + 1, v.hi);
  }
  /// Stores piece `piece` of a line, 16 bytes. Store the pieces 0 to 7 in this order. The second word of piece 7 is the
  /// flag.
  static void store_piece(std::byte* line, uint32_t piece, WordPair v) {
    auto* words = reinterpret_cast<uint64_t*>(line + 16 * piece);
    store_relaxed(words, v.lo);
    if (piece == 7) store_release(words + 1, v.hi);
    else store_relaxed(words + 1, v.hi);
  }
  /// Returns a piece, and the flag of its line.
  static WordPair load_piece(const std::byte* line, uint32_t piece, uint64_t& flag) {
    flag = load_acquire(reinterpret_cast<const uint64_t*>(line) + 15);
    const auto* words = reinterpret_cast<const uint64_t*>(line + 16 * piece);
    return {load_relaxed(words), load_relaxed(words + 1)};
  }
  /// The same for kN lines, `stride` bytes apart.
  template <uint32_t kN>
  static void load_pieces(const std::byte* line, uint32_t stride, uint32_t piece, WordPair (&v)[kN],
                          uint64_t (&flags)[kN]) {
    for (uint32_t u = 0; u < kN; ++u) v[u] = load_piece(line + u * stride, piece, flags[u]);
  }
};

}  // namespace rondo
