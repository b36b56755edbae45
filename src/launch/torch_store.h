// A client for the parts of PyTorch's TCPStore that publishing a unique id needs.
//
// Under torchrun the agent's store already listens on MASTER_PORT. Rank 0 stores its id there and the others fetch it.
// Wire format (little-endian, PyTorch 2.1 and later; from c10d's TCPStoreBackend.hpp and TCPStoreLibUvBackend.cpp):
//
//   VALIDATE  u8 0, u32 0x3C85F7CE                       no answer; first on every connection
//   SET       u8 1, string key, string value             no answer
//   GET       u8 3, string key                           string value; the key must exist
//   ADD       u8 4, string key, i64 delta                i64 sum
//   CHECK     u8 5, u64 number of keys, string keys...   u8: 0 all exist, 1 not yet
//   string    u64 bytes, bytes
//
// Thread safety: one thread per store.
#pragma once

#include <cstdint>
#include <string>

#include "bootstrap/socket.h"
#include "rondo/status.h"

namespace rondo {

class TorchStore {
 public:
  /// Retries until a connection is made or the deadline passes.
  static Expected<TorchStore> connect(const std::string& host, uint16_t port, const Deadline& deadline);
  /// Uses a connected stream.
  static TorchStore over(Fd fd) { return TorchStore(std::move(fd)); }
  Status set(const std::string& key, std::string_view value, const Deadline& deadline);
  Expected<int64_t> add(const std::string& key, int64_t delta, const Deadline& deadline);
  /// Polls until the key exists, so that an abort is noticed, then returns its value.
  Expected<std::string> get(const std::string& key, const Deadline& deadline);

 private:
  explicit TorchStore(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace rondo
