#include "protocol/spin.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace rondo {

uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

void ring_slow(Doorbell& bell) {
  std::atomic_ref<uint32_t>(bell.asleep).store(0, std::memory_order_release);
  syscall(SYS_futex, &bell.asleep, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

SpinSettings spin_settings(int local_ranks, int cpus) {
  SpinSettings s;
  s.oversubscribed = local_ranks > cpus;
  s.callers_compete = 2 * local_ranks > cpus;
  if (s.oversubscribed)
    s.pauses = 64;  // a peer on another core may post soon; for one on this core the thread yields at once
  return s;
}

namespace {

// The first version of sched_setattr's argument; glibc declares none before 2.41.
struct SchedulingAttributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime_ns, deadline_ns, period_ns;
};

void visit_cpu(int cpu, const cpu_set_t& mask) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  if (sched_setaffinity(0, sizeof one, &one) == 0) sched_setaffinity(0, sizeof mask, &mask);
}

}  // namespace

void take_short_turns() {
  SchedulingAttributes a{};
  if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) != 0 || (a.policy != SCHED_OTHER && a.policy != SCHED_BATCH))
    return;
  a.size = sizeof a;
  a.runtime_ns = 100000;
  syscall(SYS_sched_setattr, 0, &a, 0);
}

int nth_cpu(int index) {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return -1;
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mask) && seen++ == index % CPU_COUNT(&mask)) return cpu;
  return -1;
}

void go_to_cpu(int cpu) {
  cpu_set_t mask;
  if (cpu < 0 || sched_getcpu() == cpu || sched_getaffinity(0, sizeof mask, &mask) != 0) return;
  if (CPU_ISSET(cpu, &mask)) visit_cpu(cpu, mask);
}

void even_out(const std::vector<const Doorbell*>& bells, size_t own) {
  cpu_set_t mask;
  const uint32_t here = load_cpu(*bells[own]);
  if (here == 0 || sched_getaffinity(0, sizeof mask, &mask) != 0 || CPU_COUNT(&mask) < 2) return;
  auto owners_on = [&](uint32_t cpu) {
    return std::count_if(bells.begin(), bells.end(),
                         [&](const Doorbell* b) { return b != nullptr && load_cpu(*b) == cpu; });
  };
  for (size_t later = own + 1; later < bells.size(); ++later)
    if (bells[later] != nullptr && load_cpu(*bells[later]) == here) return;
  const auto mine = owners_on(here);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mask) && mine - owners_on(static_cast<uint32_t>(cpu) + 1) >= 2) return visit_cpu(cpu, mask);
}

void HostSpin::announce_sleep(bool asleep) {
  const auto order = asleep ? std::memory_order_seq_cst : std::memory_order_relaxed;
  std::atomic_ref<uint32_t>(bell_->asleep).store(asleep, order);
  for (Doorbell* b : more_bells_) std::atomic_ref<uint32_t>(b->asleep).store(asleep, order);
}

// Sleeps until one of the bells rings. Before Linux 5.16 only the first bell can wake the thread.
void HostSpin::sleep() {
  constexpr long kWaitForSeveral = 449;  // futex_waitv, on all architectures
  constexpr size_t kMostBells = 128;
  constexpr uint32_t kOf32Bits = 2;
  struct Bell {
    uint64_t value, address;
    uint32_t flags, reserved;
  };
  if (!more_bells_.empty()) {
    Bell bells[kMostBells];
    const auto num = static_cast<uint32_t>(std::min(1 + more_bells_.size(), kMostBells));
    for (uint32_t i = 0; i < num; ++i) {
      const Doorbell* b = i == 0 ? bell_ : more_bells_[i - 1];
      bells[i] = {1, reinterpret_cast<uintptr_t>(&b->asleep), kOf32Bits, 0};
    }
    const uint64_t end = monotonic_ns() + kMaxSleepUs * 1000;
    const timespec at{static_cast<time_t>(end / 1'000'000'000), static_cast<long>(end % 1'000'000'000)};
    if (syscall(kWaitForSeveral, bells, num, 0, &at, CLOCK_MONOTONIC) >= 0 || errno != ENOSYS) return;
  }
  const timespec limit{0, kMaxSleepUs * 1000};
  syscall(SYS_futex, &bell_->asleep, FUTEX_WAIT, 1, &limit, nullptr, 0);
}

bool HostSpin::idle_slow() {
  constexpr uint64_t kCheckNs = 1000000;
  constexpr uint32_t kYieldsPerClock = 16;
  if (!no_cancel_) no_cancel_.emplace();
  if (observer_.urgent()) return false;
  if (about_to_sleep_) {  // announced last time, and the check since then found nothing
    about_to_sleep_ = false;
    sleep();
    announce_sleep(false);
  } else {
    sched_yield();
    if ((settings_.oversubscribed || settings_.home_cpu >= 0) && bell_ != nullptr) {
      const uint32_t cpu = static_cast<uint32_t>(sched_getcpu()) + 1;
      const uint32_t yields_per_look = settings_.home_cpu >= 0 ? 32 : 512;  // at home a look costs nothing
      const uint32_t yields = std::atomic_ref<uint32_t>(bell_->yields).fetch_add(1, std::memory_order_relaxed);
      if (yields % yields_per_look == yields_per_look - 1) observer_.rebalance();
      if (cpu != load_cpu(*bell_)) std::atomic_ref<uint32_t>(bell_->cpu).store(cpu, std::memory_order_relaxed);
    }
    if (waiting_since_ns_ != 0 && ++yields_ % kYieldsPerClock != 0) return true;
  }
  const uint64_t now = monotonic_ns();
  if (waiting_since_ns_ == 0) {
    waiting_since_ns_ = last_check_ns_ = now;
    return true;
  }
  if (now - last_check_ns_ >= kCheckNs) {
    last_check_ns_ = now;
    if (observer_.check_wait(now - waiting_since_ns_)) return false;
  }
  if (bell_ != nullptr && now - waiting_since_ns_ >= uint64_t{settings_.yield_us} * 1000) {
    announce_sleep(true);
    about_to_sleep_ = true;  // the caller checks once more; if it finds nothing, the next idle() sleeps
  }
  return true;
}

}  // namespace rondo
