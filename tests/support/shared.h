// Memory and counters shared by ranks as threads or processes, and deadlines.
// Make a Shared<T> before spawning; processes inherit the mapping. Tests wait with SharedCounter: for a condition with
// a deadline, never by sleeping.
// Thread safety: SharedCounter is safe from any thread and process. T must keep to atomics or be ordered by a counter.
#pragma once

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <new>

namespace rondo::testing {

/// Seconds of a clock that all processes of this machine share.
inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Runs from its construction.
class Stopwatch {
 public:
  double seconds() const { return now_s() - start_s_; }

 private:
  double start_s_ = now_s();
};

/// A counter that others wait for. add() releases, wait_at_least() acquires.
class SharedCounter {
 public:
  void add(uint32_t n = 1) {
    value_.fetch_add(n, std::memory_order_acq_rel);
    syscall(SYS_futex, address(), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  /// Returns false if the deadline passed first.
  [[nodiscard]] bool wait_at_least(uint32_t target, double deadline_s) {
    const double end_s = now_s() + deadline_s;
    for (uint32_t seen = value(); seen < target; seen = value()) {
      const double left_s = end_s - now_s();
      if (left_s <= 0) return false;
      const auto whole_s = static_cast<time_t>(left_s);
      const timespec timeout{whole_s, static_cast<long>((left_s - static_cast<double>(whole_s)) * 1e9)};
      syscall(SYS_futex, address(), FUTEX_WAIT, seen, &timeout, nullptr, 0);
    }
    return true;
  }

 private:
  uint32_t* address() { return reinterpret_cast<uint32_t*>(&value_); }
  std::atomic<uint32_t> value_{0};
};

/// A T in anonymous shared memory.
template <class T>
class Shared {
 public:
  Shared() {
    void* p = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) std::abort();
    value_ = new (p) T();
  }
  ~Shared() {
    value_->~T();
    munmap(static_cast<void*>(value_), sizeof(T));
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

/// A barrier of `parties` ranks, usable once.
struct Barrier {
  SharedCounter arrived;
  [[nodiscard]] bool arrive_and_wait(int parties, double deadline_s) {
    arrived.add();
    return arrived.wait_at_least(static_cast<uint32_t>(parties), deadline_s);
  }
};

/// True in a build with ThreadSanitizer or AddressSanitizer: tests run a reduced set with more time.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace rondo::testing
