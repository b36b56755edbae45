#include "transport/net/sealer.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstring>

#include "base/forks.h"

namespace rondo::net {
namespace {

constexpr unsigned kCounterBits = 40;

}  // namespace

bool Sealer::Seen::is_new(uint64_t counter) const {
  return counter >= next || (counter + kWindow >= next && !recent[counter % kWindow]);
}

void Sealer::Seen::note(uint64_t counter) {
  for (uint64_t c = std::max(next, counter < kWindow ? 0 : counter - kWindow + 1); c < counter; ++c)
    recent[c % kWindow] = false;  // not received yet
  recent[counter % kWindow] = true;
  next = std::max(next, counter + 1);
}

Sealer::Sealer(Rank rank, int nranks, uint8_t rail)
    : rank_(rank), rail_(rail), sent_(static_cast<size_t>(nranks)), seen_(static_cast<size_t>(nranks)) {}

Sealer::~Sealer() {
  EVP_CIPHER_CTX_free(encrypt_);
  EVP_CIPHER_CTX_free(decrypt_);
}

std::unique_ptr<Sealer> Sealer::create(const Key& key, Rank rank, int nranks, uint8_t rail) {
  const auto lock = delay_forks();
  std::unique_ptr<Sealer> s(new Sealer(rank, nranks, rail));
  s->encrypt_ = EVP_CIPHER_CTX_new();
  s->decrypt_ = EVP_CIPHER_CTX_new();
  const bool ok = s->encrypt_ != nullptr && s->decrypt_ != nullptr &&
                  EVP_EncryptInit_ex(s->encrypt_, EVP_aes_128_gcm(), nullptr, key.data(), nullptr) == 1 &&
                  EVP_DecryptInit_ex(s->decrypt_, EVP_aes_128_gcm(), nullptr, key.data(), nullptr) == 1;
  return ok ? std::move(s) : nullptr;
}

// 24 bits for each rank, 8 for the rail, 40 for the counter: more messages than can be sent.
Sealer::Nonce Sealer::nonce_of(Rank from, Rank to, uint64_t counter) const {
  Nonce n;
  for (size_t i = 0; i < 3; ++i) n[i] = static_cast<uint8_t>(from >> (8 * i));
  for (size_t i = 0; i < 3; ++i) n[3 + i] = static_cast<uint8_t>(to >> (8 * i));
  for (size_t i = 0; i < kCounterBits / 8; ++i) n[6 + i] = static_cast<uint8_t>(counter >> (8 * i));
  n[11] = rail_;
  return n;
}

std::string Sealer::seal(Rank to, std::string_view header, const void* data, size_t bytes) {
  const uint64_t counter = sent_[static_cast<size_t>(to)]++;
  const Nonce nonce = nonce_of(rank_, to, counter);
  std::string sealed(bytes + kExtraBytes, '\0');
  auto* out = reinterpret_cast<uint8_t*>(sealed.data());
  int n = 0;
  EVP_EncryptInit_ex(encrypt_, nullptr, nullptr, nullptr, nonce.data());
  EVP_EncryptUpdate(encrypt_, nullptr, &n, reinterpret_cast<const uint8_t*>(header.data()),
                    static_cast<int>(header.size()));
  if (bytes != 0) EVP_EncryptUpdate(encrypt_, out, &n, static_cast<const uint8_t*>(data), static_cast<int>(bytes));
  EVP_EncryptFinal_ex(encrypt_, out + bytes, &n);
  std::memcpy(out + bytes, &counter, 8);
  EVP_CIPHER_CTX_ctrl(encrypt_, EVP_CTRL_GCM_GET_TAG, kTagBytes, out + bytes + 8);
  return sealed;
}

bool Sealer::open(Rank from, std::string_view header, const std::byte* sealed, size_t bytes, std::byte* plain) {
  if (bytes < kExtraBytes || from < 0 || static_cast<size_t>(from) >= seen_.size()) return false;
  const auto* in = reinterpret_cast<const uint8_t*>(sealed);
  const size_t data_bytes = bytes - kExtraBytes;
  uint64_t counter;
  std::memcpy(&counter, in + data_bytes, 8);
  uint8_t tag[kTagBytes];
  std::memcpy(tag, in + data_bytes + 8, kTagBytes);
  auto& seen = seen_[static_cast<size_t>(from)];
  if (seen == nullptr) seen = std::make_unique<Seen>();
  if (counter >> kCounterBits != 0 || !seen->is_new(counter)) return false;
  const Nonce nonce = nonce_of(from, rank_, counter);
  int n = 0;
  EVP_DecryptInit_ex(decrypt_, nullptr, nullptr, nullptr, nonce.data());
  EVP_CIPHER_CTX_ctrl(decrypt_, EVP_CTRL_GCM_SET_TAG, kTagBytes, tag);
  EVP_DecryptUpdate(decrypt_, nullptr, &n, reinterpret_cast<const uint8_t*>(header.data()),
                    static_cast<int>(header.size()));
  auto* out = reinterpret_cast<uint8_t*>(plain);
  if (data_bytes != 0) EVP_DecryptUpdate(decrypt_, out, &n, in, static_cast<int>(data_bytes));
  uint8_t rest[16];
  if (EVP_DecryptFinal_ex(decrypt_, rest, &n) != 1) return false;
  seen->note(counter);  // only authentic messages move the window
  return true;
}

}  // namespace rondo::net
