// FaultTransport: forwards to a real transport, but fails at a chosen message.
//
//   engine --private FIFO--> proxy --real FIFO--> peers        a connection that this rank writes
//   engine <--private FIFO-- proxy <--real FIFO-- peers        a connection that it reads
//
// The engine gets FIFOs of private memory. The proxy, one thread of this transport, carries header lines, data and read
// counters between them and the real ones, step by step. Therefore it tracks the exact step of every connection and
// counts this rank's messages in both directions. A message here is one step of a connection: a header line with its
// data, if any. For peers a proxy looks like a slightly slow rank.
//
// Optionally it accepts zero-copy sends, reads them late, and delivers arriving messages to posted receives, as a
// transport without shared memory does (protocol/zero_copy.h).
//
// Everything else goes straight to the real transport. Memory that the ranks access directly is not proxied: the
// messages of direct and pull algorithms are their credits.
// Thread safety: FaultControl from any thread; FaultTransport as Transport.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "api/control_plane.h"
#include "support/forwarding_transport.h"
#include "transport/pool.h"

namespace rondo::testing {

enum class Fault : uint8_t {
  kNone,
  kDelay,        // delays the message and all later ones
  kStop,         // carries neither it nor any later one: the rank looks hung, its process lives
  kKill,         // SIGKILL of this process instead of carrying it
  kFreeze,       // SIGSTOP of this process instead
  kAbort,        // the rank aborts the communicator
  kFingerprint,  // the flag of another operation
  kOtherStep,    // the flag of another step: the line's previous use
  kLost,         // its flag is never published; later messages are carried
  kReordered,    // the next message's flag is published before this one's
  kTwice,        // its flag is published again after the next message's
  kMemory,       // the pool of this process is full when a connection is opened
  kDescriptors,  // this process cannot open more descriptors
};
const char* fault_name(Fault f);

/// The fault that happened; in shared memory, since the process may die of it.
struct FaultMoment {
  std::atomic<double> at_s{0};  // on now_s()'s clock; 0: not yet
  std::atomic<Rank> writer{-1};  // of the affected connection
};

/// The planned fault, shared by the test and the FaultTransports of one rank.
class FaultControl {
 public:
  explicit FaultControl(FaultMoment* moment) : moment_(moment) {}
  /// Number of messages that this rank has sent and received.
  uint64_t num_messages() const { return num_messages_.load(std::memory_order_acquire); }
  /// At the message of that number, 1-based.
  void at_message(Fault fault, uint64_t number, uint32_t delay_us = 0);
  /// From now on each message is delayed by a random time below most_us. That is no error.
  void delay_each(uint32_t most_us, uint32_t seed);
  /// Connections opened from now on accept zero-copy sends. Their data is read when the message is carried, and again
  /// when the send completes, at once or much later.
  void send_zero_copy() { sends_zero_copy_ = true; }
  uint64_t num_zero_copy() const { return num_zero_copy_; }
  /// Zero-copy sends whose data had changed at completion.
  uint64_t num_changed() const { return num_changed_; }
  uint64_t num_landed() const { return num_landed_; }
  /// Zero-copy sends that were outstanding when the engine dropped them.
  uint64_t num_let_go() const { return num_let_go_; }
  /// When this rank opens its n-th connection from now on, either end.
  void at_opening(Fault fault, uint64_t number);
  /// Now, in the calling thread.
  void now(Fault fault);
  bool happened() const { return moment_->at_s.load(std::memory_order_acquire) != 0; }
  /// Ends kMemory.
  void free_memory();

 private:
  friend class FaultTransport;
  /// Counts a message and returns its fault.
  Fault count_message(Rank writer);
  Fault count_opening(Rank writer);
  void delay_message();
  double some_delay_s();
  void fill_pool();

  FaultMoment* moment_;
  std::atomic<uint64_t> num_messages_{0}, num_openings_{0};
  std::atomic<uint64_t> due_message_{0}, due_opening_{0};  // 0: never
  std::atomic<Fault> fault_{Fault::kNone};
  std::atomic<uint32_t> delay_us_{0};
  std::atomic<uint32_t> most_us_{0};  // of each message; 0: none is late
  std::mt19937 random_;               // used only by the proxy
  std::atomic<bool> stopped_{false};
  std::atomic<bool> sends_zero_copy_{false};
  std::atomic<uint64_t> num_zero_copy_{0}, num_changed_{0}, num_landed_{0}, num_let_go_{0};
  std::mutex hoard_mutex_;  // guards the following members
  std::shared_ptr<StagingPool> pool_;
  std::vector<StagingPool::Range> hoard_;
};

class FaultTransport final : public ForwardingTransport {
 public:
  FaultTransport(Rank rank, int nranks, std::unique_ptr<Transport> real, std::shared_ptr<FaultControl> control);
  /// Carries what the engine has written, unless the proxy has stopped.
  ~FaultTransport() override;

  Expected<FifoView> open_writer(const ConnectionKey& key) override;
  std::optional<FifoView> open_reader(const ConnectionKey& key) override;
  ZeroCopySend* zero_copy_sends(const ConnectionKey& key) override;
  PostedReceive* posted_receive(const ConnectionKey& key) override;
  void let_go() override;

 private:
  struct Proxy;  // one connection
  FifoView add(const ConnectionKey& key, const FifoView& real);
  void run();
  bool carry_all();
  bool carry_message(Proxy& proxy);
  bool carry_counters(Proxy& proxy);
  void ring_bell(Rank r);
  Proxy* find_zero_copy(const ConnectionKey& key, bool sent);

  const Rank rank_;
  const int nranks_;
  const std::shared_ptr<FaultControl> control_;
  std::mutex mutex_;  // guards proxies_
  std::vector<std::unique_ptr<Proxy>> proxies_;
  bool has_let_go_ = false;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace rondo::testing
