// Group: what a thread has called between ncclGroupStart and ncclGroupEnd. A single call is a group of one.
//
//     start  start  call  call  end        end
//     |      '-- nested: counts only --'    |
//     '-------------------------------------'-- nothing was wrong: everything runs, as one batch of rondo's
//                                              a call was wrong: nothing runs, and end says it again
//
// Communicators of one group are all blocking or all nonblocking (of a child that is made: its parent). Blocking: end
// returns when everything is done. Nonblocking: end leaves a job behind and returns kInProgress. Making communicators
// and using them does not go together in one group; those that are made get a thread each, since each waits for other
// ranks. Thread safety: one per thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "nccl/comm.h"
#include "nccl/operation.h"
#include "rondo/status.h"

namespace rondo::nccl {

/// Something that waits for other ranks: a communicator that is made, or a communicator's end.
struct Setup {
  std::shared_ptr<Comm> made;    // nullptr: this rank gets none
  std::shared_ptr<Comm> parent;  // nullptr: none
  ncclComm_t* out = nullptr;     // where made's handle stands; NULL again when it fails
  std::function<Status()> run;
};

class Group {
 public:
  /// This thread's.
  static Group& mine();

  bool open() const { return depth_ > 0; }
  /// The least version that a communicator's caller knows, of the group that ended last: what its error may be called.
  unsigned ended_version() const { return ended_version_; }
  void start() { ++depth_; }
  Status end();
  /// As end, but what was called is dropped, and *forecast_us says how long it would have taken.
  Status simulate(double* forecast_us);

  /// Run at once (no open group), or put off. Errors are the call's own; they also end an open group.
  Status add(Expected<Operation> operation);
  Status add(Setup setup);
  /// Runs on this thread when everything else of the group is done.
  void add_last(std::function<void()> what);
  /// A call inside of the group went wrong.
  Status fail(Status why);

 private:
  struct Contents {
    std::vector<Operation> operations;
    std::vector<Setup> setups;
    std::vector<std::function<void()>> last;
  };
  enum class Mode { kNone, kBlocking, kNonblocking };
  Status join(const Comm& comm);
  Contents take();
  static Status run(Contents& contents);
  static void withdraw(const std::vector<Setup>& setups);
  static std::vector<std::shared_ptr<Comm>> comms_of(const Contents& contents);

  int depth_ = 0;
  unsigned ended_version_ = 0;
  Mode mode_ = Mode::kNone;
  Status error_;
  Contents contents_;
};

}  // namespace rondo::nccl
