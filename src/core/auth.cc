#include "core/auth.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "core/wire.h"

namespace rondo {
namespace {

constexpr std::string_view kMagic = "rondoHS";
constexpr uint8_t kVersion = 1;
constexpr size_t kNonceBytes = 32;
constexpr size_t kHelloBytes = 7 + 1 + 1 + 4 + kNonceBytes;
constexpr size_t kChallengeBytes = 7 + 1 + kNonceBytes;
constexpr size_t kProofBytes = sizeof(Mac);
constexpr size_t kVerdictBytes = 1 + sizeof(Mac);
constexpr uint8_t kAccept = 1;

std::string_view view(const Mac& mac) { return {reinterpret_cast<const char*>(mac.data()), mac.size()}; }
bool same_secretly(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

// A message of 40 bytes into an empty socket buffer goes out whole or the connection is broken.
bool send_whole(int fd, std::string_view bytes) {
  return ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

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
  Mac mac = {};
  unsigned int bytes = 0;
  RONDO_CHECK(::HMAC(::EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                     reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &bytes) != nullptr);
  return mac;
}

Secret secret_from_text(std::string_view text) {
  const Mac hash = hmac_sha256(Secret{'r', 'o', 'n', 'd', 'o', ' ', 's', 'e', 'c', 'r', 'e', 't'}, text);
  Secret secret;
  std::memcpy(secret.data(), hash.data(), secret.size());
  return secret;
}

Status authenticate_client(int fd, const Secret& secret, Purpose purpose, Rank rank, const Patience& patience) {
  std::string nonce(kNonceBytes, '\0');
  RONDO_TRY(random_bytes(nonce.data(), nonce.size()));
  wire::Writer hello;
  hello.raw(kMagic).put(kVersion).put(static_cast<uint8_t>(purpose)).put(static_cast<uint32_t>(rank)).raw(nonce);
  RONDO_TRY(write_all(fd, hello.bytes(), patience, "greeting the other side"));

  std::string challenge(kChallengeBytes, '\0');
  RONDO_TRY(read_exactly(fd, challenge.data(), challenge.size(), patience, "waiting for the other side's challenge"));
  if (!std::string_view(challenge).starts_with(kMagic))
    return Status(StatusCode::kMismatch, "what answers there does not speak rondo's protocol");
  if (static_cast<uint8_t>(challenge[kMagic.size()]) != kVersion)
    return Status(StatusCode::kMismatch, fmt::format("the other side speaks version {} of the handshake, this one {}",
                                                     static_cast<uint8_t>(challenge[kMagic.size()]), kVersion));
  const std::string transcript = hello.bytes() + challenge;
  RONDO_TRY(write_all(fd, view(hmac_sha256(secret, "client" + transcript)), patience, "proving the secret"));

  std::string verdict(kVerdictBytes, '\0');
  RONDO_TRY(read_exactly(fd, verdict.data(), verdict.size(), patience, "waiting for the verdict"));
  if (verdict[0] != kAccept)
    return Status(StatusCode::kUnauthorized, "the other side refused this rank's proof of the id's secret");
  if (!same_secretly(std::string_view(verdict).substr(1), view(hmac_sha256(secret, "server" + transcript))))
    return Status(StatusCode::kUnauthorized, "the other side could not prove that it holds the id's secret");
  return {};
}

ServerHandshake::State ServerHandshake::fail(std::string why) {
  why_ = std::move(why);
  return State::kFailed;
}

ServerHandshake::State ServerHandshake::advance(int fd) {
  for (;;) {
    // Never past the handshake: what follows belongs to the next reader.
    const size_t wanted = challenged_ ? kProofBytes : kHelloBytes;
    char buffer[kHelloBytes];
    const ssize_t n = ::recv(fd, buffer, wanted - inbox_.size(), 0);
    if (n == 0) return fail(fmt::format("closed the connection after {} of {} bytes", inbox_.size(), wanted));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return State::kUnderWay;
    if (n < 0) return fail(errno_text(errno));
    inbox_.append(buffer, static_cast<size_t>(n));
    // Garbage is known by its first bytes; waiting for the rest would only keep it.
    const size_t known = std::min(inbox_.size(), kMagic.size());
    if (!challenged_ && inbox_.compare(0, known, kMagic.substr(0, known)) != 0)
      return fail("does not speak rondo's protocol");
    if (inbox_.size() < wanted) continue;
    if (challenged_) return judge_proof(fd);
    if (const State s = answer_hello(fd); s != State::kUnderWay) return s;
  }
}

ServerHandshake::State ServerHandshake::answer_hello(int fd) {
  wire::Reader r(inbox_);
  r.raw(kMagic.size());
  const auto version = r.get<uint8_t>();
  const auto purpose = r.get<uint8_t>();
  rank_ = static_cast<Rank>(r.get<uint32_t>());
  std::string nonce(kNonceBytes, '\0');
  if (const Status s = random_bytes(nonce.data(), nonce.size()); !s.ok()) return fail(s.to_string());
  wire::Writer challenge;
  challenge.raw(kMagic).put(kVersion).raw(nonce);
  if (!send_whole(fd, challenge.bytes())) return fail("cannot be written to: " + errno_text(errno));
  if (version != kVersion) return fail(fmt::format("speaks version {} of the handshake, this side {}", version, kVersion));
  if (purpose != static_cast<uint8_t>(purpose_))
    return fail(fmt::format("wants service {}, this side offers {}", purpose, static_cast<int>(purpose_)));
  transcript_ = inbox_ + challenge.bytes();
  inbox_.clear();
  challenged_ = true;
  return State::kUnderWay;
}

ServerHandshake::State ServerHandshake::judge_proof(int fd) {
  wrong_secret_ = !same_secretly(inbox_, view(hmac_sha256(secret_, "client" + transcript_)));
  wire::Writer verdict;
  if (wrong_secret_) {
    verdict.put<uint8_t>(0).raw(std::string(sizeof(Mac), '\0'));
  } else {
    verdict.put(kAccept).raw(view(hmac_sha256(secret_, "server" + transcript_)));
  }
  const bool sent = send_whole(fd, verdict.bytes());
  if (wrong_secret_) return fail(fmt::format("claims rank {} and does not hold the id's secret", rank_));
  return sent ? State::kAccepted : fail("cannot be written to: " + errno_text(errno));
}

}  // namespace rondo
