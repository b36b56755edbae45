// BlockCalls: a block's work around the program of a call (device_program.h). It loads the call's header and the
// lane's ends, stores the ends, meets the channel's other lanes, and records instructions. The interpreter
// (interpreter.h) runs the program in between.
//
// The code compiles for host and device. Env provides threads, barriers, clock and memory orders; Ops the reduction.
//   Env::Mem, kPollEvery, kLineThreads      memory policy; tries between polls of the control words; threads of a line
//   env.thread(), threads(), block()        this thread and block; the number of threads is a power of two
//   env.sync(), env.any(bool)               barriers of the block; any: true if true in any thread
//   env.line_any(bool)                      the same among the threads of a line
//   env.one_finds(test)                     test(), called by one of the threads that are here together
//   env.now_ns(), env.relax(tries)
//
// Invariants: all threads take the same branches. After a failure the block leaves at once, because the communicator's
// ends cannot be used any more.
#pragma once

#include "device/engine/block_state.h"
#include "device/engine/waiting.h"
#include "kernels/cuda/units.h"

namespace rondo {

template <class Env, class Ops>
class BlockCalls {
 protected:
  using Mem = typename Env::Mem;

  RONDO_HOST_DEVICE_INLINE BlockCalls(Env& env, BlockState<Mem>& state, const LaunchArgs& args)
      : env_(env), b_(state), args_(args) {}

  /// Fingerprint of a step's messages.
  RONDO_HOST_DEVICE_INLINE uint32_t fingerprint(uint32_t shape) const { return fingerprint_at(shape, b_.call.index); }

  /// Thread 0 keeps the data of the current instruction's record in shared memory, to save registers.
  RONDO_HOST_DEVICE_INLINE bool traced() const { return args_.trace.records != nullptr; }
  RONDO_HOST_DEVICE_INLINE void begin_record() {
    if (!traced() || env_.thread() != 0) return;
    b_.begin_ns = env_.now_ns();
    b_.waited_ns = 0;
    b_.num_ports = 0;
    b_.moved = true;
  }
  RONDO_HOST_DEVICE_INLINE void end_record() {
    if (!traced() || env_.thread() != 0 || !b_.moved) return;
    const DeviceTrace& t = args_.trace;
    DeviceRecord r{};
    r.begin_ns = b_.begin_ns;
    r.end_ns = env_.now_ns();
    r.wait_ns = b_.waited_ns < UINT32_MAX ? static_cast<uint32_t>(b_.waited_ns) : UINT32_MAX;
    r.call = static_cast<uint16_t>(call_);
    r.pc = static_cast<uint16_t>(standing_.pc);
    r.lane = static_cast<uint8_t>(lane_);
    r.channel = static_cast<uint8_t>(channel_);
    r.loop = static_cast<uint32_t>(standing_.loop);
    r.fallback = b_.falls_back ? 1 : 0;
    r.num_steps = b_.num_ports <= DeviceRecord::kSteps ? static_cast<uint8_t>(b_.num_ports) : DeviceRecord::kFirstPorts;
    for (uint32_t i = 0; i < DeviceRecord::kSteps; ++i)
      if (i < b_.num_ports) r.steps[i] = b_.numbers[turn_][i];
    t.records[Mem::fetch_add(t.next, 1) & (t.capacity - 1)] = r;
  }

  RONDO_HOST_DEVICE_INLINE void end_wait(uint32_t num_ports) {
    if (env_.thread() != 0) return;
    b_.num_ports = num_ports;
    b_.waited_ns = env_.now_ns() - b_.begin_ns;
  }
  /// Stores the number of a port's message. The port's thread does it before the barrier that follows its wait.
  RONDO_HOST_DEVICE_INLINE void note_number(uint32_t port, uint32_t num_recv, uint32_t num_ports, uint64_t step) {
    if (num_ports > DeviceRecord::kSteps) {
      if (port != 0 && port != num_recv) return;
      if (port != 0) port = 1;
      else if (num_recv == 0) port = 1;
    }
    b_.numbers[turn_][port] = static_cast<uint32_t>(step);
  }

  RONDO_HOST_DEVICE_INLINE void load_call(uint32_t number) {
    env_.sync();  // no thread uses the previous call any more
    const DeviceCall& call = b_.calls[number];
    copy_words(&b_.call, &call, sizeof call);
    copy_words(&b_.program, call.program, sizeof(DeviceProgram));
    if (env_.thread() == 0) {
      const Dtype type = static_cast<Dtype>(call.program->own_type);
      b_.first_step = 0;
      b_.nowhere = 0;
      b_.falls_back = false;
      b_.scale = 0;
      if (call.program->premul)
        b_.scale = call.premul_at != nullptr
                       ? Ops::scale_from_element(static_cast<const std::byte*>(call.premul_at), type)
                       : device_kernels::load_aligned<uint64_t>(call.premul);
    }
    env_.sync();
    standing_ = {&b_.call, call_, lane_, channel_, 0, 0};
  }

  // Lane 0 has read the credits of all ranks. All ranks and channels have read the same.
  RONDO_HOST_DEVICE_INLINE bool choose() {
    uint64_t* falls_back = b_.call.comm->meetings + channel_ * 8 + 3;
    if (lane_ == 0 && env_.thread() == 0) Mem::store_relaxed(falls_back, b_.nowhere);
    env_.sync();
    if (b_.unit.num_lanes > 1 && !meet(b_.unit.num_lanes)) return false;
    const bool falls = Mem::load_acquire(falls_back) != 0;
    const DeviceFallback& other = *args_.template at<DeviceFallback>(b_.call.fallback);
    if (falls) copy_words(&b_.program, other.program, sizeof(DeviceProgram));
    env_.sync();
    if (env_.thread() == 0) {
      b_.falls_back = falls;
      if (falls) b_.call.program = other.program, b_.call.counts = other.counts;
      else b_.first_step = b_.program.entry_steps;
      b_.call.fallback = 0;
    }
    env_.sync();
    return true;
  }

  // Copies ends from the channel's tables and back.
  RONDO_HOST_DEVICE_INLINE void load_ends() {
    const uint16_t* list = b_.call.program->index() + b_.program.lane_ends[lane_];
    const DeviceComm& comm = *b_.call.comm;
    const uint32_t num_reads = list[0], num_writes = list[1];
    if (env_.thread() == 0) {
      b_.num_reads = num_reads;
      b_.num_writes = num_writes;
    }
    for (uint32_t i = env_.thread(); i < num_reads; i += env_.threads()) {
      const DeviceReadEnd& end = comm.reads[channel_ * comm.read_stride + list[2 + i]];
      b_.read_at[i] = list[2 + i];
      b_.readers[i] = FifoReader<Mem>(end.view, end.counter, end.step);
      b_.read_slot_bytes[i] = end.slot_bytes;
      b_.read_peers[i] = end.peer;
    }
    for (uint32_t i = env_.thread(); i < num_writes; i += env_.threads()) {
      const DeviceWriteEnd& end = comm.writes[channel_ * comm.write_stride + list[2 + num_reads + i]];
      b_.write_at[i] = list[2 + num_reads + i];
      b_.writers[i].load_from(end);
      b_.write_slot_bytes[i] = end.slot_bytes;
    }
    env_.sync();
  }
  RONDO_HOST_DEVICE_INLINE void store_ends() {
    const DeviceComm& comm = *b_.call.comm;
    for (uint32_t i = env_.thread(); i < b_.num_reads; i += env_.threads())
      comm.reads[channel_ * comm.read_stride + b_.read_at[i]].step = b_.readers[i].step();
    for (uint32_t i = env_.thread(); i < b_.num_writes; i += env_.threads())
      b_.writers[i].store_to(comm.writes[channel_ * comm.write_stride + b_.write_at[i]]);
    env_.sync();
  }

  // Barrier of all lanes of the unit in this channel. After it each lane sees the ends that others have stored.
  RONDO_HOST_DEVICE_INLINE bool meet(uint32_t num_lanes) {
    bool ok = true;
    if (env_.thread() == 0) {
      uint64_t* m = b_.call.comm->meetings + channel_ * 8;
      const uint64_t meeting = Mem::load_acquire(m + 1);
      if (Mem::fetch_add(m, 1) + 1 == num_lanes) {
        Mem::store_relaxed(m, 0);
        LaneProgress* lanes = b_.call.comm->lanes + channel_ * DeviceProgram::kMaxLanes;
        for (uint32_t l = 0; l < num_lanes; ++l) Mem::store_relaxed(&lanes[l].completed, 0);
        Mem::store_release(m + 1, meeting + 1);
      } else {
        ok = wait_until<false>(env_, standing_, -1, false, [&] {
          return Mem::load_acquire(m + 1) != meeting ? Arrival::kReady : Arrival::kNotYet;
        });
      }
    }
    return !env_.any(!ok);
  }

  // Each lane of a unit with several lanes calls it once, when it is done with the unit's instructions. A launch adds
  // kMaxLanes in total, so that nobody has to clear the count.
  RONDO_HOST_DEVICE_INLINE void leave(uint32_t num_lanes) {
    if (num_lanes == 1 || env_.thread() != 0) return;
    Mem::fetch_add(b_.call.comm->meetings + channel_ * 8 + 4,
                   lane_ == 0 ? DeviceProgram::kMaxLanes + 1 - num_lanes : 1);
  }
  // After a failure: returns when the channel's other lanes have left, or after a second.
  RONDO_HOST_DEVICE_INLINE void wait_for_lanes() {
    await(1'000'000'000,
          [&] { return Mem::load_acquire(b_.call.comm->meetings + channel_ * 8 + 4) % DeviceProgram::kMaxLanes == 0; });
  }
  Env& env_;
  BlockState<Mem>& b_;
  const LaunchArgs& args_;
  Standing standing_{};
  uint32_t lane_ = 0, channel_ = 0, call_ = 0;
  uint32_t turn_ = 0;  // 0 or 1: the tables of the current message. The next message's may be filled before this one's
                       // posts are done and its record is written

 private:
  template <class Done>
  RONDO_HOST_DEVICE_INLINE void await(uint64_t most_ns, Done done) {
    const uint64_t since_ns = env_.now_ns();
    if (env_.thread() == 0)
      while (!done() && env_.now_ns() - since_ns < most_ns) env_.relax(1);
    env_.sync();
  }
  RONDO_HOST_DEVICE_INLINE void copy_words(void* to, const void* from, uint32_t bytes) {
    for (uint32_t i = env_.thread() * 4; i < bytes; i += env_.threads() * 4)
      device_kernels::store_aligned(static_cast<std::byte*>(to) + i,
                                    device_kernels::load_aligned<uint32_t>(static_cast<const std::byte*>(from) + i));
  }
};

}  // namespace rondo
