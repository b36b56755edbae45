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

/// Fills `data` with random bytes of the kernel (getrandom).
Status random_bytes(void* data, size_t bytes);
/// Returns HMAC-SHA256 (RFC 2104).
Mac hmac_sha256(const Secret& secret, std::string_view text);
/// Derives a secret from a text that a user has set: the first 16 bytes of the text's HMAC-SHA256 under a fixed label.
Secret secret_from_text(std::string_view text);

enum class Purpose : uint8_t { kRendezvous = 1, kMesh = 2, kMeshOnHost = 3 };

/// Two ranks of one host that will connect, with their names from the table.
struct RankPair {
  Rank client = 0, server = 0;
  std::string_view client_name, server_name;  // random, made for this communicator only
};

/// The client's side. It never blocks. Call start(), then advance() whenever the socket is readable.
class ClientHandshake {
 public:
  enum class State { kUnderWay, kAccepted, kFailed };
  ClientHandshake(const Secret& secret, Purpose purpose, Rank rank, Encryption encryption = {})
      : secret_(secret), purpose_(purpose), rank_(rank), encryption_(std::move(encryption)) {}
  /// Makes the short form.
  ClientHandshake(const Secret& secret, const RankPair& pair);
  State start(int fd);
  State advance(int fd);
  /// Returns the reason after kFailed: kUnauthorized (refused, or the server does not hold the secret), kPeerLost,
  /// kMismatch (another program or another version answers), kSystem.
  const Status& status() const { return status_; }
  /// Returns the TLS session of the connection after kAccepted, nullptr if the connection is not encrypted.
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
  Mac expected_ = {};  // the server's proof
  Status differs_;     // kMismatch if only one side encrypts
  std::string inbox_;
  std::string transcript_;
  Status status_;
};

/// Runs the client's side and blocks until it has ended. Errors: those of ClientHandshake, kTimeout, kAborted.
Expected<std::unique_ptr<TlsSession>> authenticate_client(int fd, ClientHandshake handshake, const Deadline& deadline);

/// The server's side. It never blocks. Call advance() whenever the socket is readable.
class ServerHandshake {
 public:
  enum class State { kUnderWay, kAccepted, kFailed };
  using PairOf = std::function<RankPair(Rank)>;
  ServerHandshake(const Secret& secret, Purpose purpose, Encryption encryption = {})
      : secret_(secret), purpose_(purpose), encryption_(std::move(encryption)) {}
  /// Makes the short form. pair_of returns the pair for the rank that a client claims. An empty client_name means that
  /// this rank may not connect here.
  ServerHandshake(const Secret& secret, PairOf pair_of)
      : secret_(secret), purpose_(Purpose::kMeshOnHost), pair_of_(std::move(pair_of)) {}
  State advance(int fd);
  /// See ClientHandshake.
  std::unique_ptr<TlsSession> take_session() { return std::move(session_); }
  bool has_greeted() const { return challenged_; }  // always false in the short form, which checks a hello at once
  Rank rank() const { return rank_; }             // as claimed by the client; proven after kAccepted
  const std::string& why() const { return why_; }  // after kFailed
  bool was_wrong_secret() const { return wrong_secret_; }
  /// Returns true after kFailed if rank() has proved the secret and only one of the two sides encrypts.
  bool encryption_differs() const { return encryption_differs_; }

 private:
  State fail(std::string why);
  State answer_hello(int fd);
  State judge_proof(int fd, std::string_view proof, std::string_view transcript);
  State shake_hands(int fd);
  Secret secret_;
  Purpose purpose_;
  Encryption encryption_;
  PairOf pair_of_;  // only in the short form
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
