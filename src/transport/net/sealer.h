// Sealer: optional encryption and authentication of a rail's data with AES-128-GCM.
//
//   sealed = ciphertext of the data | counter u64 | tag, 16 bytes
//
// The header before it stays readable and is authenticated too. Every pair of ranks counts its messages in each
// direction over each rail. The ranks, the rail and the counter form the nonce: one key serves all, and a repeated
// message is detected. Messages may overtake each other by up to kWindow.
//
// Source: NIST SP 800-38D; the window is IPsec's (RFC 4303, section 3.4.3). Thread safety: none.
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

  /// nullptr if libcrypto lacks the cipher, or memory.
  static std::unique_ptr<Sealer> create(const Key& key, Rank rank, int nranks, uint8_t rail = 0);
  ~Sealer();
  Sealer(const Sealer&) = delete;
  Sealer& operator=(const Sealer&) = delete;

  /// The sealed form of `data` for `to`: kExtraBytes longer.
  std::string seal(Rank to, std::string_view header, const void* data, size_t bytes);
  /// Opens a message of `bytes` bytes that `from` has sealed for this rank into `plain` (kExtraBytes shorter; may be
  /// the same memory). False: it was altered, is for another rank, or arrived before; the content of `plain` is then
  /// undefined.
  bool open(Rank from, std::string_view header, const std::byte* sealed, size_t bytes, std::byte* plain);

 private:
  /// A peer's last kWindow counters: a bit for each, set if it was received.
  struct Seen {
    uint64_t next = 0;  // above all received counters
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
  std::vector<std::unique_ptr<Seen>> seen_;  // by rank, made on the first message
};

}  // namespace rondo::net
