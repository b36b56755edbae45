// Converts a Status to a ncclResult_t, and stores the error text for ncclGetLastError. Errors of this room are Statuses
// too: kInvalidArgument for NCCL's InvalidArgument, kUnsupported for InvalidUsage. Thread safety: any thread.
#pragma once

#include <string_view>

#include "base/error.h"
#include "nccl/abi.h"

namespace rondo::nccl {

struct Comm;
// For the entry points, which are outside of the namespace.
using rondo::invalid_argument;
using rondo::Status;
using rondo::unsupported;

/// The first version with ncclTimeout. For older callers 8 is the number of results.
inline constexpr unsigned kVersionWithTimeout = 23003;

/// `version`: from the caller's config, 0 without one.
ncclResult_t result_of(const Status& status, unsigned version);
/// A text such as "invalid argument"; never nullptr.
const char* result_text(ncclResult_t result);

/// "name is a null pointer"
Status null_argument(std::string_view name);

/// Stores the error's text for ncclGetLastError (of `comm` if there is one), logs it, and returns the result code. All
/// entry points end with it.
ncclResult_t report(const Status& status, Comm* comm = nullptr);
/// The same for a call on several communicators, or on one that does not exist yet.
ncclResult_t report(const Status& status, unsigned version);
/// The same for an error that the caller requested: it is not logged again.
ncclResult_t report_again(const Status& status, Comm* comm);
/// The last error of `comm`; for nullptr of this thread, or else of the process. Valid until this thread calls again.
const char* last_error(Comm* comm);

}  // namespace rondo::nccl
