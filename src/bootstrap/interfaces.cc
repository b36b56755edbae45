// Finds the network interfaces on which the bootstrap listens, and the addresses at which ranks reach each other.
// Resolves host names. The functions are declared in bootstrap/socket.h and bootstrap/bootstrap.h.
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/socket.h"

namespace rondo {
namespace {

// A link-local IPv6 address is of no use to other ranks: it needs the name of an interface.
std::optional<IpAddress> usable_ip(const sockaddr* address) {
  const auto ip = ip_of(address);
  return ip && ip->v6 && ip->bytes[0] == 0xfe && (ip->bytes[1] & 0xc0) == 0x80 ? std::nullopt : ip;
}

// Returns true for bridges of container engines. They are up on every host, and other hosts cannot reach them.
bool is_bridge(std::string_view name) {
  for (std::string_view prefix : {"docker", "br-", "virbr", "cni", "flannel", "veth"})
    if (name.starts_with(prefix)) return true;
  return false;
}

void put_v4_first(std::vector<IpAddress>* addresses) {
  std::stable_sort(addresses->begin(), addresses->end(),
                   [](const IpAddress& a, const IpAddress& b) { return a.v6 < b.v6; });
}

}  // namespace

bool interface_selected(std::string_view spec, std::string_view name) {
  const bool exclude = spec.starts_with('^');
  if (exclude) spec.remove_prefix(1);
  const bool exact = spec.starts_with('=');
  if (exact) spec.remove_prefix(1);
  bool found = false;
  while (!spec.empty() && !found) {
    const size_t comma = spec.find(',');
    const std::string_view item = spec.substr(0, comma);
    found = !item.empty() && (exact ? name == item : name.starts_with(item));
    spec = comma == std::string_view::npos ? std::string_view() : spec.substr(comma + 1);
  }
  return found != exclude;
}

Expected<std::vector<IpAddress>> usable_addresses(std::string_view spec, std::string_view whose) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return Status(StatusCode::kSystem, "getifaddrs: " + errno_text(errno));
  std::vector<IpAddress> outside, bridges, loopback;
  std::string names;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    const auto address = usable_ip(i->ifa_addr);
    if ((i->ifa_flags & IFF_UP) == 0 || !address) continue;
    const std::string_view name = i->ifa_name;
    if (names.find(name) == std::string::npos) names.append(names.empty() ? "" : ", ").append(name);
    if (!spec.empty()) {
      if (interface_selected(spec, name)) outside.push_back(*address);
    } else {
      ((i->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : is_bridge(name) ? bridges : outside).push_back(*address);
    }
  }
  ::freeifaddrs(list);
  if (!spec.empty() && outside.empty())
    return invalid_argument("{} selects none of the interfaces that are up: {}",
                            whose.empty() ? fmt::format("RONDO_SOCKET_IFNAME='{}'", spec) : std::string(whose), names);
  std::vector<IpAddress>& chosen = !outside.empty() ? outside : !bridges.empty() ? bridges : loopback;
  if (chosen.empty()) return Status(StatusCode::kSystem, "no network interface is up, not even loopback");
  put_v4_first(&chosen);
  return std::move(chosen);
}

// A TCP link shows an address that can be reached. Without one, returns the peer's address nearest to one of ours.
std::string Bootstrap::address_of(Rank peer) {
  const std::lock_guard lock(loss_mutex_);
  sockaddr_storage at{};
  socklen_t bytes = sizeof at;
  if (links_[peer] && ::getpeername(links_[peer]->fd(), reinterpret_cast<sockaddr*>(&at), &bytes) != 0) return {};
  if (const auto address = usable_ip(reinterpret_cast<const sockaddr*>(&at))) return address->text();
  return gone_[peer] ? std::string() : nearest_host(peers_[peer].addresses, peers_[rank_].addresses);
}

// Returns the addresses on which this rank listens, and those of its links, because a peer may have seen only those.
std::vector<std::string> Bootstrap::own_addresses() {
  std::vector<IpAddress> all = peers_[rank_].addresses;
  const std::lock_guard lock(loss_mutex_);
  for (const auto& link : links_) {
    sockaddr_storage at{};
    socklen_t bytes = sizeof at;
    if (!link || ::getsockname(link->fd(), reinterpret_cast<sockaddr*>(&at), &bytes) != 0) continue;
    const auto address = usable_ip(reinterpret_cast<const sockaddr*>(&at));
    if (address && std::find(all.begin(), all.end(), *address) == all.end()) all.push_back(*address);
  }
  std::vector<std::string> texts;
  for (const IpAddress& a : all) texts.push_back(a.text());
  return texts;
}

Expected<std::vector<IpAddress>> resolve(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0)
    return invalid_argument("host '{}': {}", host, ::gai_strerror(error));
  std::vector<IpAddress> addresses;
  for (const addrinfo* i = list; i != nullptr; i = i->ai_next) {
    const auto address = usable_ip(i->ai_addr);
    if (address && std::find(addresses.begin(), addresses.end(), *address) == addresses.end())
      addresses.push_back(*address);
  }
  ::freeaddrinfo(list);
  if (addresses.empty()) return invalid_argument("host '{}' has no address", host);
  put_v4_first(&addresses);
  return addresses;
}

}  // namespace rondo
