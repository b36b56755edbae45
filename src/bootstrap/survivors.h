// What a rank knows about who is left of a communicator, and what it takes to make one of those: the values on which
// survivors agree (survivors.cc).
//
// Views are joined: the gone of both, and the graver failure. A join is commutative, associative and idempotent, so it
// does not matter in which order, or how often, ranks hear of one another.
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

struct SurvivorView {
  std::vector<bool> excluded;  // by rank: named by the callers; equal on all of them
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
  uint32_t attempt = 0;  // the how manieth shrink of this communicator
  uint32_t phase = 0;    // agreement within it
  uint32_t round = 0;    // of the flooding
  bool decided = false;
  SurvivorView view;
};
std::string encode_view(const ViewMessage& m);
/// Nothing when the bytes are no message about nranks ranks.
std::optional<ViewMessage> decode_view(std::string_view bytes, int nranks);

}  // namespace rondo
