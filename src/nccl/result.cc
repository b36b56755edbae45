#include "nccl/result.h"

#include <string>

#include "nccl/comm.h"
#include "nccl/process.h"

namespace rondo::nccl {
namespace {

std::string& thread_error() {
  thread_local std::string text;
  return text;
}

// The message, and the code's remedy if there is one.
std::string sentence_of(const Status& s) {
  std::string text(s.message());
  if (text.empty()) text = status_text(s.code());
  const std::string_view remedy = status_remedy(s.code());
  if (!remedy.empty()) text.append("; ").append(remedy);
  return text;
}

ncclResult_t note(const Status& status, Comm* comm, unsigned version, bool is_new) {
  if (status.code() == StatusCode::kInProgress) return ncclInProgress;
  thread_error() = sentence_of(status);
  if (comm != nullptr) comm->note_error(thread_error());
  process().note_error(thread_error());
  const ncclResult_t result = result_of(status, version);
  if (is_new) process().log().warn(std::string(result_text(result)) + ": " + thread_error());
  return result;
}

}  // namespace

ncclResult_t result_of(const Status& status, unsigned version) {
  switch (status.code()) {
    case StatusCode::kOk: return ncclSuccess;
    case StatusCode::kInvalidArgument: return ncclInvalidArgument;
    case StatusCode::kUnauthorized: return ncclInvalidArgument;  // the id belongs to another communicator
    case StatusCode::kMismatch: return ncclInvalidUsage;
    case StatusCode::kUnsupported: return ncclInvalidUsage;
    case StatusCode::kTimeout: return version >= kVersionWithTimeout ? ncclTimeout : ncclRemoteError;
    case StatusCode::kPeerLost: return ncclRemoteError;
    case StatusCode::kAborted: return ncclRemoteError;
    case StatusCode::kSystem: return ncclSystemError;
    case StatusCode::kCuda: return ncclUnhandledCudaError;
    case StatusCode::kExhausted: return ncclSystemError;
    case StatusCode::kInProgress: return ncclInProgress;
    case StatusCode::kInternal: return ncclInternalError;
  }
  return ncclInternalError;
}

const char* result_text(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "a CUDA call failed (ncclGetLastError names it)";
    case ncclSystemError: return "a system call failed or a limit was reached (ncclGetLastError names it)";
    case ncclInternalError: return "an internal error of rondo: please report it with ncclGetLastError's text";
    case ncclInvalidArgument: return "an argument is invalid (ncclGetLastError names it)";
    case ncclInvalidUsage: return "the call is not possible here (ncclGetLastError gives the reason)";
    case ncclRemoteError: return "another rank was lost, aborted or is missing (ncclGetLastError names it)";
    case ncclInProgress: return "the operation is running";
    case ncclTimeout: return "a deadline passed (ncclGetLastError names the late rank)";
    case ncclNumResults: break;
  }
  return "not a result code of this library";
}

Status null_argument(std::string_view name) { return invalid_argument("{} is a null pointer", name); }

ncclResult_t report(const Status& status, Comm* comm) {
  return status.ok() ? ncclSuccess : note(status, comm, comm != nullptr ? comm->caller_version() : 0, true);
}

ncclResult_t report(const Status& status, unsigned version) {
  return status.ok() ? ncclSuccess : note(status, nullptr, version, true);
}

ncclResult_t report_again(const Status& status, Comm* comm) {
  return status.ok() ? ncclSuccess : note(status, comm, comm->caller_version(), false);
}

const char* last_error(Comm* comm) {
  thread_local std::string copy;
  if (comm != nullptr) copy = comm->last_error();
  else copy = !thread_error().empty() ? thread_error() : process().last_error();
  return copy.c_str();
}

}  // namespace rondo::nccl
