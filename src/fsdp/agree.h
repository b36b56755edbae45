// One answer for all ranks, so that none goes on, or waits, while another has failed.
#pragma once

#include "fsdp/host_calls.h"

namespace rondo::fsdp {

/// The error of the first rank that has one, with its rank, on all ranks; ok when no rank has one. Collective. Texts
/// are cut to 2 KB.
Status agree(HostCalls& calls, const Status& mine);

}  // namespace rondo::fsdp
