// Translates the ranks in an error text: from the ranks of a communicator that is being made to those of its parent.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

/// Replaces n by callers[n] in each rank of the text ("rank n", "ranks n, m"). Other numbers stay.
std::string in_callers_ranks(std::string_view text, const std::vector<Rank>& callers);
/// Does the same for an error. Ok stays ok.
Status in_callers_ranks(const Status& status, const std::vector<Rank>& callers);

}  // namespace rondo
