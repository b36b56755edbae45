// TestHosts: several hosts on one machine, as network namespaces joined by a switch.
//
//   host 0: eth0 10.77.0.1 ---- port0 |
//   host 1: eth0 10.77.0.2 ---- port1 | switch, a bridge in its own namespace
//   host 2: eth0 10.77.0.3 ---- port2 |
//
// The namespaces have no names: they live while processes hold them, and those die with the test program. rondo treats
// ranks in different network namespaces as ranks on different hosts. Memory, processes and clocks are shared.
//
// Needs root (or CAP_SYS_ADMIN), iproute2 and util-linux; make() reports missing ones.
// Thread safety: none. enter() is for forked children.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

namespace rondo::testing {

class TestHosts {
 public:
  /// nullptr if it cannot be done, with the reason in *why_not.
  static std::unique_ptr<TestHosts> make(int num_hosts, std::string* why_not);
  ~TestHosts();
  TestHosts(const TestHosts&) = delete;
  TestHosts& operator=(const TestHosts&) = delete;

  /// Adds a second network: eth1 10.78.0.1 for host 0 and so on, with its own switch. False on failure.
  bool add_network();
  int num_hosts() const { return static_cast<int>(holders_.size()) - 1; }
  /// Moves the calling process to the host. Permanent, so only in a forked child. False on failure.
  bool enter(int host) const;
  /// "10.77.0.1" for host 0.
  static std::string address(int host) { return "10.77.0." + std::to_string(host + 1); }
  /// Shell prefix that runs a program on the host, with the host name "host0".
  std::string shell_prefix(int host) const;
  /// Unplugs the host's cable: data in flight is lost silently. network: 1 for the second one. False on failure.
  bool unplug(int host, int network = 0) const;
  bool plug_in(int host, int network = 0) const;
  /// Makes the host's route to another one a blackhole, which its kernel knows. False on failure.
  bool blackhole(int host, int to) const;
  bool no_blackhole(int host, int to) const;
  /// Limits the kernel buffers of a connection, in either direction. False on failure.
  bool socket_bytes(uint64_t bytes) const;
  /// Limits the rate of both directions of every host's link. False on failure.
  bool limit(double megabits_per_s) const;
  /// Replaces the switch by a proxy process with this one-way delay and share of lost frames. All frames are written to
  /// record_fd, if set. In the first frame of at least alter_bytes bytes (0: none) it flips one bit that no checksum
  /// shows. False on failure.
  bool delay(double delay_ms, double loss = 0, int record_fd = -1, size_t alter_bytes = 0);
  /// Restores the kernel's switch with all cables. False on failure.
  bool no_delay();

 private:
  TestHosts() = default;
  bool run_in(pid_t holder, const std::string& command) const;
  bool join(int network);
  bool wait_until_up(int host, int network) const;
  std::vector<pid_t> holders_;  // one process in each host's namespace; the last in the switch's
  pid_t proxy_ = 0;
};

}  // namespace rondo::testing
