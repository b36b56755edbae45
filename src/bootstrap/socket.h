// Sockets and waiting for the bootstrap: descriptors that close themselves, addresses, listeners, and reads, writes
// and connects that end at a deadline or when the abort flag is raised. Every socket is non-blocking and close-on-exec,
// and no write raises SIGPIPE.
//
// Thread safety: free functions without state; an Fd belongs to one thread at a time.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "rondo/status.h"

namespace rondo {

/// How long a wait may last.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kSliceMs = 50;  // the longest time between two looks at the abort flag
  Patience(double seconds, const std::atomic<bool>* abort);
  /// The same abort flag, a deadline at most `seconds` away.
  Patience at_most(double seconds) const;
  /// The same abort flag, the deadline `seconds` later.
  Patience extended(double seconds) const;
  double left_s() const { return std::max(0.0, std::chrono::duration<double>(deadline_ - Clock::now()).count()); }
  bool aborted() const { return abort_ != nullptr && abort_->load(std::memory_order_acquire); }
  bool expired() const { return Clock::now() >= deadline_; }
  double seconds() const { return seconds_; }
  /// For poll(): until the deadline, at most one slice, at least 0.
  int slice_ms() const;
  /// kAborted or kTimeout with "while <doing>" and the setting, Ok when waiting may go on.
  Status check(std::string_view doing) const;
  /// Waits for `events` on the descriptor: ready (also when it is broken: the next call on it says how), or check()'s
  /// error.
  Status wait_ready(int fd, short events, std::string_view doing) const;
  /// Pauses for at most `ms` (at most one slice) between two attempts.
  Status pause(double ms, std::string_view doing) const;

 private:
  double seconds_;
  Clock::time_point deadline_;
  const std::atomic<bool>* abort_;
  bool is_part_ = false;  // of a longer wait: then no setting would have made it longer
};
/// What sets the deadlines of making communicators, for the errors that name one.
inline constexpr std::string_view kInitDeadline = "RONDO_INIT_TIMEOUT_S or init_deadline_s";

/// "No such file or directory (errno 2)"
std::string errno_text(int error);

/// An IPv4 or IPv6 address without a port.
struct IpAddress {
  bool v6 = false;
  uint8_t bytes[16] = {};  // v4: the first four
  std::string text() const;
  std::string to_string(uint16_t port) const;
  /// Of a numeric address.
  static std::optional<IpAddress> parse(const std::string& text);
  friend bool operator==(const IpAddress&, const IpAddress&) = default;
};

/// The one of `theirs` that has most bits from the left in common with one of `ours`, without a port: "10.0.0.7",
/// "fd00::1"; one that is ours (both hosts have a bridge, say) only when there is no other. Empty when there is none.
std::string nearest_host(const std::vector<IpAddress>& theirs, const std::vector<IpAddress>& ours);

/// NCCL's notation: comma-separated prefixes; "^" in front excludes them, "=" in front wants exact names.
bool interface_selected(std::string_view spec, std::string_view name);
/// Addresses of the interfaces that are up: those selected by `spec`; when it is empty all but loopback and, unless
/// nothing else exists, container bridges. Loopback only when it is alone. Link-local IPv6 is left out. `whose`: what an
/// error begins with if `spec` is not RONDO_SOCKET_IFNAME.
Expected<std::vector<IpAddress>> usable_addresses(std::string_view spec, std::string_view whose = {});
/// Numeric or by name, IPv4 first.
Expected<std::vector<IpAddress>> resolve(const std::string& host);

struct Listeners {
  std::vector<Fd> sockets;
  std::vector<IpAddress> addresses;  // of the sockets
  uint16_t port = 0;
};
/// One listening TCP socket per address, all on one port (0: the kernel's choice). Addresses that this host does not
/// have, or not yet (IPv6 checks a new one for duplicates first), are left out unless none remains.
Expected<Listeners> listen_tcp(const std::vector<IpAddress>& addresses, uint16_t port);
/// A listening Unix socket in the abstract name space of this network namespace.
Expected<Fd> listen_abstract(std::string_view name);

/// Connects; the error's message names the address. kSystem with "refused" in `*refused` when nobody listens there.
Expected<Fd> connect_tcp(const IpAddress& address, uint16_t port, const Patience& patience, bool* refused);
Expected<Fd> connect_abstract(std::string_view name, const Patience& patience, bool* refused);
/// The same without waiting. Empty: errno is in *error; EAGAIN of an abstract socket means that its queue is full.
/// Not *connected yet: the descriptor becomes writable, and end_connect() says how it went, as an errno or 0.
Fd begin_connect_tcp(const IpAddress& address, uint16_t port, bool* connected, int* error,
                     const IpAddress* from = nullptr);
Fd begin_connect_abstract(std::string_view name, bool* connected, int* error);
int end_connect(int fd);
/// Accepts one connection without waiting; an empty Fd when there is none. *peer gets its address for messages, unless
/// it is nullptr.
Fd accept_one(int listener, std::string* peer);
/// "pid 4711 of uid 0": who is at the other end of a Unix socket.
std::string local_peer_name(int fd);
/// No Nagle, and keepalive that notices a vanished host within about 4 s.
void tune_tcp(int fd);

/// Exactly `bytes` bytes, or an error. An end of the stream is kPeerLost "... closed the connection".
Status read_exactly(int fd, void* data, size_t bytes, const Patience& patience, std::string_view doing);
Status write_all(int fd, std::string_view bytes, const Patience& patience, std::string_view doing);

}  // namespace rondo
