// What a TcpRail needs of sockets and addresses. All sockets are non-blocking and close themselves in programs that
// this one starts.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "rondo/status.h"

namespace rondo::net {

/// "Connection refused (errno 111)"
std::string error_text(int error);
/// No Nagle, and keepalive as the communicator's own connections have it: a host that has vanished is noticed within
/// about 4 s.
void tune_socket(int fd);
/// A numeric IP address and a port. False: it is none.
bool to_sockaddr(const std::string& host, uint16_t port, sockaddr_storage* to, socklen_t* bytes);
/// A socket that listens at a numeric address of this host, on *port; 0: on a port of the kernel's choice, which it
/// then says there. -1 and errno.
int listen_at(const std::string& host, uint16_t* port);
/// The numeric address of a network interface that is up, IPv4 first; no link-local IPv6, which other hosts cannot
/// use without more. Errors: kInvalidArgument naming RONDO_RAILS and the interfaces there are, kSystem.
Expected<std::string> address_of_interface(const std::string& device);

}  // namespace rondo::net
