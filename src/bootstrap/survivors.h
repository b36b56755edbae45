// SurvivorView: a rank's knowledge of which ranks of a communicator are gone. Survivors agree on one (survivors.cc).
//
// A join of two views has the gone ranks of both and the more serious failure. Every other failure is more serious than
// kPeerLost. Of two equally serious failures, the join has that of the lower rank. A join is commutative, associative
// and idempotent. Therefore the order and the number of messages do not matter.
//
// Thread safety: values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

/// How serious a failure is, from 0 to 2. kPeerLost is less serious, because another rank's failure may be its cause.
constexpr int gravity(StatusCode code) { return code == StatusCode::kOk ? 0 : code == StatusCode::kPeerLost ? 1 : 2; }

struct SurvivorView {
  std::vector<bool> excluded;  // by rank: excluded by the callers; equal on all of them
  std::vector<bool> gone;      // by rank: dead, departed or excluded
  Rank failed = -1;            // a rank that could not make the communicator; -1: none
  StatusCode code = StatusCode::kOk;
  std::string why;

  void join(const SurvivorView& other);
  void set_failure(Rank rank, const Status& status);
  Status failure() const { return code == StatusCode::kOk ? Status() : Status(code, why); }
  std::vector<Rank> members() const;
  friend bool operator==(const SurvivorView&, const SurvivorView&) = default;
};

/// One message of the agreement.
struct ViewMessage {
  uint32_t attempt = 0;  // ordinal of the shrink of this communicator
  uint32_t phase = 0;    // ordinal of the agreement in this shrink
  uint32_t round = 0;    // round of the flooding in this phase
  bool decided = false;
  SurvivorView view;
};
std::string encode_view(const ViewMessage& m);
/// Decodes a message. Returns nothing if the bytes are not a message about nranks ranks.
std::optional<ViewMessage> decode_view(std::string_view bytes, int nranks);

}  // namespace rondo
