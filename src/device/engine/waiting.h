// Waiting on a device. All waits of the interpreter are here. Every wait ends: when its condition is true, on the
// host's abort, when another block has failed, or at the call's deadline. The first failing thread stores its position
// and the missing peer in DeviceControl.
//
// The condition is polled at every try. Only every Env::kPollEvery-th try reads the clock and the control words in
// host memory. Of threads that wait together, one reads the words.
#pragma once

#include <cstdint>

#include "device/engine/device_program.h"
#include "protocol/fifo.h"

namespace rondo {

/// A block's position, for the report of a failure.
struct Standing {
  const DeviceCall* running;  // in shared memory, so that only failures take registers for its fields
  uint32_t call, lane, channel, pc;
  uint64_t loop;
};

/// Reports a failure, once for all blocks of the rank.
template <class Env>
RONDO_HOST_DEVICE void report_failure(Env& env, const Standing& at, DeviceFailure why, Rank peer, bool for_room,
                                      uint64_t waited_ns) {
  using Mem = typename Env::Mem;
  if (Mem::fetch_add(at.running->comm->meetings + 2, 1) != 0) return;
  DeviceControl& c = *at.running->control;
  c.call = at.call;
  c.lane = at.lane;
  c.channel = at.channel;
  c.pc = at.pc;
  c.loop = at.loop;
  c.peer = peer;
  c.for_room = for_room;
  c.waited_ns = waited_ns;
  Mem::store_release32(&c.failed, static_cast<uint32_t>(why));
}

/// Tries `arrived` until it is ready. Returns false if the block must leave. kLine: the threads of a line wait and
/// leave together. `arrived` returns an Arrival.
template <bool kLine, class Env, class Arrived>
RONDO_HOST_DEVICE_INLINE bool wait_until(Env& env, const Standing& at, Rank peer, bool for_room, Arrived arrived) {
  using Mem = typename Env::Mem;
  uint64_t since_ns = 0;
  // A lane that waits for another lane waits longer, so that the lane that waits for a peer reports the failure.
  const uint32_t deadlines = peer < 0 && !for_room ? 2 : 1;
  for (uint32_t tries = 1;; ++tries) {
    const Arrival a = arrived();
    if (a == Arrival::kReady) return true;
    bool leave = false;
    DeviceFailure why = DeviceFailure::kNone;
    if (a == Arrival::kMismatch) {
      leave = true;
      why = DeviceFailure::kMismatch;
    } else if (tries % Env::kPollEvery == 0) {
      const uint64_t now_ns = env.now_ns();
      if (since_ns == 0) since_ns = now_ns;
      const DeviceCall& running = *at.running;
      leave = env.one_finds([&] {
        if (Mem::load_acquire32(&running.control->failed) != 0) return true;
        if (Mem::load_acquire32(&running.control->abort) == 0) return false;
        why = DeviceFailure::kAborted;
        return true;
      });
      if (!leave && running.deadline_ns != 0 && now_ns - since_ns > deadlines * running.deadline_ns) {
        leave = true;
        why = DeviceFailure::kDeadline;
      }
    }
    if (leave && why != DeviceFailure::kNone)
      report_failure(env, at, why, peer, for_room, since_ns != 0 ? env.now_ns() - since_ns : 0);
    if constexpr (kLine) leave = env.line_any(leave);
    if (leave) return false;
    env.relax(tries);
  }
}

}  // namespace rondo
