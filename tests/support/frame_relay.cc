#include "support/frame_relay.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <random>

namespace rondo::testing {
namespace {

constexpr size_t kMostBytes = 10 + 70000;  // a virtio_net_hdr (its C header is not C++) and a frame
constexpr size_t kMostQueued = 20000;      // beyond this frames are dropped, as in any switch

struct Frame {
  uint64_t due_ns;
  size_t from;
  std::string bytes;
};

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

std::string failed(const std::string& what) { return what + ": " + strerror(errno); }

// A packet socket that receives only the interface's incoming frames.
std::string open_port(const std::string& interface, int* fd) {
  sockaddr_ll at{};
  at.sll_family = AF_PACKET;
  at.sll_protocol = htons(ETH_P_ALL);
  at.sll_ifindex = static_cast<int>(if_nametoindex(interface.c_str()));
  if (at.sll_ifindex == 0) return failed(interface);
  *fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (*fd < 0) return failed("a packet socket");
  const int on = 1, bytes = 16 << 20;
  setsockopt(*fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
  setsockopt(*fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
  packet_mreq all{};
  all.mr_ifindex = at.sll_ifindex;
  all.mr_type = PACKET_MR_PROMISC;
  if (setsockopt(*fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0 ||
      setsockopt(*fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) != 0 ||
      setsockopt(*fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) != 0 ||
      bind(*fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0)
    return failed(interface);
  return {};
}

class Proxy {
 public:
  Proxy(std::vector<pollfd> ports, const ProxyOptions& options)
      : ports_(std::move(ports)), options_(options), random_(options.seed) {}

  std::string run() {
    for (;;) {
      const uint64_t now = now_ns();
      for (; !queue_.empty() && queue_.front().due_ns <= now; queue_.pop_front()) forward(queue_.front());
      timespec wait{1, 0};
      if (!queue_.empty()) wait = {0, static_cast<long>(std::min<uint64_t>(queue_.front().due_ns - now, 999'999'999))};
      if (ppoll(ports_.data(), ports_.size(), &wait, nullptr) < 0 && errno != EINTR) return failed("ppoll");
      for (size_t i = 0; i < ports_.size(); ++i)
        if (ports_[i].revents != 0) take_all(i);
    }
  }

 private:
  // All have the same delay, so the queue is in order of time.
  void take_all(size_t port) {
    for (;;) {
      const ssize_t n = recv(ports_[port].fd, buffer_, sizeof buffer_, 0);
      if (n <= 0) return;
      alter(static_cast<size_t>(n));
      if (options_.record_fd >= 0) (void)!write(options_.record_fd, buffer_, static_cast<size_t>(n));
      const bool lost = options_.loss > 0 && std::uniform_real_distribution<>(0, 1)(random_) < options_.loss;
      if (lost || queue_.size() >= kMostQueued) continue;
      const auto delay_ns = static_cast<uint64_t>(options_.delay_ms * 1e6);
      queue_.push_back({now_ns() + delay_ns, port, std::string(buffer_, static_cast<size_t>(n))});
    }
  }

  // Frames of hosts with checksum offload have no checksum yet: a flag says so, and the receiver will not check it.
  void alter(size_t bytes) {
    constexpr char kNeedsChecksum = 1;
    if (options_.alter_bytes == 0 || altered_ || bytes < options_.alter_bytes || (buffer_[0] & kNeedsChecksum) == 0)
      return;
    buffer_[bytes / 2] = static_cast<char>(buffer_[bytes / 2] ^ 16);
    altered_ = true;
  }

  // A port that does not accept the frame loses it, and its sender sends it again.
  void forward(const Frame& frame) {
    for (size_t i = 0; i < ports_.size(); ++i)
      if (i != frame.from) (void)!send(ports_[i].fd, frame.bytes.data(), frame.bytes.size(), 0);
  }

  std::vector<pollfd> ports_;
  const ProxyOptions options_;
  std::mt19937_64 random_;
  std::deque<Frame> queue_;
  bool altered_ = false;
  char buffer_[kMostBytes];
};

}  // namespace

std::string relay_frames(const std::vector<std::string>& interfaces, const ProxyOptions& options) {
  std::vector<pollfd> ports;
  std::string why;
  for (const std::string& name : interfaces) {
    ports.push_back({-1, POLLIN, 0});
    if (why = open_port(name, &ports.back().fd); !why.empty()) break;
  }
  if (why.empty()) {
    if (options.ready_fd >= 0) (void)!write(options.ready_fd, "r", 1);
    why = Proxy(ports, options).run();
  }
  for (const pollfd& p : ports)
    if (p.fd >= 0) close(p.fd);
  return why;
}

}  // namespace rondo::testing
