// Group: the calls of a thread between ncclGroupStart and ncclGroupEnd. A single call is a group of one.
//
//     start  start  call  call  end        end
//     |      '-- nested: counts only --'    |
//     '-------------------------------------'-- no error: all calls run, as one batch of rondo's
//                                              an error in a call: nothing runs, and end returns the error again
//
// The communicators of a group must all be blocking or all nonblocking (for a new child: its parent). Blocking: end
// returns when everything is done. Nonblocking: end starts a job and returns kInProgress. A group cannot both make
// communicators and use them. New communicators get a thread each, because each waits for other ranks. Thread safety:
// one per thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "nccl/comm.h"
#include "nccl/operation.h"
#include "rondo/status.h"

namespace rondo::nccl {

/// A task that waits for other ranks: making or ending a communicator.
struct Setup {
  std::shared_ptr<Comm> made;    // nullptr: this rank gets none
  std::shared_ptr<Comm> parent;  // nullptr: none
  ncclComm_t* out = nullptr;     // destination of made's handle; NULL again on failure
  std::function<Status()> run;
};

class Group {
 public:
  /// This thread's group.
  static Group& mine();

  bool open() const { return depth_ > 0; }
  /// The lowest version of the callers in the last group. It determines the error code.
  unsigned ended_version() const { return ended_version_; }
  void start() { ++depth_; }
  Status end();
  /// As end, but drops the calls and sets *forecast_us to their expected time.
  Status simulate(double* forecast_us);

  /// Runs at once (no open group) or later. Errors are the call's own (report_in_group).
  Status add(PendingCall call);
  Status add(Setup setup);
  /// Runs on this thread after all other calls of the group.
  void add_last(std::function<void()> what);
  /// Notes the error of a call in the group: end returns it.
  void fail(const Status& why);

 private:
  struct Contents {
    std::vector<PendingCall> calls;
    std::vector<Setup> setups;
    std::vector<std::function<void()>> last;
  };
  Status join(const Comm& comm);
  Contents take();
  static Status run(Contents& contents);
  static void withdraw(const std::vector<Setup>& setups);
  static std::vector<std::shared_ptr<Comm>> comms_of(const Contents& contents);

  int depth_ = 0;
  unsigned ended_version_ = 0;
  std::optional<bool> blocking_;  // the kind of its communicators, if it has any
  Status error_;
  Contents contents_;
};

/// Adds the making of this rank's communicator to the group. Its ranks meet at `id`, or at NCCL_COMM_ID's address if
/// that is set and may_be_at_place.
Status init_rank(ncclComm_t* out, int nranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config,
                 bool may_be_at_place);

/// Reports the status of a call that may be in a group, which an error ends too. Without a communicator the version of
/// the last group's callers determines the result code.
ncclResult_t report_in_group(const Status& status, Comm* comm = nullptr);
/// As on_comm, for such a call.
template <class Call>
ncclResult_t on_comm_in_group(ncclComm_t handle, Call call) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report_in_group(comm.status());
  return report_in_group(call(**comm), comm->get());
}

}  // namespace rondo::nccl
