// HostSpin: every wait of a host thread.
//
// idle() is called when nothing moved. It pauses a few times (a cache line may be in transit), then yields the core
// (the peer may need it: ranks often outnumber cores), and after a long time sleeps on a futex for a bounded time.
// About once a millisecond it asks its Observer whether to go on: abort flags, the deadline, lost peers, mismatches.
// Therefore every wait of rondo has a deadline, and the fast path reads no clock.
//
// Waking: a sleeper sets its Doorbell's `asleep` word. A rank that posts a message or returns room checks the word of
// the affected rank and wakes it (ring). There is no fence between post and check, and a wake-up can be missed; the
// bounded sleep (kMaxSleepUs) makes that a delay, never a hang, and keeps fences out of the fast path.
//
// Measured: a yield hands a core over in 0.6 to 1.4 us, a futex wake-up of an idle virtual core takes 22 to 29 us,
// nanosleep 82 us. Therefore: pause briefly, yield for long, sleep last.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/no_cancel.h"

namespace rondo {

struct alignas(64) Doorbell {
  uint32_t asleep;  // the futex word: 1 while its owner sleeps
  uint32_t cpu;     // 1 + the processor of the owner's last yield; 0: unknown
  uint32_t yields;  // the owner's own count, while ranks are oversubscribed
  uint32_t pad[13];
};

inline uint32_t load_cpu(const Doorbell& b) {
  return std::atomic_ref<uint32_t>(const_cast<uint32_t&>(b.cpu)).load(std::memory_order_relaxed);
}
/// True if both owners are known to run on one processor.
inline bool same_cpu(const Doorbell& a, const Doorbell& b) { return load_cpu(a) != 0 && load_cpu(a) == load_cpu(b); }

/// Wakes the owner of the bell if it sleeps.
void ring_slow(Doorbell& bell);
inline void ring(Doorbell& bell) {
  if (std::atomic_ref<uint32_t>(bell.asleep).load(std::memory_order_relaxed) != 0) [[unlikely]] ring_slow(bell);
}

inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

/// Decides whether a wait goes on. Called from the waiting thread.
class WaitObserver {
 public:
  virtual bool urgent() = 0;                   // cheap, at every yield: true ends the wait (an abort flag is up)
  virtual bool give_up(uint64_t waited_ns) = 0;  // about every millisecond: true ends the wait
  virtual void crowded() {}                      // every so many yields while ranks are oversubscribed
 protected:
  ~WaitObserver() = default;
};

struct SpinSettings {
  uint32_t pauses = 1000;    // before the first yield
  uint32_t yield_us = 5000;  // before the first sleep
  bool crowded = false;      // oversubscribed: ranks outnumber cores
  bool callers_compete = false;  // ranks' callers and progress threads together outnumber cores
  int home_cpu = -1;  // a caller returns to it, if ranks of several hosts outnumber the cores that they share

  /// For a progress thread while its caller computes. A sleeping thread takes the core from the computing thread as
  /// soon as it is woken; a yielding one waits for its turn. It therefore sleeps soon if it has no core of its own.
  SpinSettings in_background() const {
    constexpr uint32_t kPauses = 64, kYieldUs = 100;
    SpinSettings s = *this;
    s.home_cpu = -1;
    if (callers_compete) {
      s.pauses = std::min(pauses, kPauses);
      s.yield_us = std::min(yield_us, kYieldUs);
    }
    return s;
  }
};
/// Settings for `local_ranks` ranks on `cpus` processors.
SpinSettings spin_settings(int local_ranks, int cpus);

class HostSpin {
 public:
  static constexpr uint32_t kMaxSleepUs = 1000;
  HostSpin(const SpinSettings& settings, WaitObserver& observer, Doorbell* own_bell)
      : settings_(settings), observer_(observer), bell_(own_bell) {}

  /// Nothing moved. `missing`: the rank whose message or room is missing, nullptr if unknown. If it runs on this core,
  /// it needs the core, and the thread yields at once. False: stop waiting; the observer has the reason.
  bool idle(const Doorbell* missing = nullptr) {
    if (++idles_ <= settings_.pauses && !(settings_.crowded && shares_core(missing))) [[likely]] {
      cpu_pause();
      return true;
    }
    return idle_slow();
  }
  /// Something moved: start over.
  void moved() {
    idles_ = 0;
    waiting_since_ns_ = 0;
  }

 private:
  bool idle_slow();
  bool shares_core(const Doorbell* missing) const {
    return missing != nullptr && bell_ != nullptr && same_cpu(*missing, *bell_);
  }
  SpinSettings settings_;
  WaitObserver& observer_;
  Doorbell* bell_;
  uint32_t idles_ = 0;
  uint32_t yields_ = 0;
  bool about_to_sleep_ = false;  // announced in the doorbell; the caller checks once more before the sleep
  uint64_t waiting_since_ns_ = 0;
  uint64_t last_check_ns_ = 0;
  std::optional<NoCancel> no_cancel_;  // set once it does more than read memory
};

uint64_t monotonic_ns();

/// Requests turns of 0.1 ms from the scheduler: the calling thread then runs soon after waking, even if others compute
/// on all cores. Linux 6.12 and later, threads of the ordinary policies; elsewhere no effect.
void take_short_turns();
/// The `index`-th processor of those that the calling thread may use, cyclic. -1: unknown.
int nth_cpu(int index);
/// Moves the calling thread to this processor, if it may run there, and restores its affinity mask. Without it, an
/// uneven start would last, because the scheduler does not move threads that yield all the time.
void go_to_cpu(int cpu);
/// Moves the owner of `bells[own]` to another processor if its own has at least two more owners than the other and it
/// is the last of them. nullptr: an owner on another host. A scheduler that only sees runnable threads can leave 3 and
/// 1 on two processors for long.
void even_out(const std::vector<const Doorbell*>& bells, size_t own);

}  // namespace rondo
