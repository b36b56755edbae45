#include "transport/net/tcp_socket.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace rondo::net {
namespace {

std::string to_text(const sockaddr* address, socklen_t bytes) {
  char host[NI_MAXHOST] = {};
  if (getnameinfo(address, bytes, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return host;
}

}  // namespace

std::string error_text(int e) { return fmt::format("{} (errno {})", strerror(e), e); }

void tune_socket(int fd) {
  const int on = 1, idle_s = 1, interval_s = 1, probes = 3;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

bool to_sockaddr(const std::string& host, uint16_t port, sockaddr_storage* to, socklen_t* bytes) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return false;
  std::memcpy(to, found->ai_addr, found->ai_addrlen);
  *bytes = found->ai_addrlen;
  freeaddrinfo(found);
  return true;
}

Expected<std::string> address_of_interface(const std::string& device) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return Status(StatusCode::kSystem, fmt::format("getifaddrs: {}", error_text(errno)));
  std::string v4, v6;
  std::vector<std::string> names;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    if (std::find(names.begin(), names.end(), i->ifa_name) == names.end()) names.emplace_back(i->ifa_name);
    if (device != i->ifa_name) continue;
    if (i->ifa_addr->sa_family == AF_INET && v4.empty()) v4 = to_text(i->ifa_addr, sizeof(sockaddr_in));
    if (i->ifa_addr->sa_family == AF_INET6 && v6.empty() &&
        !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr))
      v6 = to_text(i->ifa_addr, sizeof(sockaddr_in6));
  }
  freeifaddrs(list);
  if (v4.empty() && v6.empty())
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("RONDO_RAILS names {}, and no network interface of that name is up with an IP address "
                              "here: there are {}",
                              device, fmt::join(names, ", ")));
  return v4.empty() ? v6 : v4;
}

int listen_at(const std::string& host, uint16_t* port) {
  sockaddr_storage at{};
  socklen_t bytes = 0;
  if (!to_sockaddr(host, *port, &at, &bytes)) {
    errno = EAFNOSUPPORT;
    return -1;
  }
  const int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int on = 1;
  if (at.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  if (bind(fd, reinterpret_cast<sockaddr*>(&at), bytes) == 0 && listen(fd, SOMAXCONN) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&at), &bytes) == 0) {
    *port = ntohs(at.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&at)->sin_port
                                          : reinterpret_cast<sockaddr_in6*>(&at)->sin6_port);
    return fd;
  }
  const int why = errno;
  ::close(fd);
  errno = why;
  return -1;
}

}  // namespace rondo::net
