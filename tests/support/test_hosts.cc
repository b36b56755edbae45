#include "support/test_hosts.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "support/frame_relay.h"

namespace rondo::testing {
namespace {

// An idle process in its own network namespace; 0 if that is not permitted.
pid_t hold_namespace() {
  int pipe_fds[2];
  if (pipe(pipe_fds) != 0) return 0;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    close(pipe_fds[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char ok = unshare(CLONE_NEWNET) == 0 && getppid() == parent;
    if (write(pipe_fds[1], &ok, 1) != 1 || !ok) _exit(1);
    for (;;) pause();
  }
  close(pipe_fds[1]);
  char ok = 0;
  const bool made = child > 0 && read(pipe_fds[0], &ok, 1) == 1 && ok != 0;
  close(pipe_fds[0]);
  if (!made && child > 0) waitpid(child, nullptr, 0);
  return made ? child : 0;
}

std::string quiet(const std::string& command) { return "{ " + command + "; } >/dev/null 2>&1"; }

std::string device(int network) { return "eth" + std::to_string(network); }
std::string port_of(int host, int network) { return (network == 0 ? "port" : "other") + std::to_string(host); }

void end(pid_t process) {
  if (process <= 0) return;
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
}

bool enter_network(pid_t holder) {
  const int fd = open(("/proc/" + std::to_string(holder) + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC);
  const bool entered = fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
  if (fd >= 0) close(fd);
  return entered;
}

}  // namespace

bool TestHosts::run_in(pid_t holder, const std::string& command) const {
  return std::system(quiet("nsenter -n -t " + std::to_string(holder) + " " + command).c_str()) == 0;
}

// The kernel reports a cable's other end a moment later, and UCX only uses interfaces that are up.
bool TestHosts::wait_until_up(int host, int network) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (!run_in(holders_[static_cast<size_t>(host)], "ip link show " + device(network) + " | grep -q 'state UP'")) {
    if (std::chrono::steady_clock::now() > end) return false;
    poll(nullptr, 0, 2);
  }
  return true;
}

std::string TestHosts::shell_prefix(int host) const {
  return "nsenter -n -t " + std::to_string(holders_[static_cast<size_t>(host)]) +
         " unshare -m -u sh -c 'mount -t sysfs sysfs /sys && echo host" + std::to_string(host) +
         " >/proc/sys/kernel/hostname && exec \"$@\"' sh ";
}

// Makes a switch, and a cable from each host to it.
bool TestHosts::join(int network) {
  const pid_t hub = holders_.back();
  const std::string bridge = "br" + std::to_string(network), subnet = network == 0 ? "10.77.0." : "10.78.0.";
  bool ok = run_in(hub, "ip link add " + bridge + " type bridge") && run_in(hub, "ip link set " + bridge + " up");
  for (int h = 0; h < num_hosts() && ok; ++h) {
    const pid_t host = holders_[static_cast<size_t>(h)];
    const std::string port = port_of(h, network), dev = device(network);
    ok = run_in(host, "ip link add " + dev + " type veth peer name " + port + " netns " + std::to_string(hub)) &&
         run_in(hub, "ip link set " + port + " master " + bridge + " up") &&
         run_in(host, "ip addr add " + subnet + std::to_string(h + 1) + "/24 dev " + dev) &&
         run_in(host, "ip link set " + dev + " up") && run_in(host, "ip link set lo up");
  }
  for (int h = 0; h < num_hosts() && ok; ++h) ok = wait_until_up(h, network);
  return ok;
}

bool TestHosts::add_network() { return join(1); }

std::unique_ptr<TestHosts> TestHosts::make(int num_hosts, std::string* why_not) {
  if (std::system((quiet("command -v nsenter") + " && " + quiet("command -v ip")).c_str()) != 0) {
    *why_not = "ip (iproute2) or nsenter (util-linux) is not installed";
    return nullptr;
  }
  std::unique_ptr<TestHosts> hosts(new TestHosts);
  for (int i = 0; i <= num_hosts; ++i) {
    const pid_t holder = hold_namespace();
    if (holder == 0) {
      *why_not = "network namespaces are not permitted here (unshare: needs root or CAP_SYS_ADMIN)";
      return nullptr;
    }
    hosts->holders_.push_back(holder);
  }
  const bool ok = hosts->join(0);
  if (ok) return hosts;
  *why_not = "veth pairs or bridges cannot be made here";
  return nullptr;
}

TestHosts::~TestHosts() {
  holders_.push_back(proxy_);
  for (const pid_t p : holders_) end(p);
}

// UCX finds interfaces in /sys, whose content depends on the namespace that mounted it.
bool TestHosts::enter(int host) const {
  return enter_network(holders_[static_cast<size_t>(host)]) && unshare(CLONE_NEWNS) == 0 &&
         mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 && mount("sysfs", "/sys", "sysfs", 0, nullptr) == 0;
}

bool TestHosts::unplug(int host, int network) const {
  return run_in(holders_.back(), "ip link set " + port_of(host, network) + " nomaster");
}

bool TestHosts::plug_in(int host, int network) const {
  return run_in(holders_.back(), "ip link set " + port_of(host, network) + " master br" + std::to_string(network));
}

bool TestHosts::blackhole(int host, int to) const {
  return run_in(holders_[static_cast<size_t>(host)], "ip route add blackhole " + address(to) + "/32");
}

bool TestHosts::no_blackhole(int host, int to) const {
  return run_in(holders_[static_cast<size_t>(host)], "ip route del blackhole " + address(to) + "/32");
}

bool TestHosts::socket_bytes(uint64_t bytes) const {
  const std::string most = std::to_string(bytes), usual = std::to_string(std::min<uint64_t>(bytes, 128 * 1024));
  bool ok = true;
  for (size_t i = 0; i + 1 < holders_.size(); ++i)
    ok = run_in(holders_[i], "sysctl -qw 'net.ipv4.tcp_wmem=4096 " + usual + " " + most + "' 'net.ipv4.tcp_rmem=4096 " +
                                 usual + " " + most + "'") &&
         ok;
  return ok;
}

bool TestHosts::limit(double megabits_per_s) const {
  const std::string shape = " root tbf rate " + std::to_string(megabits_per_s) + "mbit burst 256kb latency 100ms";
  bool ok = true;
  for (int h = 0; h < num_hosts(); ++h)
    ok = ok && run_in(holders_[static_cast<size_t>(h)], "tc qdisc replace dev eth0" + shape) &&
         run_in(holders_.back(), "tc qdisc replace dev port" + std::to_string(h) + shape);
  return ok;
}

bool TestHosts::delay(double delay_ms, double loss, int record_fd, size_t alter_bytes) {
  end(std::exchange(proxy_, 0));
  std::vector<std::string> ports;
  for (int h = 0; h < num_hosts(); ++h) ports.push_back("port" + std::to_string(h));
  for (const std::string& port : ports)
    if (!run_in(holders_.back(), "ip link set " + port + " nomaster")) return false;
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return false;
  proxy_ = fork();
  if (proxy_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ProxyOptions options;
    options.delay_ms = delay_ms;
    options.loss = loss;
    options.record_fd = record_fd;
    options.alter_bytes = alter_bytes;
    options.ready_fd = pipe_fds[1];
    if (enter_network(holders_.back())) (void)relay_frames(ports, options);
    _exit(1);
  }
  close(pipe_fds[1]);
  char ready;
  const bool ok = proxy_ > 0 && read(pipe_fds[0], &ready, 1) == 1;
  close(pipe_fds[0]);
  return ok;
}

bool TestHosts::no_delay() {
  end(std::exchange(proxy_, 0));
  bool ok = true;
  for (int h = 0; h < num_hosts(); ++h) ok = plug_in(h) && ok;
  return ok;
}

}  // namespace rondo::testing
