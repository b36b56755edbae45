// Errors received from peers: a code and a text, both untrusted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "rondo/status.h"

namespace rondo {

/// True if the byte is one of StatusCode's values.
constexpr bool is_status_code(uint8_t code) {
#define RONDO_X(name, value, text, remedy) \
  if (code == (value)) return true;
  RONDO_STATUS_CODES(RONDO_X)
#undef RONDO_X
  return false;
}

/// An error for any code.
inline Status status_from_peer(uint8_t code, std::string_view text) {
  const bool known = code > 0 && is_status_code(code);
  return Status(known ? static_cast<StatusCode>(code) : StatusCode::kInternal, std::string(text));
}

}  // namespace rondo
