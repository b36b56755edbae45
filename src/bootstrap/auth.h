// Mutual proof that both ends of a fresh connection hold the same secret, without the secret travelling.
//
//   client -> server   hello      magic, version, encrypts?, purpose, claimed rank, client nonce
//   server -> client   challenge  magic, version, encrypts?, server nonce
//   client -> server   proof      HMAC-SHA256(secret, "client" | transcript)
//   server -> client   verdict    accepted or differs + HMAC-SHA256(secret, "server" | transcript), refused + zeros
//
// The transcript is hello and challenge, so a proof is bound to both nonces, the purpose and the rank, and the labels
// keep a server from reflecting a proof. Where encryption is on, a TLS handshake follows (bootstrap/tls.h), whose key is an
// HMAC of the transcript too, and the connection is encrypted from there on; else what follows is neither encrypted nor
// authenticated. Two sides of which only one encrypts prove the secret all the same, so that either can believe it:
// then the verdict is that they differ, and the connection ends.
// Source: challenge-response of RFC 2104 HMACs in the manner of SCRAM (RFC 5802), without its password stretching: the
// secret is random.
//
// SHA-256 is libcrypto's, by its direct functions: its EVP layer takes 0.7 to 1.0 ms to set itself up in each process
// (OpenSSL 3.0 on a Xeon), more than everything else that a rank of four does to join.
//
// Two ranks of one host use a short form. Their table names both ends by random numbers of this one meeting. The numbers
// replace the nonces, and two messages suffice:
//
//   client -> server   hello      magic, version, purpose, claimed rank, HMAC-SHA256(secret, "client" | pair)
//   server -> client   verdict    accepted + HMAC-SHA256(secret, "server" | pair), or refused + zeros
//
// A proof is good for one pair in one meeting, and the server takes one connection of each pair. Whoever can read what
// passes could send it again, and be first. Therefore the short form is for Unix sockets, where nobody else reads, and
// not for TCP.
//
// Thread safety: plain functions; a handshake belongs to one thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "bootstrap/socket.h"
#include "bootstrap/tls.h"
#include "config/encryption.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

using Secret = std::array<uint8_t, 16>;
using Mac = std::array<uint8_t, 32>;

/// Fills from the kernel's generator (getrandom).
Status random_bytes(void* data, size_t bytes);
/// RFC 2104 over SHA-256.
Mac hmac_sha256(const Secret& secret, std::string_view text);
/// The first 16 bytes of SHA-256 over a label and the text: for secrets that people write down.
Secret secret_from_text(std::string_view text);

enum class Purpose : uint8_t { kRendezvous = 1, kMesh = 2, kMeshOnHost = 3 };

/// Two ranks of one host that are about to connect, as both know them from the table.
struct RankPair {
  Rank client = 0, server = 0;
  std::string_view client_name, server_name;  // random, of this meeting alone
};

/// The client's side as a state machine that never waits: start(), then advance() whenever the socket is readable.
class ClientHandshake {
 public:
  enum class State { kUnderWay, kAccepted, kFailed };
  ClientHandshake(const Secret& secret, Purpose purpose, Rank rank, Encryption encryption = {})
      : secret_(secret), purpose_(purpose), rank_(rank), encryption_(std::move(encryption)) {}
  /// The short form.
  ClientHandshake(const Secret& secret, const RankPair& pair);
  State start(int fd);
  State advance(int fd);
  /// After kFailed: kUnauthorized (refused, or the server does not hold the secret either), kPeerLost, kMismatch
  /// (something else answers there, or another version), kSystem.
  const Status& status() const { return status_; }
  /// After kAccepted: what reads and writes the connection from now on; nullptr where it is not encrypted.
  std::unique_ptr<TlsSession> take_session() { return std::move(session_); }

 private:
  State fail(StatusCode code, std::string why);
  State answer_challenge(int fd);
  State judge_verdict(int fd);
  State shake_hands(int fd);
  Secret secret_;
  Purpose purpose_;
  Rank rank_;
  Encryption encryption_;
  std::unique_ptr<TlsSession> session_;
  bool proven_ = false;
  Mac expected_ = {};  // of the verdict
  Status differs_;  // kMismatch when the other side has said that it encrypts where this one does not, or the reverse
  std::string inbox_;
  std::string transcript_;
  Status status_;
};

/// Runs the client's side, waiting. Errors: as ClientHandshake, kTimeout, kAborted.
Expected<std::unique_ptr<TlsSession>> authenticate_client(int fd, ClientHandshake handshake, const Patience& patience);

/// The server's side as a state machine that never waits: call advance() whenever the socket is readable.
class ServerHandshake {
 public:
  enum class State { kUnderWay, kAccepted, kFailed };
  using PairOf = std::function<RankPair(Rank)>;
  ServerHandshake(const Secret& secret, Purpose purpose, Encryption encryption = {})
      : secret_(secret), purpose_(purpose), encryption_(std::move(encryption)) {}
  /// The short form. pair_of: who the rank is that a client claims to be, with an empty name if it may not come.
  ServerHandshake(const Secret& secret, PairOf pair_of)
      : secret_(secret), purpose_(Purpose::kMeshOnHost), pair_of_(std::move(pair_of)) {}
  State advance(int fd);
  /// As ClientHandshake's.
  std::unique_ptr<TlsSession> take_session() { return std::move(session_); }
  bool has_greeted() const { return challenged_; }  // in the short form never: a whole hello is judged at once
  Rank rank() const { return rank_; }             // claimed, and proven once accepted
  const std::string& why() const { return why_; }  // after kFailed
  bool was_wrong_secret() const { return wrong_secret_; }
  /// After kFailed: rank() has proved the secret, and only one of the two sides encrypts.
  bool encryption_differs() const { return encryption_differs_; }

 private:
  State fail(std::string why);
  State answer_hello(int fd);
  State judge_proof(int fd, std::string_view proof, std::string_view transcript);
  State shake_hands(int fd);
  Secret secret_;
  Purpose purpose_;
  Encryption encryption_;
  PairOf pair_of_;  // of the short form alone
  std::unique_ptr<TlsSession> session_;
  Rank rank_ = -1;
  bool challenged_ = false;
  bool wrong_secret_ = false;
  bool client_encrypts_ = false;
  bool encryption_differs_ = false;
  std::string inbox_;
  std::string transcript_;
  std::string why_;
};

}  // namespace rondo
