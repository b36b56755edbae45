// LinkTransport: the transport below it, over a line of a given rate and latency.
//
//   engine --private lines--> proxy, when it is due --real lines--> peers       a connection that this rank writes
//   engine <------------------------------------------- real lines -- peers    one that it reads: the peer delays
//
// Data is written to its final place at once and becomes visible with its line. As with a network card, no core moves
// it. All messages of a rank leave by one line, in the order in which the proxy finds them. Each occupies the line for
// its bytes' time, to every reader, and arrives one latency later. Every rank has its own line, and so each direction
// does. Freed room costs nothing. Nothing bypasses the line: memory is neither mapped nor pulled.
//
// The proxy, one thread of this transport, sleeps until a message is due or posted to an idle line, so that it takes
// little time from computing cores. A network card would cost only the interrupt. Thread safety: as Transport.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "api/control_plane.h"
#include "support/forwarding_transport.h"

namespace rondo::testing {

struct Line {
  double bytes_per_us = 0;  // more than 0
  double latency_us = 0;
};

class LinkTransport final : public ForwardingTransport {
 public:
  LinkTransport(Rank rank, int nranks, std::unique_ptr<Transport> real, const Line& line);
  /// Ends when all posted messages have arrived.
  ~LinkTransport() override;

  Expected<FifoView> open_writer(const ConnectionKey& key) override;
  /// A peer's bell wakes this rank's proxy, which forwards it.
  Doorbell* bell(Rank r) override { return r == rank_ ? real_->bell(r) : &posted_; }
  bool may_be_direct() const override { return false; }
  bool can_pull() const override { return false; }

  /// Bytes that have left by the line, header lines included.
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  struct Proxy;  // one connection
  void run();
  /// Time of the next arrival, in s on now_s()'s clock; far in the future if there is none.
  double carry_due();
  bool admit_posted();
  void publish(Proxy& proxy);
  void ring_peers(const ConnectionKey* key);

  const Rank rank_;
  const int nranks_;
  const Line line_;
  std::mutex mutex_;  // guards proxies_
  std::vector<std::unique_ptr<Proxy>> proxies_;
  double free_at_s_ = 0;  // when the line is free; used only by the proxy
  std::atomic<uint64_t> bytes_sent_{0};
  Doorbell posted_{};
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

/// For ChildOptions::decorate: puts every rank behind its own line.
TransportDecorator behind_line(const Line& line);

}  // namespace rondo::testing
