// Errors of making a communicator number its ranks, those of the call that makes it the caller's ranks: translates.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

/// The text with callers[n] in place of n wherever it names a rank ("rank n", "ranks n, m"). Other numbers stay.
std::string in_callers_ranks(std::string_view text, const std::vector<Rank>& callers);
/// The same of an error; ok stays ok.
Status in_callers_ranks(const Status& status, const std::vector<Rank>& callers);

}  // namespace rondo
