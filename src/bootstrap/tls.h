// TlsSession: TLS 1.3 with a pre-shared key over a stream that somebody else moves. It turns what the peer sent into
// plain bytes and plain bytes into what the peer gets; it never touches a socket, and never waits.
//
// The key comes from the proof of the id's secret (bootstrap/auth.h), so no certificate is involved, and each connection has
// its own; the exchange of fresh Diffie-Hellman shares (psk_dhe_ke) keeps a recording safe from a secret that gets out
// later. Source: RFC 8446, section 2.2; OpenSSL does the work.
//
// libssl is opened when the first session is made: programs that do not ask for encryption neither need nor load it.
//
// Thread safety: a session belongs to one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rondo/status.h"

namespace rondo {

class TlsSession {
 public:
  enum class Role { kClient, kServer };
  using Key = std::array<uint8_t, 32>;

  /// Errors: kUnsupported where libssl is missing or older than 1.1.1, kSystem.
  static Expected<std::unique_ptr<TlsSession>> create(Role role, const Key& key);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  /// Takes bytes of the stream as they come, in any pieces. Errors: kUnauthorized when the peer does not hold the key
  /// or the stream was altered; the session is of no use then.
  Status take(std::string_view arrived);
  /// Both sides have proven that they hold the key: seal() may be called.
  bool ready() const { return ready_; }
  /// Appends the plain bytes that have come. Errors: as take().
  Status open(std::string* plain);
  /// Adds plain bytes to what is to be sent.
  Status seal(std::string_view plain);
  /// What is to be sent now, also for the handshake; the caller sends all of it, in order.
  std::string to_send();

 private:
  struct Engine;
  explicit TlsSession(std::unique_ptr<Engine> engine);
  Status shake_hands();
  std::unique_ptr<Engine> engine_;
  bool ready_ = false;
};

}  // namespace rondo
