// Comm: what stands behind a ncclComm_t. A rondo::Communicator, once it is made, with what NCCL's interface adds to it:
// states, a background job, reduction operators, registered buffers.
//
//     being made --> ready <--> suspended        a nonblocking call: busy, until its job is done
//          |          |   \--> revoked --.
//          |          |--> finalized ----+--> gone (destroy, abort: the handle is removed)
//          '--------> failed ------------'
//
// Thread safety: NCCL's: one thread at a time for everything but abort, async_error, last_error and note_error, which
// any thread may call at any time, also while another one is blocked in a group with this communicator. Whoever uses a
// Comm holds a shared_ptr, so that an abort elsewhere does not pull it away; the last one ends the rondo communicator.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/forks.h"
#include "nccl/abi.h"
#include "nccl/config.h"
#include "nccl/job.h"
#include "rondo/communicator.h"
#include "rondo/status.h"

namespace rondo::nccl {

/// An operator of ncclRedOpCreatePreMulSum.
struct PremulOperator {
  Dtype dtype = Dtype::kFloat32;
  const void* later = nullptr;       // ncclScalarDevice: read when a call runs
  alignas(8) std::byte now[8] = {};  // ncclScalarHostImmediate: one element of dtype
};

struct Registration {
  void* buffer;
  size_t bytes;
};

struct Comm : std::enable_shared_from_this<Comm> {
  explicit Comm(CommConfig c) : config(std::move(c)) {}
  /// With a handle that finds it.
  static std::shared_ptr<Comm> create(CommConfig config);

  unsigned caller_version() const { return config.version; }
  /// nullptr until it is made.
  Communicator* inner() const { return inner_.load(std::memory_order_acquire); }
  /// By the thread that makes it.
  void become(std::unique_ptr<Communicator> made);

  /// Ok when a call may be made; else why not. Takes a finished job's result.
  Status ready();
  /// As ready, and the communicator takes operations: neither revoked, suspended nor finalized.
  Status usable();
  /// What ncclCommGetAsyncError says. Never blocks.
  Status async_error();
  void note_error(const std::string& text);
  /// An error in a forked child of the process that made it.
  Status check_process() const;
  std::string last_error() const;

  /// The job that now works on it (a nonblocking call).
  void start_job(std::shared_ptr<Job> started);
  /// Returns when no job works on it.
  void wait_for_job();
  /// From any thread: ends what is under way, of all communicators of its job too.
  void abort();

  const CommConfig config;
  const MadeHere made_here;
  ncclComm_t handle = nullptr;
  AbortToken token;               // ends its making
  int device = -1;                // of device memory; of host memory ncclCommInitAll's list
  Memory memory = Memory::kHost;  // where its buffers lie
  uint64_t hash = 0;              // equal on all ranks
  std::atomic<bool> finalized{false}, revoked{false}, suspended{false};
  // One thread at a time: of the thread that calls.
  std::map<int, PremulOperator> operators;
  std::map<void*, std::unique_ptr<Registration>> registrations;
  uint64_t num_children = 0;  // for their hashes
  bool id_pending = false;    // ncclCommGetUniqueId's id waits for its ncclCommGrow

 private:
  std::unique_ptr<Communicator> owned_;
  std::atomic<Communicator*> inner_{nullptr};
  mutable std::mutex mutex_;
  std::shared_ptr<Job> job_;
  Status failure_;
  std::string last_error_;
};

/// Writes a handle where the caller wants it; another thread may read it there at once, in order to abort.
void publish(ncclComm_t* to, ncclComm_t handle);

/// The communicator of a handle, or an error that says what the handle is: also of one that a forked child has from its
/// parent.
Expected<std::shared_ptr<Comm>> find_comm(ncclComm_t handle);

}  // namespace rondo::nccl
