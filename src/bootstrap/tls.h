// TlsSession: TLS 1.3 with a pre-shared key. It encrypts and decrypts bytes; the caller sends and receives them. It
// uses no socket and never blocks.
//
// The key comes from the proof of the id's secret (bootstrap/auth.h). Therefore no certificate is needed, and each
// connection has its own key. Fresh Diffie-Hellman shares (psk_dhe_ke) protect recorded traffic if the secret becomes
// known later. Source: RFC 8446, section 2.2. The implementation is OpenSSL's.
//
// libssl is loaded when the first session is made. Programs without encryption do not need it.
//
// Thread safety: a session belongs to one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rondo/status.h"

struct bio_st;
struct ssl_st;

namespace rondo {

class TlsSession {
 public:
  enum class Role { kClient, kServer };
  using Key = std::array<uint8_t, 32>;

  /// Errors: kUnsupported if libssl.so.3 is missing or lacks a function, kSystem.
  static Expected<std::unique_ptr<TlsSession>> create(Role role, const Key& key);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  /// Takes received bytes, in pieces of any size. Errors: kUnauthorized if the peer does not hold the key or the stream
  /// was altered. The session is then unusable.
  Status take(std::string_view arrived);
  /// Returns true if both sides have proved that they hold the key. Then seal() may be called.
  bool ready() const { return ready_; }
  /// Appends the decrypted bytes to *plain. Errors: those of take().
  Status open(std::string* plain);
  /// Encrypts bytes for to_send().
  Status seal(std::string_view plain);
  /// Returns the bytes to send, also those of the handshake. The caller must send all of them, in order.
  std::string to_send();

 private:
  explicit TlsSession(const Key& key) : key_(key) {}
  Status shake_hands();
  Status outcome(int returned) const;
  Key key_;
  ssl_st* ssl_ = nullptr;
  bio_st *in_ = nullptr, *out_ = nullptr;  // received bytes, and bytes to send; ssl_ owns them
  bool ready_ = false;
};

}  // namespace rondo
