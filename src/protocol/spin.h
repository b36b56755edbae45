// HostSpin: waits for messages on a host thread.
//
// The thread calls idle() when nothing moved. idle() first pauses, because a cache line may be in transit. Then it
// yields the core, because ranks often outnumber cores and the peer may need it. After a long time it sleeps on a futex
// for a bounded time. Its WaitObserver checks for an abort at every yield, and for the deadline, lost peers and
// mismatches about once a millisecond. Therefore every such wait has a deadline, and the fast path reads no clock.
//
// Waking: a thread sets the `asleep` word of its Doorbell before it sleeps. A rank that posts a message, or has read
// one, checks the word of the rank at the other end and wakes that rank (ring). There is no fence between post and
// check. Therefore a wake-up can be missed. The sleep is bounded (kMaxSleepUs), so a missed wake-up only causes a
// delay.
//
// Measured: a yield gives a core to another thread in 0.6 to 1.4 us. A futex wake-up of an idle virtual core takes 22
// to 29 us, nanosleep 82 us. Therefore a thread pauses briefly, yields for long and sleeps last.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/no_cancel.h"

namespace rondo {

struct alignas(64) Doorbell {
  uint32_t asleep;  // the futex word: 1 while its owner sleeps
  uint32_t cpu;     // 1 + the processor of the owner's last yield; 0: unknown
  uint32_t yields;  // number of the owner's yields; counted only if ranks are oversubscribed or have a home_cpu
  uint32_t pad[13];
};

inline uint32_t load_cpu(const Doorbell& b) {
  return std::atomic_ref<uint32_t>(const_cast<uint32_t&>(b.cpu)).load(std::memory_order_relaxed);
}
/// Returns true if both owners are known to run on one processor.
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

/// Decides whether a wait continues. The waiting thread calls it.
class WaitObserver {
 public:
  virtual bool urgent() = 0;                     // at every yield, must be cheap: true ends the wait (an abort flag)
  virtual bool check_wait(uint64_t waited_ns) = 0;  // about every millisecond: checks the deadline, true ends the wait
  virtual void rebalance() {}                       // after some yields, if ranks are oversubscribed or have a home_cpu
 protected:
  ~WaitObserver() = default;
};

struct SpinSettings {
  uint32_t pauses = 1000;    // before the first yield
  uint32_t yield_us = 5000;  // before the first sleep
  bool oversubscribed = false;   // ranks outnumber cores
  bool callers_compete = false;  // ranks' callers and progress threads together outnumber cores
  int home_cpu = -1;  // a caller returns to it, if ranks of several hosts outnumber the cores that they share

  /// Returns the settings for a progress thread while its caller computes. A sleeping thread gets the core of the
  /// computing thread as soon as it is woken. A yielding thread waits for its time slice. A progress thread without a
  /// core of its own therefore sleeps early.
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
/// Returns the settings for `local_ranks` ranks on `cpus` processors.
SpinSettings spin_settings(int local_ranks, int cpus);

class HostSpin {
 public:
  static constexpr uint32_t kMaxSleepUs = 1000;
  /// `more_bells`: of the thread's other ranks and communicators. Each of them can wake it. They must outlive this.
  HostSpin(const SpinSettings& settings, WaitObserver& observer, Doorbell* own_bell,
           std::span<Doorbell* const> more_bells = {})
      : settings_(settings), observer_(observer), bell_(own_bell), more_bells_(more_bells) {}

  /// Waits a little, because nothing moved. `missing`: the doorbell of the rank that must send or read a message;
  /// nullptr: unknown. If that rank runs on this core, the thread yields at once. Returns false if the wait must
  /// end. The observer then has the reason.
  bool idle(const Doorbell* missing = nullptr) {
    if (++idles_ <= settings_.pauses && !(settings_.oversubscribed && shares_core(missing))) [[likely]] {
      cpu_pause();
      return true;
    }
    return idle_slow();
  }
  /// Begins a new wait, because something moved.
  void moved() {
    idles_ = 0;
    waiting_since_ns_ = 0;
  }

 private:
  bool idle_slow();
  void announce_sleep(bool asleep);
  void sleep();
  bool shares_core(const Doorbell* missing) const {
    return missing != nullptr && bell_ != nullptr && same_cpu(*missing, *bell_);
  }
  SpinSettings settings_;
  WaitObserver& observer_;
  Doorbell* bell_;
  std::span<Doorbell* const> more_bells_;
  uint32_t idles_ = 0;
  uint32_t yields_ = 0;
  bool about_to_sleep_ = false;  // announced in the doorbell; the caller checks once more before the sleep
  uint64_t waiting_since_ns_ = 0;
  uint64_t last_check_ns_ = 0;
  std::optional<NoCancel> no_cancel_;  // set when the wait does more than read memory
};

uint64_t monotonic_ns();

/// Requests time slices of 0.1 ms from the scheduler. The calling thread then runs soon after it is woken, even if
/// other threads compute on all cores. It has an effect on Linux 6.12 and later, for threads of the ordinary policies.
void take_short_turns();
/// Returns a processor that the calling thread may use: number `index` in their list, modulo its length. -1: unknown.
int nth_cpu(int index);
/// Moves the calling thread to this processor, if it may run there, and restores its affinity mask. The scheduler
/// itself does not move threads that yield all the time, so ranks could stay distributed unevenly.
void go_to_cpu(int cpu);
/// Moves the calling thread, the owner of `bells[own]`, to another processor if its own processor has at least two more
/// owners than the other one, and no owner on its own processor has a higher index. A nullptr in `bells` stands for an
/// owner on another host. A scheduler considers only runnable threads. It can leave 3 of them on one processor and 1 on
/// another for long.
void even_out(const std::vector<const Doorbell*>& bells, size_t own);

}  // namespace rondo
