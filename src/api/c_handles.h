// The contents of the C ABI's handles, and the reports of errors, for the files that implement it.
//
// Thread safety: LastError has a mutex. For the rest see rondo.h.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/forks.h"
#include "rondo/communicator.h"

namespace rondo {

/// The text of a communicator's last error. Shared with its works, which may outlive it.
struct LastError {
  std::mutex mutex = {};  // several threads may fail on one communicator
  std::string text = {};
  MadeHere made_here = {};  // false after a fork: another thread may have held the mutex
};

}  // namespace rondo

struct rondo_comm {
  std::unique_ptr<rondo::Communicator> comm;
  std::shared_ptr<rondo::LastError> error = std::make_shared<rondo::LastError>();
};
struct rondo_work {
  rondo::Work work;
  std::shared_ptr<rondo::LastError> error;
};
struct rondo_abort {
  rondo::AbortToken token;
};

namespace rondo {

/// Returns the code for the caller and stores the text for rondo_last_error.
rondo_status report(const Status& s, LastError* error);
rondo_status report(const Status& s, rondo_comm* comm = nullptr);
rondo_status bad_argument(const char* name, const std::string& why, rondo_comm* comm = nullptr);
rondo_status null_argument(const char* name, rondo_comm* comm = nullptr);
/// The error names the field.
Status check_memory(const char* field, rondo_memory value);

}  // namespace rondo
