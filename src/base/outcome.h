// An outcome is a rank's message, or its status if it has none. Ranks exchange outcomes when one may have failed. All
// ranks then learn of the error together, with the rank's number.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/codec.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

/// True if the byte is one of StatusCode's values.
constexpr bool is_status_code(uint8_t code) {
#define RONDO_X(name, value, text, remedy) \
  if (code == (value)) return true;
  RONDO_STATUS_CODES(RONDO_X)
#undef RONDO_X
  return false;
}

/// Makes an error of a code and a text from a peer, both untrusted.
inline Status status_from_peer(uint8_t code, std::string_view text) {
  const bool known = code > 0 && is_status_code(code);
  return Status(known ? static_cast<StatusCode>(code) : StatusCode::kInternal, std::string(text));
}

/// A status, ok or not, as a message or a field of one.
template <class C>
void fields(C& c, Status& s) {
  auto code = static_cast<uint8_t>(s.code());
  std::string text(s.message());
  c(code, text);
  if constexpr (C::kDecodes) s = code == 0 ? Status() : status_from_peer(code, text);
}

inline std::string encode_outcome(const Status& s) { return encode(s); }
template <class T>
std::string encode_outcome(const Expected<T>& outcome) {
  return outcome.ok() ? encode_outcome(Status()) + encode(*outcome) : encode_outcome(outcome.status());
}

/// Reads the status of `rank`, and adds this number to an error. Errors also: kMismatch (not an outcome).
inline Status read_status(Decoder& d, size_t rank) {
  const auto said = d.get<Status>();
  if (d.ok() && said.ok()) return {};
  if (d.ok()) return Status(said.code(), "rank " + std::to_string(rank) + ": " + std::string(said.message()));
  return Status(StatusCode::kMismatch,
                "rank " + std::to_string(rank) + " runs another version of rondo, or makes another call");
}
inline Status read_outcome(std::string_view bytes, size_t rank) {
  Decoder d(bytes);
  return read_status(d, rank);
}
/// The message of `rank`, or its error.
template <class T>
Expected<T> read_outcome(std::string_view bytes, size_t rank) {
  Decoder d(bytes);
  RONDO_TRY(read_status(d, rank));
  T message = d.get<T>();
  if (!d.finished()) d.fail();
  if (!d.ok()) return read_outcome({}, rank);
  return message;
}

/// Collective: tells all ranks this rank's outcome. gather(bytes, &all) exchanges bytes. Returns all messages by rank,
/// or the error of the first rank that has one: equal on all ranks.
template <class T, class Gather>
Expected<std::vector<T>> exchange_outcomes(const Expected<T>& mine, const Gather& gather) {
  std::vector<std::string> all;
  RONDO_TRY(gather(encode_outcome(mine), &all));
  std::vector<T> messages;
  for (size_t r = 0; r < all.size(); ++r) {
    RONDO_TRY_ASSIGN(T theirs, read_outcome<T>(all[r], r));
    messages.push_back(std::move(theirs));
  }
  return messages;
}

}  // namespace rondo
