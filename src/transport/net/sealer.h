// Sealer: what a rail carries between hosts, encrypted and authenticated with AES-128-GCM, where that is asked for.
//
//   sealed = ciphertext of the data | counter u64 | tag, 16 bytes
//
// The header before it stays readable, and is authenticated with it. Every pair of ranks counts its messages in each
// direction over each rail; ranks' and rail's numbers and the counter are the nonce, so that one key serves all, and a
// message that comes twice is known. Messages may overtake one another by up to kWindow.
//
// Source: NIST SP 800-38D; the window is that of IPsec (RFC 4303, section 3.4.3). Thread safety: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/types.h"

struct evp_cipher_ctx_st;

namespace rondo::net {

class Sealer {
 public:
  static constexpr size_t kKeyBytes = 16, kTagBytes = 16, kExtraBytes = 8 + kTagBytes;
  static constexpr uint64_t kWindow = 4096;
  using Key = std::array<uint8_t, kKeyBytes>;

  /// nullptr where libcrypto has no such cipher, or no memory.
  static std::unique_ptr<Sealer> create(const Key& key, Rank rank, int nranks, uint8_t rail = 0);
  ~Sealer();
  Sealer(const Sealer&) = delete;
  Sealer& operator=(const Sealer&) = delete;

  /// The sealed form of `data` for `to`: kExtraBytes longer.
  std::string seal(Rank to, std::string_view header, const void* data, size_t bytes);
  /// Opens what `from` has sealed for this rank, `bytes` long, into `plain` (kExtraBytes shorter; may be where it is).
  /// False: it was altered, is meant for another rank, or has come before; `plain` holds anything then.
  bool open(Rank from, std::string_view header, const std::byte* sealed, size_t bytes, std::byte* plain);

 private:
  /// Which of the last kWindow counters of a peer have come.
  struct Seen {
    uint64_t next = 0;  // above all that have come
    std::vector<bool> recent = std::vector<bool>(kWindow);
    bool is_new(uint64_t counter) const;
    void note(uint64_t counter);
  };
  Sealer(Rank rank, int nranks, uint8_t rail);
  using Nonce = std::array<uint8_t, 12>;
  Nonce nonce_of(Rank from, Rank to, uint64_t counter) const;

  const Rank rank_;
  const uint8_t rail_;
  evp_cipher_ctx_st* encrypt_ = nullptr;
  evp_cipher_ctx_st* decrypt_ = nullptr;
  std::vector<uint64_t> sent_;               // by rank
  std::vector<std::unique_ptr<Seen>> seen_;  // by rank, made when something comes
};

}  // namespace rondo::net
