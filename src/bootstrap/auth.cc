#define OPENSSL_SUPPRESS_DEPRECATED  // for SHA256_Init and similar functions: see bootstrap/auth.h
#include "bootstrap/auth.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/codec.h"
#include "base/error.h"

namespace rondo {
namespace {

constexpr std::string_view kMagic = "rondoHS";
constexpr uint8_t kVersion = 4;  // also of the messages after the handshake
constexpr size_t kNonceBytes = 32;
constexpr size_t kHelloBytes = 7 + 1 + 1 + 1 + 4 + kNonceBytes;
constexpr size_t kChallengeBytes = 7 + 1 + 1 + kNonceBytes;
constexpr size_t kProofBytes = sizeof(Mac);
constexpr size_t kVerdictBytes = 1 + sizeof(Mac);
constexpr size_t kPairHelloBytes = 7 + 1 + 1 + 4 + sizeof(Mac);
constexpr uint8_t kAccept = 1, kDiffers = 2;

std::string_view view(const Mac& mac) { return {reinterpret_cast<const char*>(mac.data()), mac.size()}; }
bool same_secretly(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string pair_text(const RankPair& pair) {
  Encoder w;
  w.raw(kMagic)(kVersion, Purpose::kMeshOnHost, pair.client, pair.server, pair.client_name, pair.server_name);
  return w.take();
}

constexpr std::string_view kProving = "proving the secret", kShaking = "making the TLS handshake";
constexpr std::string_view kSetAlike = "set RONDO_ENCRYPT to the same value on all ranks";

}  // namespace

Status random_bytes(void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::getrandom(static_cast<char*>(data) + done, bytes - done, 0);
    if (n > 0) done += static_cast<size_t>(n);
    else if (errno != EINTR) return Status(StatusCode::kSystem, "getrandom: " + errno_text(errno));
  }
  return {};
}

Mac hmac_sha256(const Secret& secret, std::string_view text) {
  std::array<uint8_t, SHA256_CBLOCK> inner, outer;
  static_assert(sizeof(Secret) <= SHA256_CBLOCK);
  for (size_t i = 0; i < inner.size(); ++i) {
    const uint8_t key = i < secret.size() ? secret[i] : 0;
    inner[i] = key ^ 0x36;
    outer[i] = key ^ 0x5c;
  }
  Mac mac;
  SHA256_CTX hash;
  ::SHA256_Init(&hash);
  ::SHA256_Update(&hash, inner.data(), inner.size());
  ::SHA256_Update(&hash, text.data(), text.size());
  ::SHA256_Final(mac.data(), &hash);
  ::SHA256_Init(&hash);
  ::SHA256_Update(&hash, outer.data(), outer.size());
  ::SHA256_Update(&hash, mac.data(), mac.size());
  ::SHA256_Final(mac.data(), &hash);
  ::OPENSSL_cleanse(&hash, sizeof(hash));
  ::OPENSSL_cleanse(inner.data(), inner.size());
  ::OPENSSL_cleanse(outer.data(), outer.size());
  return mac;
}

Secret derive_secret(const Secret& from, std::string_view text) {
  const Mac hash = hmac_sha256(from, text);
  Secret secret;
  std::memcpy(secret.data(), hash.data(), secret.size());
  return secret;
}

HandshakeSide::State HandshakeSide::fail(Status why) {
  status_ = std::move(why);
  return State::kFailed;
}

std::optional<HandshakeSide::State> HandshakeSide::receive(int fd, size_t wanted, std::string_view doing) {
  while (inbox_.size() < wanted) {
    char buffer[64];
    const ssize_t n = ::recv(fd, buffer, std::min(wanted - inbox_.size(), sizeof buffer), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return State::kUnderWay;
    if (n < 0) return fail(StatusCode::kPeerLost, fmt::format("{} while {}", errno_text(errno), doing));
    if (n == 0) return fail(StatusCode::kPeerLost, fmt::format("the other side closed the connection while {}", doing));
    inbox_.append(buffer, static_cast<size_t>(n));
  }
  return std::nullopt;
}

// Sends a short message. The socket's buffer is empty: if it does not take the whole message, the connection is broken.
bool HandshakeSide::send(int fd, std::string_view bytes, std::string_view doing) {
  const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (n == static_cast<ssize_t>(bytes.size())) return true;
  fail(StatusCode::kPeerLost, fmt::format("{} while {}", errno_text(errno), doing));
  return false;
}

// The key of the TLS session depends on the secret, the transcript and encryption.psk.
HandshakeSide::State HandshakeSide::accept(int fd, TlsSession::Role role) {
  if (!encryption_.on) return State::kAccepted;
  auto session = TlsSession::create(role, hmac_sha256(secret_, "tls" + transcript_ + encryption_.psk));
  if (!session.ok()) return fail(session.status());
  session_ = std::move(*session);
  if (role == TlsSession::Role::kClient && !send(fd, session_->to_send(), kShaking)) return State::kFailed;
  return shake_hands(fd);
}

// Continues a TLS handshake with the bytes that have arrived.
HandshakeSide::State HandshakeSide::shake_hands(int fd) {
  while (!session_->ready()) {
    char buffer[4096];
    const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return State::kUnderWay;
    if (n < 0) return fail(StatusCode::kPeerLost, fmt::format("{} while {}", errno_text(errno), kShaking));
    if (n == 0)
      return fail(StatusCode::kPeerLost, fmt::format("the other side closed the connection while {}", kShaking));
    const Status taken = session_->take({buffer, static_cast<size_t>(n)});
    const std::string answer = session_->to_send();  // after an error this is TLS's alert
    const bool sent = answer.empty() || send(fd, answer, kShaking);
    if (!taken.ok()) return fail(taken);
    if (!sent) return State::kFailed;
  }
  return State::kAccepted;
}

ClientHandshake::ClientHandshake(const Secret& secret, const RankPair& pair)
    : HandshakeSide(secret, Purpose::kMeshOnHost, {}),
      rank_(pair.client),
      proven_(true),
      expected_(hmac_sha256(secret, "server" + pair_text(pair))) {
  Encoder hello;
  hello.raw(kMagic)(kVersion, purpose_, rank_).raw(view(hmac_sha256(secret, "client" + pair_text(pair))));
  transcript_ = hello.take();
}

ClientHandshake::State ClientHandshake::start(int fd) {
  if (proven_) return send(fd, transcript_, kProving) ? State::kUnderWay : State::kFailed;
  std::string nonce(kNonceBytes, '\0');
  if (Status s = random_bytes(nonce.data(), nonce.size()); !s.ok()) return fail(std::move(s));
  Encoder hello;
  hello.raw(kMagic)(kVersion, encryption_.on, purpose_, rank_).raw(nonce);
  transcript_ = hello.take();
  return send(fd, transcript_, "greeting the other side") ? State::kUnderWay : State::kFailed;
}

ClientHandshake::State ClientHandshake::advance(int fd) {
  for (;;) {
    if (session_ != nullptr) return shake_hands(fd);
    const auto waits = proven_ ? receive(fd, kVerdictBytes, "waiting for the verdict")
                               : receive(fd, kChallengeBytes, "waiting for the other side's challenge");
    if (waits == State::kFailed && !differs_.ok()) return fail(differs_);
    if (waits) return *waits;
    if (proven_) return judge_verdict(fd);
    if (const State s = answer_challenge(fd); s != State::kUnderWay) return s;
  }
}

ClientHandshake::State ClientHandshake::answer_challenge(int fd) {
  if (!std::string_view(inbox_).starts_with(kMagic))
    return fail(StatusCode::kMismatch, "the program at this address does not use rondo's protocol");
  if (const auto version = static_cast<uint8_t>(inbox_[kMagic.size()]); version != kVersion)
    return fail(StatusCode::kMismatch,
                fmt::format("the other side uses version {} of the handshake, this side {}", version, kVersion));
  if (const bool encrypts = inbox_[kMagic.size() + 1] != 0; encrypts != encryption_.on)
    differs_ =
        make_error(StatusCode::kMismatch, "the other side {}, and rank {} {}: {}",
                   encrypts ? "encrypts" : "does not encrypt", rank_, encryption_.on ? "does" : "does not", kSetAlike);
  transcript_ += inbox_;
  inbox_.clear();
  proven_ = true;
  expected_ = hmac_sha256(secret_, "server" + transcript_);
  return send(fd, view(hmac_sha256(secret_, "client" + transcript_)), kProving) ? State::kUnderWay : State::kFailed;
}

ClientHandshake::State ClientHandshake::judge_verdict(int fd) {
  if (inbox_[0] != kAccept && inbox_[0] != kDiffers)
    return fail(StatusCode::kUnauthorized, "the other side refused this rank's proof of the id's secret");
  if (!same_secretly(std::string_view(inbox_).substr(1), view(expected_)))
    return fail(StatusCode::kUnauthorized, "the other side could not prove that it holds the id's secret");
  return differs_.ok() ? accept(fd, TlsSession::Role::kClient) : fail(differs_);
}

Expected<std::unique_ptr<TlsSession>> authenticate_client(int fd, ClientHandshake handshake, const Deadline& deadline) {
  for (auto state = handshake.start(fd); state != ClientHandshake::State::kAccepted; state = handshake.advance(fd)) {
    if (state == ClientHandshake::State::kFailed) return handshake.status();
    RONDO_TRY(deadline.wait_ready(fd, POLLIN, "waiting for the other side's part of the handshake"));
  }
  return handshake.take_session();
}

ServerHandshake::State ServerHandshake::advance(int fd) {
  for (;;) {
    if (session_ != nullptr) return shake_hands(fd);
    const size_t wanted = challenged_ ? kProofBytes : pair_of_ ? kPairHelloBytes : kHelloBytes;
    const auto waits = receive(fd, wanted, challenged_ ? kProving : "greeting");
    // Refuse wrong bytes at once, instead of waiting for a complete hello.
    const size_t known = std::min(inbox_.size(), kMagic.size());
    if (!challenged_ && inbox_.compare(0, known, kMagic.substr(0, known)) != 0)
      return fail(StatusCode::kMismatch, "does not use rondo's protocol");
    if (waits) return *waits;
    if (challenged_) return judge_proof(fd, inbox_, transcript_);
    if (const State s = answer_hello(fd); s != State::kUnderWay) return s;
  }
}

ServerHandshake::State ServerHandshake::answer_hello(int fd) {
  Decoder r(inbox_);
  r.raw(kMagic.size());
  const auto version = r.get<uint8_t>();
  client_encrypts_ = !pair_of_ && r.get<uint8_t>() != 0;
  const auto purpose = r.get<uint8_t>();
  rank_ = static_cast<Rank>(r.get<uint32_t>());
  Encoder challenge;
  if (!pair_of_) {
    std::string nonce(kNonceBytes, '\0');
    if (Status s = random_bytes(nonce.data(), nonce.size()); !s.ok()) return fail(std::move(s));
    challenge.raw(kMagic)(kVersion, encryption_.on).raw(nonce);
    if (!send(fd, challenge.bytes(), "sending the challenge")) return State::kFailed;
  }
  if (version != kVersion)
    return fail(StatusCode::kMismatch,
                fmt::format("uses version {} of the handshake, this side {}", version, kVersion));
  if (purpose != static_cast<uint8_t>(purpose_))
    return fail(StatusCode::kMismatch,
                fmt::format("wants service {}, this side offers {}", purpose, static_cast<int>(purpose_)));
  if (pair_of_) {
    const RankPair pair = pair_of_(rank_);
    return judge_proof(fd, pair.client_name.empty() ? std::string_view() : r.raw(sizeof(Mac)), pair_text(pair));
  }
  transcript_ = inbox_ + challenge.bytes();
  inbox_.clear();
  challenged_ = true;
  return State::kUnderWay;
}

ServerHandshake::State ServerHandshake::judge_proof(int fd, std::string_view proof, std::string_view transcript) {
  wrong_secret_ = !same_secretly(proof, view(hmac_sha256(secret_, fmt::format("client{}", transcript))));
  encryption_differs_ = !wrong_secret_ && client_encrypts_ != encryption_.on;
  Encoder verdict;
  if (wrong_secret_) {
    verdict(uint8_t{0}).raw(std::string(sizeof(Mac), '\0'));
  } else {
    verdict(encryption_differs_ ? kDiffers : kAccept);
    verdict.raw(view(hmac_sha256(secret_, fmt::format("server{}", transcript))));
  }
  const bool sent = send(fd, verdict.bytes(), "sending the verdict");
  if (wrong_secret_)
    return fail(StatusCode::kUnauthorized, fmt::format("claims rank {} and does not hold the id's secret", rank_));
  if (encryption_differs_)
    return fail(StatusCode::kMismatch,
                fmt::format("{}, and this side {}: {}", client_encrypts_ ? "encrypts" : "does not encrypt",
                            encryption_.on ? "does" : "does not", kSetAlike));
  return sent ? accept(fd, TlsSession::Role::kServer) : State::kFailed;
}

}  // namespace rondo
