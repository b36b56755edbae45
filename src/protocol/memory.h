// HostMem: the memory-order policy of host threads and processes.
//
// A policy names the only ways in which protocol code touches words that another rank touches too. There are no
// stand-alone fences: order rides on the release store and the acquire load of a flag or counter, which is what
// ThreadSanitizer can see and what a device can do at system scope. The CUDA policy will offer the same four functions.
#pragma once

#include <atomic>
#include <cstdint>

namespace rondo {

struct HostMem {
  static uint64_t load_acquire(const uint64_t* p) {
    return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(p)).load(std::memory_order_acquire);
  }
  static uint64_t load_relaxed(const uint64_t* p) {
    return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(p)).load(std::memory_order_relaxed);
  }
  static void store_release(uint64_t* p, uint64_t v) {
#ifdef RONDO_MUTATE_RELEASE_STORE  // a build that the tests must fail: see scripts/ci_mutation.sh
    std::atomic_ref<uint64_t>(*p).store(v, std::memory_order_relaxed);
#else
    std::atomic_ref<uint64_t>(*p).store(v, std::memory_order_release);
#endif
  }
  /// Takes a line that will be written soon away from its last reader, off the path that somebody waits for.
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
};

/// A group of threads that work on one message together. On the host it is one thread.
struct HostGroup {
  static constexpr bool leader() { return true; }
  static void sync() {}
};

}  // namespace rondo
