// Makes all ranks return the same status, so that no rank goes on, or waits, after another has failed.
#pragma once

#include "fsdp/host_calls.h"

namespace rondo::fsdp {

/// Collective. Returns on all ranks the error of the first rank that has one, with its rank. Returns ok if no rank has
/// an error. Texts are cut to 2 KB.
Status agree(HostCalls& calls, const Status& mine);

}  // namespace rondo::fsdp
