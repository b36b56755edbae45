// Handshake messages of ranks while their devices connect: plain structs as bytes. Each has the sender's error, which
// ends the handshake on all ranks. T has `int32_t error` and `char why[]`. Pure functions.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "rondo/status.h"

namespace rondo {

template <class T>
void set_error(const Status& s, T* to) {
  if (s.ok()) return;
  to->error = static_cast<int32_t>(s.code());
  s.message().copy(to->why, sizeof to->why - 1);
}

/// A rank's message, or its error with its rank.
template <class T>
Expected<T> read_said(const std::string& bytes, size_t rank) {
  T t;
  if (bytes.size() < sizeof t)
    return Status(StatusCode::kMismatch,
                  fmt::format("rank {} runs another version of rondo or makes a different call", rank));
  std::memcpy(static_cast<void*>(&t), bytes.data(), sizeof t);
  if (t.error != 0) return Status(static_cast<StatusCode>(t.error), fmt::format("rank {}: {}", rank, t.why));
  return t;
}

template <class T>
std::string bytes_of(const T& t) {
  return std::string(reinterpret_cast<const char*>(&t), sizeof t);
}

}  // namespace rondo
