// What the C ABI's handles hold, for the files that implement it.
//
// Thread safety: LastError is locked; the rest as rondo.h says.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/forks.h"
#include "rondo/communicator.h"

namespace rondo {

/// The sentence of a communicator's last error. Shared with its works, which may outlive it.
struct LastError {
  std::mutex mutex = {};  // several threads may fail on one communicator
  std::string text = {};
  MadeHere made_here = {};  // else another thread may have held the mutex when this process was forked
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

/// The code for the caller, and the sentence for rondo_last_error.
rondo_status report(const Status& s, LastError* error);
inline rondo_status report(const Status& s, rondo_comm* comm = nullptr) {
  return report(s, comm != nullptr ? comm->error.get() : nullptr);
}
rondo_status bad_argument(const char* name, const std::string& why, rondo_comm* comm = nullptr);
rondo_status null_argument(const char* name, rondo_comm* comm = nullptr);
/// Errors: kInvalidArgument, naming the field.
Status check_memory(const char* field, rondo_memory value);
/// nullptr: the defaults. An older caller's shorter struct is taken, a newer one's only as far as it asks nothing more.
Expected<Config> config_of(const rondo_config* config);

}  // namespace rondo
