#include "device/engine/device_clock.h"

#include <atomic>
#include <cstring>

#include "device/engine/clock_exchange.h"
#include "device/engine/images.h"
#include "device/engine/lower.h"
#include "protocol/spin.h"

namespace rondo {

DeviceClock::~DeviceClock() {
  // A kernel that has not started yet would read freed memory. It already has the signal to end.
  if (launched_) (void)cuda::driver()->stream_synchronize(stream_.get());
}

Status DeviceClock::make() {
  if (exchange_.size_bytes() != 0) return {};
  RONDO_TRY_ASSIGN(stream_, cuda::OwnedStream::make());
  RONDO_TRY_ASSIGN(exchange_, cuda::PinnedMemory::make(sizeof(ClockExchange)));
  first_ = read_clock_pair();
  return {};
}

Status DeviceClock::refresh(KernelLoader& kernels) {
  if (known_ && monotonic_ns() - read_at_ns_ < kYoungNs) return {};
  return read(kernels, known_ ? kDeadlineNs : kFirstDeadlineNs);
}

Status DeviceClock::read(KernelLoader& kernels, uint64_t deadline_ns) {
  constexpr uint64_t kQuestions = 32;
  RONDO_TRY(make());
  const cuda::Driver* d = cuda::driver();
  read_at_ns_ = monotonic_ns();
  const Status no_answer(StatusCode::kTimeout,
                         "cannot read the device's clock: a kernel of one thread could not start");
  if (launched_ && d->stream_query(stream_.get()) != cuda::kSuccess)  // the last kernel has not started yet
    return known_ ? Status() : no_answer;
  RONDO_TRY_ASSIGN(const cuda::Function kernel, kernels.find(collective_images(), kClockName));
  ClockExchange& x = *exchange_.as<ClockExchange>();
  std::memset(static_cast<void*>(&x), 0, sizeof x);
  ClockArgs args{reinterpret_cast<ClockExchange*>(exchange_.on_device())};
  void* params[] = {&args};
  cuda::LaunchConfig config{1, 1, 1, 1, 1, 1, 0, stream_.get(), nullptr, 0};
  RONDO_TRY(cuda::check(d->launch_kernel(&config, kernel, params, nullptr), "cuLaunchKernelEx"));
  launched_ = true;
  uint64_t tightest = UINT64_MAX;
  const uint64_t give_up_ns = read_at_ns_ + deadline_ns;
  bool answers = true;
  for (uint64_t q = 1; q <= kQuestions && answers; ++q) {
    const uint64_t before = ::rondo::ticks();
    std::atomic_ref(x.asked).store(q, std::memory_order_release);
    for (uint32_t tries = 1; std::atomic_ref(x.answered).load(std::memory_order_acquire) != q; ++tries) {
      cpu_pause();
      if (tries % 64 != 0) continue;
      if (monotonic_ns() > give_up_ns) answers = false;
      if (!answers) break;
      sched_yield();
    }
    const uint64_t after = ::rondo::ticks();
    if (!answers || after - before >= tightest) continue;
    tightest = after - before;
    at_ticks_ = before + (after - before) / 2;
    at_ns_ = std::atomic_ref(x.now_ns).load(std::memory_order_relaxed);
    known_ = true;
  }
  std::atomic_ref(x.asked).store(ClockExchange::kEnough, std::memory_order_release);
  if (!known_) return no_answer;
  // A longer distance between the two readings gives a better slope: an error of 20 ns in 20 ms is 1 us per second.
  while (clock_ns(CLOCK_MONOTONIC) - first_.monotonic_ns < 20'000'000) {
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
  ns_per_tick_ = ns_per_tick(first_, read_clock_pair());
  return {};
}

}  // namespace rondo
