// How rondo's Status becomes a ncclResult_t, and where ncclGetLastError finds the sentence that belongs to it.
//
// Errors of this room are Statuses too: kInvalidArgument where NCCL says InvalidArgument, kUnsupported where it says
// InvalidUsage. Thread safety: any thread.
#pragma once

#include <string>
#include <string_view>

#include "nccl/abi.h"
#include "rondo/status.h"

namespace rondo::nccl {

struct Comm;

/// The first version whose callers know ncclTimeout; to older ones 8 is the number of results.
inline constexpr unsigned kVersionWithTimeout = 23003;

/// `version`: what the caller's config said, 0 where there is none.
ncclResult_t result_of(const Status& status, unsigned version);
/// "invalid argument", in our own words; never nullptr.
const char* result_text(ncclResult_t result);

Status bad_argument(std::string text);
Status bad_usage(std::string text);
/// "name is a null pointer"
Status null_argument(std::string_view name);

/// Notes the error's sentence for ncclGetLastError, of `comm` if there is one, logs it, and returns the result code.
/// All entry points end with it.
ncclResult_t report(const Status& status, Comm* comm = nullptr);
/// The same of a call on several communicators, or on one that is not there yet.
ncclResult_t report(const Status& status, unsigned version);
/// The same of an error that was asked for: it is not new, so it is not logged.
ncclResult_t report_again(const Status& status, Comm* comm);
/// Of `comm`; nullptr: of this thread, or else the process's last one. Valid until this thread asks again.
const char* last_error(Comm* comm);

}  // namespace rondo::nccl
