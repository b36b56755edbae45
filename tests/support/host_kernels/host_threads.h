// Kernels on host threads: an Env whose block is a few threads with a barrier, and launches of a grid of such blocks.
// nvcc compiles the same templates; only Env differs.
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "device/engine/clock_exchange.h"
#include "device/engine/grid_reduce.h"
#include "device/engine/interpreter.h"
#include "protocol/memory.h"
#include "support/host_kernels/host_kernels.h"

namespace rondo::testing {

/// The barrier of a block. It also returns to all threads if a condition is true in any.
class HostBlock {
 public:
  explicit HostBlock(uint32_t threads) : threads_(threads) {}
  uint32_t threads() const { return threads_; }
  bool any(bool value) {
    if (threads_ == 1) return value;
    const uint32_t turn = turn_.load(std::memory_order_relaxed);
    if (value) any_[turn & 1].store(true, std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      any_[(turn + 1) & 1].store(false, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
    } else {
      while (turn_.load(std::memory_order_acquire) == turn) sched_yield();
    }
    return any_[turn & 1].load(std::memory_order_relaxed);
  }

 private:
  const uint32_t threads_;
  std::atomic<uint32_t> arrived_{0}, turn_{0};
  std::atomic<bool> any_[2]{false, false};
};

class HostEnv {
 public:
  using Mem = HostMem;
  static constexpr uint32_t kPollEvery = 16, kLineThreads = 1;

  HostEnv(HostBlock& shared, uint32_t block, uint32_t thread) : shared_(shared), block_(block), thread_(thread) {}
  uint32_t thread() const { return thread_; }
  uint32_t threads() const { return shared_.threads(); }
  uint32_t block() const { return block_; }
  void sync() { shared_.any(false); }
  bool any(bool value) { return shared_.any(value); }
  static bool line_any(bool value) { return value; }
  template <class Test>
  static bool one_finds(Test test) {
    return test();
  }
  static uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
  }
  static void relax(uint32_t) { sched_yield(); }

 private:
  HostBlock& shared_;
  uint32_t block_, thread_;
};

/// Runs body(block, thread) on grid x block_threads threads and waits for all of them.
template <class Body>
void run_grid(uint32_t grid, uint32_t block_threads, const Body& body) {
  std::vector<std::thread> threads;
  for (uint32_t k = 1; k < grid * block_threads; ++k)
    threads.emplace_back([&body, k, block_threads] { body(k / block_threads, k % block_threads); });
  body(0, 0);
  for (std::thread& t : threads) t.join();
}

template <class Ops>
void interpret_on_host(const void* args, uint32_t grid, uint32_t block_threads) {
  std::vector<std::unique_ptr<HostBlock>> blocks;
  std::vector<std::unique_ptr<BlockState<HostMem>>> states;
  for (uint32_t b = 0; b < grid; ++b) {
    blocks.push_back(std::make_unique<HostBlock>(block_threads));
    states.push_back(std::make_unique<BlockState<HostMem>>());
  }
  run_grid(grid, block_threads, [&](uint32_t block, uint32_t thread) {
    HostEnv env(*blocks[block], block, thread);
    Interpreter<HostEnv, Ops>(env, *states[block], *static_cast<const LaunchArgs*>(args)).run();
  });
}

template <class Ops>
void reduce_on_host(const void* args, uint32_t grid, uint32_t block_threads) {
  run_grid(grid, block_threads, [&](uint32_t block, uint32_t thread) {
    grid_reduce<Ops>(*static_cast<const ReduceArgs*>(args), {block * block_threads + thread, grid * block_threads});
  });
}

inline void tell_clock_on_host(const void* args, uint32_t, uint32_t) {
  tell_clock<HostEnv>(*static_cast<const ClockArgs*>(args));
}

}  // namespace rondo::testing
