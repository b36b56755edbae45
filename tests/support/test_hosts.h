// TestHosts: several hosts on one machine, as network namespaces that a switch joins.
//
//   host 0: eth0 10.77.0.1 ---- port0 |
//   host 1: eth0 10.77.0.2 ---- port1 | switch, a bridge in a namespace of its own
//   host 2: eth0 10.77.0.3 ---- port2 |
//
// The namespaces have no names: they live while processes hold them, and those die with the test program. rondo takes
// ranks in different network namespaces for ranks on different hosts. Memory, processes and clocks are one machine's.
//
// Needs root (or CAP_SYS_ADMIN), iproute2 and util-linux; make() says what is missing.
//
// Thread safety: none. enter() is for forked children.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

namespace rondo::testing {

class TestHosts {
 public:
  /// nullptr where it cannot be done; *why_not says why.
  static std::unique_ptr<TestHosts> make(int num_hosts, std::string* why_not);
  ~TestHosts();
  TestHosts(const TestHosts&) = delete;
  TestHosts& operator=(const TestHosts&) = delete;

  /// A second network beside the first: eth1 10.78.0.1 of host 0 and so on, on a switch of its own. False: it could
  /// not.
  bool add_network();
  int num_hosts() const { return static_cast<int>(holders_.size()) - 1; }
  /// Makes the calling process one of the host's. For good, so only in a forked child. False: it could not.
  bool enter(int host) const;
  /// "10.77.0.1" of host 0.
  static std::string address(int host) { return "10.77.0." + std::to_string(host + 1); }
  /// What to put before a program and its arguments to run it on the host, whose name it then sees: "host0".
  std::string shell_prefix(int host) const;
  /// Takes the host's cable out of the switch: what is under way is lost, and nobody is told. False: it could not.
  /// network: 1 for the second one's.
  bool unplug(int host, int network = 0) const;
  bool plug_in(int host, int network = 0) const;
  /// The host's way to another one leads nowhere, which its own kernel knows. False: it could not.
  bool blackhole(int host, int to) const;
  bool no_blackhole(int host, int to) const;
  /// The most that the kernels of the hosts hold of a connection, in either direction. False: it could not.
  bool socket_bytes(uint64_t bytes) const;
  /// Both directions of every host's link carry no more than this. False: it could not.
  bool limit(double megabits_per_s) const;
  /// From now on a relay of ours is the switch: frames take so long one way, and this share of them is lost. All are
  /// written to record_fd, if there is one. Of the first frame of at least alter_bytes bytes (0: of none) it flips one
  /// bit, which no checksum shows. False: it could not.
  bool delay(double delay_ms, double loss = 0, int record_fd = -1, size_t alter_bytes = 0);
  /// The kernel's switch again, with all cables in it. False: it could not.
  bool no_delay();

 private:
  TestHosts() = default;
  bool run_in(pid_t holder, const std::string& command) const;
  bool join(int network);
  bool wait_until_up(int host, int network) const;
  std::vector<pid_t> holders_;  // one process in each host's namespace, and the last in the switch's
  pid_t relay_ = 0;
};

}  // namespace rondo::testing
