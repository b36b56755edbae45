// Comm: the object of a ncclComm_t. It has a rondo::Communicator, once it is made, and NCCL's additions: states, a
// background job, reduction operators, registered buffers.
//
//     being made --> ready <--> suspended        a nonblocking call: busy, until its job is done
//          |          |   \--> revoked --.
//          |          |--> finalized ----+--> gone (destroy, abort: the handle is removed)
//          '--------> failed ------------'
//
// Thread safety: as NCCL: one thread at a time, except for abort, async_error, last_error and note_error. Any thread
// may call these at any time, even while another is blocked in a group with this communicator. Users of a Comm hold a
// shared_ptr, so that an abort in another thread cannot free it. The last one ends the rondo communicator.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/forks.h"
#include "nccl/abi.h"
#include "nccl/config.h"
#include "nccl/result.h"
#include "rondo/communicator.h"
#include "rondo/status.h"

namespace rondo::nccl {

/// An operator of ncclRedOpCreatePreMulSum.
struct PremulOperator {
  Dtype dtype = Dtype::kFloat32;
  const void* later = nullptr;       // ncclScalarDevice: read when the call runs
  alignas(8) std::byte now[8] = {};  // ncclScalarHostImmediate: one element of dtype
};

/// The work of a group of nonblocking calls, on its own thread. Thread safety: any thread.
struct Job {
  std::vector<std::weak_ptr<Comm>> comms;  // the work owns them until it is done
  std::shared_future<Status> result;

  bool done() const { return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  /// Runs `work` on a new thread. The job is stored in its communicators before it begins.
  static void start(const std::vector<std::shared_ptr<Comm>>& comms, std::function<Status()> work);
};

struct Comm : std::enable_shared_from_this<Comm> {
  explicit Comm(CommConfig c) : config(std::move(c)) {}
  /// Also assigns a handle.
  static std::shared_ptr<Comm> create(CommConfig config);

  unsigned caller_version() const { return config.version; }
  /// nullptr until it is made.
  Communicator* inner() const { return inner_.load(std::memory_order_acquire); }
  /// Called by the thread that makes it.
  void become(std::unique_ptr<Communicator> made);

  /// Ok if a call is allowed, else the reason. Takes a finished job's result.
  Status ready();
  /// As ready, and also refuses revoked, suspended and finalized communicators.
  Status usable();
  /// The result of ncclCommGetAsyncError. Never blocks.
  Status async_error();
  void note_error(const std::string& text);
  /// Returns an error in a forked child of the process that made it.
  Status check_process() const;
  std::string last_error() const;

  /// Sets the job of a nonblocking call.
  void start_job(std::shared_ptr<const Job> started);
  /// Returns when no job is running, or at the deadline.
  void wait_for_job(std::optional<std::chrono::seconds> most = std::nullopt);
  /// From any thread: ends the running operations, of all communicators of its job.
  void abort();

  const CommConfig config;
  const MadeHere made_here;
  ncclComm_t handle = nullptr;
  AbortToken token;               // aborts its creation
  int device = -1;                // of device memory; for host memory ncclCommInitAll's list
  Memory memory = Memory::kHost;  // memory of its buffers
  uint64_t hash = 0;              // equal on all ranks
  std::atomic<bool> finalized{false}, revoked{false}, suspended{false};
  // Used by the calling thread only.
  std::map<int, PremulOperator> operators;
  std::map<void*, std::unique_ptr<char>> registrations;  // handles of ncclCommRegister
  uint64_t num_children = 0;  // for their hashes
  bool id_pending = false;    // the id of ncclCommGetUniqueId was not used by ncclCommGrow yet

 private:
  std::shared_ptr<const Job> job();

  std::unique_ptr<Communicator> owned_;
  std::atomic<Communicator*> inner_{nullptr};
  mutable std::mutex mutex_;
  std::shared_ptr<const Job> job_;
  Status failure_;
  std::string last_error_;
};

UniqueId rondo_id(const ncclUniqueId& id);
/// The hash of a communicator is equal on all its ranks, so that logs of several ranks can be matched.
uint64_t hash_of_id(const UniqueId& id);
/// For the nth communicator made from a parent, with this colour.
uint64_t hash_of_child(uint64_t parent, uint64_t nth, int colour);

/// Stores a handle for the caller. Another thread may read it at once, to abort.
void publish(ncclComm_t* to, ncclComm_t handle);

/// The communicator of a handle, or an error that describes the handle, also for a handle of the parent in a forked
/// child.
Expected<std::shared_ptr<Comm>> find_comm(ncclComm_t handle);

/// Makes a call on the communicator of a handle, and reports its status.
template <class Call>
ncclResult_t on_comm(ncclComm_t handle, Call call) {
  auto comm = find_comm(handle);
  if (!comm.ok()) return report(comm.status());
  return report(call(**comm), comm->get());
}

}  // namespace rondo::nccl
