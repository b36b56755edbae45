// What ranks exchange when one of them may have failed: a message, or the status of the rank that has none. An error of
// one rank is then known to all at once, with the rank's number.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/codec.h"
#include "base/status_from_peer.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

/// A status alone, which may be ok.
inline std::string encode_outcome(const Status& s) {
  Encoder e;
  e(static_cast<uint8_t>(s.code()), s.message());
  return e.take();
}
template <class T>
std::string encode_outcome(const Expected<T>& outcome) {
  return outcome.ok() ? encode_outcome(Status()) + encode(*outcome) : encode_outcome(outcome.status());
}

/// The status of `rank`, with its number, and the decoder behind it. Errors also: kMismatch (not an outcome).
inline Status read_status(Decoder& d, size_t rank) {
  const auto code = d.get<uint8_t>();
  const std::string_view why = d.text();
  if (d.ok() && code == 0) return {};
  if (d.ok()) return status_from_peer(code, "rank " + std::to_string(rank) + ": " + std::string(why));
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

/// Collective: the messages of all ranks, by rank, or the error of the lowest rank that has one.
/// gather(std::string_view mine, std::vector<std::string>* all) exchanges bytes between the ranks.
template <class T, class Gather>
Expected<std::vector<T>> exchange_outcomes(const Expected<T>& mine, const Gather& gather) {
  std::vector<std::string> said;
  RONDO_TRY(gather(encode_outcome(mine), &said));
  std::vector<T> all;
  for (size_t r = 0; r < said.size(); ++r) {
    RONDO_TRY_ASSIGN(T theirs, read_outcome<T>(said[r], r));
    all.push_back(std::move(theirs));
  }
  return all;
}

}  // namespace rondo
