// Sockets and addresses for TcpRail. All sockets are non-blocking and close-on-exec.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "rondo/status.h"

namespace rondo::net {

/// "Connection refused (errno 111)"
std::string error_text(int error);
/// No Nagle, and keepalive as for the communicator's own connections: a vanished host is detected within about 4 s.
void tune_socket(int fd);
/// Converts a numeric IP address and a port. False: not an address.
bool to_sockaddr(const std::string& host, uint16_t port, sockaddr_storage* to, socklen_t* bytes);
/// A socket that listens at a numeric address of this host, on *port; 0: on a port chosen by the kernel, stored there.
/// -1 and errno on error.
int listen_at(const std::string& host, uint16_t* port);
/// The numeric address of a network interface that is up, IPv4 first; no link-local IPv6, which other hosts cannot use
/// directly. Errors: kInvalidArgument naming RONDO_RAILS and the existing interfaces, kSystem.
Expected<std::string> address_of_interface(const std::string& device);

}  // namespace rondo::net
