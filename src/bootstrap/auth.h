// Mutual proof that both ends of a new connection hold the same secret. The secret is not sent.
//
//   client -> server   hello      magic, version, encrypts?, purpose, claimed rank, client nonce
//   server -> client   challenge  magic, version, encrypts?, server nonce
//   client -> server   proof      HMAC-SHA256(secret, "client" | transcript)
//   server -> client   verdict    accepted or differs + HMAC-SHA256(secret, "server" | transcript), refused + zeros
//
// The transcript is hello and challenge. Therefore a proof is valid only for both nonces, the purpose and the rank. The
// labels prevent a server from reflecting a proof. If encryption is on, a TLS handshake follows (bootstrap/tls.h). Its
// key is also an HMAC of the transcript, and the connection is then encrypted. Otherwise the following bytes are
// neither encrypted nor authenticated. If only one side encrypts, both still prove the secret, so that each can trust
// the report. The verdict is then "differs", and the connection ends. Source: challenge-response of RFC 2104 HMACs in
// the manner of SCRAM (RFC 5802), without its password stretching: the secret is random.
//
// SHA-256 uses libcrypto's direct functions. Its EVP layer needs 0.7 to 1.0 ms for its setup in each process (OpenSSL
// 3.0 on a Xeon). With four ranks, everything else that a rank does to join takes less time.
//
// Two ranks of one host use a short form. The rendezvous table has a random name for each end, made for this
// communicator only. The names replace the nonces, and two messages are sufficient:
//
//   client -> server   hello      magic, version, purpose, claimed rank, HMAC-SHA256(secret, "client" | pair)
//   server -> client   verdict    accepted + HMAC-SHA256(secret, "server" | pair), or refused + zeros
//
// A proof is valid for one pair in one communicator, and the server accepts one connection of each pair. An attacker
// who can read the messages could replay a proof before its owner sends it. Therefore the short form is only for Unix
// sockets, which no other process can read, and not for TCP.
//
// Thread safety: plain functions; a handshake belongs to one thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "bootstrap/socket.h"
#include "bootstrap/tls.h"
#include "config/encryption.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

using Secret = std::array<uint8_t, 16>;
using Mac = std::array<uint8_t, 32>;

/// Fills `data` with random bytes of the kernel (getrandom).
Status random_bytes(void* data, size_t bytes);
/// Returns HMAC-SHA256 (RFC 2104).
Mac hmac_sha256(const Secret& secret, std::string_view text);
/// Derives a secret from another one: the first 16 bytes of the text's HMAC-SHA256.
Secret derive_secret(const Secret& from, std::string_view text);

enum class Purpose : uint8_t { kRendezvous = 1, kMesh = 2, kMeshOnHost = 3 };

/// Two ranks of one host that will connect, with their names from the table.
struct RankPair {
  Rank client = 0, server = 0;
  std::string_view client_name, server_name;  // random, made for this communicator only
};

/// The common part of both sides of a handshake. Neither ever blocks.
class HandshakeSide {
 public:
  enum class State { kUnderWay, kAccepted, kFailed };
  /// Returns the reason after kFailed.
  const Status& status() const { return status_; }
  /// Returns the TLS session of the connection after kAccepted, nullptr if the connection is not encrypted.
  std::unique_ptr<TlsSession> take_session() { return std::move(session_); }

 protected:
  HandshakeSide(const Secret& secret, Purpose purpose, Encryption encryption)
      : secret_(secret), purpose_(purpose), encryption_(std::move(encryption)) {}
  State fail(Status why);
  State fail(StatusCode code, std::string why) { return fail(Status(code, std::move(why))); }
  /// Reads until the inbox has `wanted` bytes, and none of the following ones. Returns nothing when it has them.
  std::optional<State> receive(int fd, size_t wanted, std::string_view doing);
  /// Returns false, and fails the handshake, if the bytes cannot be sent.
  bool send(int fd, std::string_view bytes, std::string_view doing);
  /// Ends the handshake, with TLS's own if the connection is encrypted.
  State accept(int fd, TlsSession::Role role);
  State shake_hands(int fd);

  Secret secret_;
  Purpose purpose_;
  Encryption encryption_;
  std::unique_ptr<TlsSession> session_;
  std::string inbox_;
  std::string transcript_;

 private:
  Status status_;
};

/// The client's side. Call start(), then advance() whenever the socket is readable. Errors: kUnauthorized (refused, or
/// the server does not hold the secret), kPeerLost, kMismatch (another program or another version answers), kSystem.
class ClientHandshake : public HandshakeSide {
 public:
  ClientHandshake(const Secret& secret, Purpose purpose, Rank rank, Encryption encryption = {})
      : HandshakeSide(secret, purpose, std::move(encryption)), rank_(rank) {}
  /// Makes the short form.
  ClientHandshake(const Secret& secret, const RankPair& pair);
  State start(int fd);
  State advance(int fd);

 private:
  State answer_challenge(int fd);
  State judge_verdict(int fd);
  Rank rank_;
  bool proven_ = false;
  Mac expected_ = {};  // the server's proof
  Status differs_;     // kMismatch if only one side encrypts
};

/// Runs the client's side and blocks until it has ended. Errors: those of ClientHandshake, kTimeout, kAborted.
Expected<std::unique_ptr<TlsSession>> authenticate_client(int fd, ClientHandshake handshake, const Deadline& deadline);

/// The server's side. Call advance() whenever the socket is readable.
class ServerHandshake : public HandshakeSide {
 public:
  using PairOf = std::function<RankPair(Rank)>;
  ServerHandshake(const Secret& secret, Purpose purpose, Encryption encryption = {})
      : HandshakeSide(secret, purpose, std::move(encryption)) {}
  /// Makes the short form. pair_of returns the pair for the rank that a client claims. An empty client_name means that
  /// this rank may not connect here.
  ServerHandshake(const Secret& secret, PairOf pair_of)
      : HandshakeSide(secret, Purpose::kMeshOnHost, {}), pair_of_(std::move(pair_of)) {}
  State advance(int fd);
  bool has_greeted() const { return challenged_; }  // always false in the short form, which checks a hello at once
  Rank rank() const { return rank_; }               // as claimed by the client; proven after kAccepted
  bool was_wrong_secret() const { return wrong_secret_; }
  /// Returns true after kFailed if rank() has proved the secret and only one of the two sides encrypts.
  bool encryption_differs() const { return encryption_differs_; }

 private:
  State answer_hello(int fd);
  State judge_proof(int fd, std::string_view proof, std::string_view transcript);
  PairOf pair_of_;  // only in the short form
  Rank rank_ = -1;
  bool challenged_ = false;
  bool wrong_secret_ = false;
  bool client_encrypts_ = false;
  bool encryption_differs_ = false;
};

}  // namespace rondo
