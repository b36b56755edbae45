// Sockets of the bootstrap: addresses, listeners, and reads, writes and connects that end at a deadline or when the
// abort flag is set. Every socket is non-blocking and close-on-exec. No write raises SIGPIPE.
//
// Thread safety: free functions without state. An Fd belongs to one thread at a time.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "rondo/status.h"

namespace rondo {

/// The time limit and abort flag of a wait.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kSliceMs = 50;  // longest time between two checks of the abort flag
  Deadline(double seconds, const std::atomic<bool>* abort);
  /// Returns a copy whose deadline is at most `seconds` away.
  Deadline at_most(double seconds) const;
  /// Returns a copy whose deadline is `seconds` later.
  Deadline extended(double seconds) const;
  double left_s() const { return std::max(0.0, std::chrono::duration<double>(deadline_ - Clock::now()).count()); }
  bool aborted() const { return abort_ != nullptr && abort_->load(std::memory_order_acquire); }
  bool expired() const { return Clock::now() >= deadline_; }
  double seconds() const { return seconds_; }
  /// Returns a timeout for poll(): the time until the deadline, between 0 and one slice.
  int slice_ms() const;
  /// Returns ok if the wait may continue, otherwise kAborted or kTimeout with "while <doing>" and the setting.
  Status check(std::string_view doing) const;
  /// Waits for `events` on the descriptor. Returns ok also if the descriptor is broken: the next call on it returns the
  /// error. Errors: those of check().
  Status wait_ready(int fd, short events, std::string_view doing) const;
  /// Sleeps for `ms`, at most one slice, between two attempts. Errors: those of check().
  Status pause(double ms, std::string_view doing) const;

 private:
  double seconds_;
  Clock::time_point deadline_;
  const std::atomic<bool>* abort_;
  bool is_part_ = false;  // part of a longer wait: its time is not a setting, and the error names none
};
/// The settings of the deadlines for making communicators, for error texts.
inline constexpr std::string_view kInitDeadline = "RONDO_INIT_TIMEOUT_S or init_deadline_s";

/// Returns "No such file or directory (errno 2)".
std::string errno_text(int error);

/// An IPv4 or IPv6 address without a port.
struct IpAddress {
  bool v6 = false;
  uint8_t bytes[16] = {};  // v4: the first four
  std::string text() const;
  std::string to_string(uint16_t port) const;
  /// Parses a numeric address.
  static std::optional<IpAddress> parse(const std::string& text);
  friend bool operator==(const IpAddress&, const IpAddress&) = default;
};

/// Returns the IP address of a socket's end. Returns nothing for other families and for nullptr.
std::optional<IpAddress> ip_of(const sockaddr* address);
/// Returns the address of `theirs` that has the longest common prefix with one of `ours`: "10.0.0.7", "fd00::1". An
/// address that is also in `ours` (both hosts have a bridge, for example) is the last choice. Empty if there is none.
std::string nearest_host(const std::vector<IpAddress>& theirs, const std::vector<IpAddress>& ours);

/// Returns whether `spec` selects the interface. It has NCCL's notation: comma-separated prefixes; a "^" before them
/// excludes them, and a "=" demands exact names.
bool interface_selected(std::string_view spec, std::string_view name);
/// Returns the addresses of the interfaces that are up and that `spec` selects. If `spec` is empty, it returns those of
/// all interfaces except container bridges and loopback. If there are none, it returns those of the bridges, or else
/// those of loopback. It never returns a link-local IPv6 address. `whose`: the beginning of an error text if `spec` is
/// not RONDO_SOCKET_IFNAME.
Expected<std::vector<IpAddress>> usable_addresses(std::string_view spec, std::string_view whose = {});
/// Returns the addresses of a host name or numeric address, IPv4 first.
Expected<std::vector<IpAddress>> resolve(const std::string& host);

struct Listeners {
  std::vector<Fd> sockets;
  std::vector<IpAddress> addresses;  // of the sockets
  uint16_t port = 0;
};
/// Opens a listening TCP socket per address, all on one port (0: the kernel chooses it). Leaves out addresses that this
/// host does not have, or not yet (IPv6 first checks a new one for duplicates). It is an error if none remains.
Expected<Listeners> listen_tcp(const std::vector<IpAddress>& addresses, uint16_t port);
/// Opens a listening Unix socket in the abstract name space of this network namespace.
Expected<Fd> listen_abstract(std::string_view name);

/// Connects. The error text contains the address. If the address has no listener: kSystem, and *refused is true.
Expected<Fd> connect_tcp(const IpAddress& address, uint16_t port, const Deadline& deadline, bool* refused);
Expected<Fd> connect_abstract(std::string_view name, const Deadline& deadline, bool* refused);
/// Start to connect, without waiting. If the Fd is empty, *error has the errno; EAGAIN of an abstract socket means that
/// its queue is full. If *connected is false, wait until it is writable and call end_connect(), which returns 0 or an
/// errno.
Fd begin_connect_tcp(const IpAddress& address, uint16_t port, bool* connected, int* error,
                     const IpAddress* from = nullptr);
Fd begin_connect_abstract(std::string_view name, bool* connected, int* error);
int end_connect(int fd);
/// Accepts one connection without waiting. Returns an empty Fd if there is none. Sets *peer to its address for
/// messages; `peer` may be nullptr for a Unix socket.
Fd accept_one(int listener, std::string* peer);
/// Returns the process at the other end of a Unix socket: "pid 4711 of uid 0".
std::string local_peer_name(int fd);
/// Turns Nagle's algorithm off. Turns keepalive on, which detects a dead host within about 4 s, if the ends of the
/// connection have different IP addresses.
void tune_tcp(int fd);

/// Read or write exactly `bytes` bytes. An end of the stream is kPeerLost "... closed the connection".
Status read_exactly(int fd, void* data, size_t bytes, const Deadline& deadline, std::string_view doing);
Status write_all(int fd, std::string_view bytes, const Deadline& deadline, std::string_view doing);

}  // namespace rondo
