// Communicator: one rank's handle of a set of ranks, and its collectives. This is the C++ form of rondo.h. Semantics
// and thread safety are the same.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/rondo.h"
#include "rondo/status.h"
#include "rondo/types.h"

namespace rondo {

using UniqueId = rondo_unique_id;

/// Lets another thread abort an init, split, shrink or grow. If the call has this token in its Config, it returns
/// kAborted within 100 ms after raise(). Copies share one flag. Thread safety: any thread.
class RONDO_API AbortToken {
 public:
  AbortToken();
  void raise() const { raised_->store(true, std::memory_order_release); }
  bool raised() const { return raised_->load(std::memory_order_acquire); }
  const std::atomic<bool>* flag() const { return raised_.get(); }

 private:
  std::shared_ptr<std::atomic<bool>> raised_;
};

/// The memory of all buffers of a communicator, equal on all its ranks.
enum class Memory : uint8_t { kHost = RONDO_MEMORY_HOST, kCuda = RONDO_MEMORY_CUDA };

struct Config {
  double deadline_s = 0;       // 0: RONDO_TIMEOUT_S or 600
  double init_deadline_s = 0;  // 0: RONDO_INIT_TIMEOUT_S or 120
  std::optional<AbortToken> abort = {};  // children made by split, shrink and grow inherit it
  std::string settings = {};  // lines of a configuration file; override the file and the environment (docs/settings.md)
  Memory memory = Memory::kHost;
  /// kCuda: this rank's CUDA device number; -1: the device of the calling thread's current context (else 0).
  int device = -1;
  /// kCuda, init_all: one device per rank, repeats allowed; empty: rank r uses device r modulo their number.
  std::vector<int> devices = {};
};

inline constexpr int kNoColour = RONDO_NO_COLOUR;  // Communicator::split
inline constexpr Rank kAnyRank = RONDO_ANY_RANK;   // Communicator::recv with CallOptions::match_tags

/// Optional parts of a call. The defaults give a plain call.
///
/// A call on device memory is ordered in `stream` (nullptr: the default stream). It returns when it is enqueued. With a
/// Work, the Work reports when the device is done. error() reports later failures. A CUDA graph can capture the call. A
/// deadline ends the call but not its stream. Later work of the stream may run before the host sees the error. The rest
/// of the output is then filled with bytes 0xFF, a NaN of every float type (docs/cuda.md has the exceptions).
struct CallOptions {
  TypeRow* row = nullptr;           // nullptr: uniform_row(dtype)
  double deadline_s = 0;            // 0: the communicator's
  const char* algorithm = nullptr;  // nullptr: the planner's choice
  const void* premul = nullptr;     // Op::kPremulSum: one element of the accumulator type
  bool premul_on_device = false;    // premul is in device memory, of the input's type, and is read when the call runs
  void* stream = nullptr;           // communicators of device memory: the CUDA stream that orders the call
  uint32_t promises = 0;            // RONDO_PROMISE_*
  uint64_t tag = 0;                 // shown in traces and errors; see match_tags
  // Device memory only: limits of the number of thread blocks in the call's launch, at most 1024. 0: the communicator's
  // limits. The lowest upper limit is used. If the algorithm needs more blocks, the launch has as few as possible. The
  // calls of a group share a launch, with the most lanes and the most channels of any of them. Equal on all ranks.
  // Ignored for host memory and by the stream engine.
  int min_blocks = 0;
  int max_blocks = 0;
  // Device memory only: a CUDA event. It is recorded when the driver reports that all blocks of the call's kernel have
  // begun, at the latest when the kernel ends. (Before CUDA 12.3, and if no kernel waits, it is recorded when the
  // stream reaches the call.) Work that waits for the event cannot occupy a part of the device that
  // the call needs. The call must not depend on that work. Create the event without timing, in this process, on the
  // call's device. It is not recorded if there is no data to move. During capture, one event of a group becomes part of
  // the graph. The call may end before the event is recorded.
  void* launch_event = nullptr;
  // send and recv of host memory. true: they match by tag, false: by order (see Communicator::send). Equal on both
  // ranks.
  bool match_tags = false;
  // recv with match_tags: gets the sender's rank before the call is done. nullptr: nothing.
  Rank* source = nullptr;
  bool check_only = false;  // validates the call, but neither runs it nor adds it to a group
};

struct Operation;  // src/engine
class CommunicatorImpl;  // src/api

/// An asynchronous operation. It can be moved. Its destruction does not wait. It may outlive its communicator: the
/// destruction of the communicator completes the operation, and the Work then reports the result.
class RONDO_API Work {
 public:
  Work() = default;
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();
  /// Waits until the operation is done, and drives it meanwhile.
  Status wait();
  /// As wait(), for at most this long. kInProgress: it is not done, and goes on.
  Status wait_for(double seconds);
  /// Returns kInProgress, or the final status.
  Status test();
  /// Calls fn(final status) once, when the operation is done, also if it fails; not in a forked child. fn runs on a
  /// thread of rondo's own. The functions of the works of a communicator, and of communicators that were made from it,
  /// run one after the other. fn may make calls and wait for them. But the order of functions may differ between ranks,
  /// so it must not wait for a call that another rank makes in a later function. It must not throw. A work may have
  /// several functions. They are called even if the Work and the communicator are gone. Errors: kInvalidArgument,
  /// kUnsupported (a forked child), kExhausted or kSystem (the thread cannot be started). Thread safety: any thread.
  Status on_done(std::function<void(const Status&)> fn);

 private:
  friend class CommunicatorImpl;
  friend class Communicator;
  std::shared_ptr<struct WorkState> state_;
};

class RONDO_API Communicator {
 public:
  static Expected<UniqueId> make_unique_id();
  /// Returns the same id on all ranks that pass the same "host:port" and secret. The ranks need to exchange nothing
  /// else. Rank 0 passes open = true. Its process then listens there until all ranks have joined, and host must be one
  /// of its names or addresses. The other ranks may call earlier. Errors: kInvalidArgument, kSystem (unknown name, port
  /// in use).
  static Expected<UniqueId> unique_id_at(const std::string& host_port, const std::string& secret, bool open);
  static Expected<std::unique_ptr<Communicator>> init_rank(int nranks, const UniqueId& id, Rank rank,
                                                           const Config& config = {});
  static Expected<std::vector<std::unique_ptr<Communicator>>> init_all(int nranks, const Config& config = {});
  static Expected<std::unique_ptr<Communicator>> init_env(const Config& config = {});
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const;
  int size() const;
  /// Returns "inproc" (threads), "shm" (processes on one host), "shm+tcp", "shm+ucx" (several hosts, shared memory on
  /// each), "tcp" or "ucx" (also on one host). On device memory it is the transport beside cuda_p2p. O(1).
  std::string_view transport() const;

  /// Stores the sum of all inputs in every out. in, out: count_elems. Blocks if work is nullptr. Errors:
  /// kInvalidArgument, kMismatch, kTimeout, kPeerLost, kAborted, kUnsupported. explain_plan names the algorithm, which
  /// determines steps and bytes.
  Status all_reduce(const void* in, void* out, uint64_t count_elems, Dtype dtype, Op op,
                    const CallOptions* options = nullptr, Work* work = nullptr);
  /// Stores part rank() of the sum of all inputs in out. in: size() * count_elems, out: count_elems.
  Status reduce_scatter(const void* in, void* out, uint64_t count_elems, Dtype dtype, Op op,
                        const CallOptions* options = nullptr, Work* work = nullptr);
  /// Stores every rank's input as its part of every out. in: count_elems, out: size() * count_elems.
  Status all_gather(const void* in, void* out, uint64_t count_elems, Dtype dtype,
                    const CallOptions* options = nullptr, Work* work = nullptr);

  /// Copies the root's in to every rank's out. in: count_elems, used on the root only, where it may equal out.
  Status broadcast(const void* in, void* out, uint64_t count_elems, Dtype dtype, Rank root,
                   const CallOptions* options = nullptr, Work* work = nullptr);
  /// Stores the sum of all inputs in the root's out. in, out: count_elems; out is used on the root only.
  Status reduce(const void* in, void* out, uint64_t count_elems, Dtype dtype, Op op, Rank root,
                const CallOptions* options = nullptr, Work* work = nullptr);
  /// Sends part p of in to rank p, where it becomes part rank() of out. in, out: size() * count_elems; never in place.
  Status all_to_all(const void* in, void* out, uint64_t count_elems, Dtype dtype, const CallOptions* options = nullptr,
                    Work* work = nullptr);
  /// Stores every rank's input as its part of the root's out. in: count_elems; out: size() * count_elems, on the root
  /// only.
  Status gather(const void* in, void* out, uint64_t count_elems, Dtype dtype, Rank root,
                const CallOptions* options = nullptr, Work* work = nullptr);
  /// Stores part p of the root's input in rank p's out. in: size() * count_elems, on the root only; out: count_elems.
  Status scatter(const void* in, void* out, uint64_t count_elems, Dtype dtype, Rank root,
                 const CallOptions* options = nullptr, Work* work = nullptr);
  /// Returns after all ranks have called it.
  Status barrier(const CallOptions* options = nullptr, Work* work = nullptr);

  /// Sends one message to `peer`, which calls recv with the same count and type. Calls between two ranks match in their
  /// order. send may return before the peer has received the message, because the connection has a buffer. Programs
  /// must not depend on this: put calls that wait for each other into a group. peer may be this rank. With zero
  /// elements there is no message.
  ///
  /// If both calls have match_tags, the message matches by its tag: the oldest recv for which the tag and the sender
  /// are right gets it. recv may pass kAnyRank as peer. Messages of different tags may be received in any order.
  /// Messages of equal tag between two ranks are received in the order of their calls. Calls with and without
  /// match_tags do not match each other, and neither delays the other. With zero elements there is a message. While a
  /// recv waits, messages with other tags from the ranks that it accepts are received into memory of rondo's own. Calls
  /// that use the buffer of a recv with match_tags do not wait for it: wait for it before you make them.
  Status send(const void* buffer, uint64_t count_elems, Dtype dtype, Rank peer, const CallOptions* options = nullptr,
              Work* work = nullptr);
  Status recv(void* buffer, uint64_t count_elems, Dtype dtype, Rank peer, const CallOptions* options = nullptr,
              Work* work = nullptr);

  /// Stores counts[r] elements of rank r at out + offsets[r] on every rank. If offsets is nullptr the parts follow one
  /// another. counts and offsets have size() values, in elements. The call reads them before it returns. counts must be
  /// equal on all ranks. Either all ranks pass offsets or none does. Counts may be zero. In place: in == out +
  /// offsets[rank()].
  Status all_gather_v(const void* in, void* out, const uint64_t* counts, const uint64_t* offsets, Dtype dtype,
                      const CallOptions* options = nullptr, Work* work = nullptr);
  /// Gives rank r the counts[r] elements of the sum at in + offsets[r]. counts and offsets as for all_gather_v.
  Status reduce_scatter_v(const void* in, void* out, const uint64_t* counts, const uint64_t* offsets, Dtype dtype,
                          Op op, const CallOptions* options = nullptr, Work* work = nullptr);
  /// Sends in_counts[p] elements at in + in_offsets[p] to rank p, and stores out_counts[p] elements from rank p at out
  /// + out_offsets[p]. Each rank passes only its own counts. Each pair of ranks checks that its counts agree
  /// (kMismatch).
  Status all_to_all_v(const void* in, const uint64_t* in_counts, const uint64_t* in_offsets, void* out,
                      const uint64_t* out_counts, const uint64_t* out_offsets, Dtype dtype,
                      const CallOptions* options = nullptr, Work* work = nullptr);

  /// Returns the bytes of device memory allocated for this rank's connections so far; 0 for host memory.
  uint64_t device_bytes() const;

  /// Allocates memory that all ranks can access. (If a network connects the ranks, host memory is private to its rank.)
  /// A call whose buffers are all in such memory may copy straight from buffer to buffer. All ranks must call it, with
  /// equal bytes. The memory is page-aligned and zeroed. Processes map each other's memory within the init deadline.
  /// All ranks get the same errors. Devices can have at most 1024 such regions at a time. Errors: kInvalidArgument,
  /// kExhausted, kMismatch (another call, other bytes), kTimeout, kPeerLost, kAborted, kSystem.
  Expected<void*> alloc(uint64_t bytes);
  /// Frees memory of alloc. All ranks must call it. On devices it waits for this rank's calls. Do not run a graph with
  /// a call on this memory at the same time or later. The communicator frees the rest when it ends. Errors:
  /// kInvalidArgument, the errors of alloc. After an error the memory is allocated until the communicator ends.
  Status free(void* ptr);

  /// Makes the caller's own memory accessible to all ranks. On devices this is all or part of one cuMemAlloc allocation
  /// (cudaMalloc, a PyTorch tensor) on this rank's device. All ranks must call it; bytes may differ between ranks.
  /// Other processes open an allocation once for all its registrations.
  ///
  /// Each call checks that its buffers still belong to their registered allocation. If one does not, or was never
  /// registered, all ranks run the call through staging memory (explain_plan names both paths). A captured call checks
  /// this only at capture. Do not rely on the check: other processes have the memory mapped until all ranks deregister
  /// it or destroy the communicator, and the behaviour of CUDA is undefined if mapped memory is freed.
  ///
  /// Sometimes a registration needs no exchange: if ranks are threads that can access each other's memory, or if no
  /// call copies from buffer to buffer (streams, host memory, device_direct = off). Then the ranks need not all call
  /// it. Errors: kInvalidArgument (memory of another device, beyond its allocation, registered already), kUnsupported
  /// (memory that other processes cannot open: managed, pooled, from cuMemCreate; host memory between processes), the
  /// errors of alloc. O(ranks) opened handles.
  Status register_memory(void* ptr, uint64_t bytes);
  /// Ends a registration. `ptr` is the registered pointer. Its memory may already be freed. All ranks must call it. It
  /// waits as free does. When it has returned ok, no other process has the memory mapped for it. Errors:
  /// kInvalidArgument (not registered), kMismatch (ranks pass different registrations; all stay registered), the errors
  /// of alloc.
  Status deregister_memory(void* ptr);

  // These make new communicators from this one (docs/communicators.md). They wait for all participating ranks, at most
  // until the init deadline. Therefore each rank needs its own thread. All but shrink return kAborted if a rank aborts
  // this communicator meanwhile. Parent and children are independent: use, abort and destroy them in any order.

  /// Makes a communicator of the ranks of equal colour, ordered by (key, rank). All ranks must call it. A rank with
  /// kNoColour (or any negative colour) gets ok and nullptr. All ranks get the same errors: kMismatch, kTimeout (names
  /// the missing ranks), kPeerLost, kAborted, kSystem, kInvalidArgument (a rank's config).
  Expected<std::unique_ptr<Communicator>> split(int colour, int key, const Config& config = {});
  /// Makes a communicator of the surviving ranks, in rank order. All live ranks that are not in `excluded` must call
  /// it, also after an error or abort. They agree on the survivors. A rank that dies meanwhile is left out too.
  /// `excluded` must be equal on all callers. Excluded ranks do not call it. Errors: kTimeout (names the ranks that are
  /// alive but did not call), kMismatch (another rank excluded this one), kAborted (the token), kSystem.
  Expected<std::unique_ptr<Communicator>> shrink(const std::vector<Rank>& excluded = {}, const Config& config = {});
  /// Makes a communicator of this one's ranks, which keep their numbers, and of new_nranks - size() newcomers. All
  /// ranks of this communicator must call it. The newcomers call init_rank(new_nranks, id, rank) with ranks from size()
  /// on. Only one rank needs the id, usually rank 0. Errors: those of init_rank.
  Expected<std::unique_ptr<Communicator>> grow(int new_nranks, const UniqueId* id, const Config& config = {});

  /// Waits for this rank's outstanding work and returns its first error. Afterwards operations, alloc, register_memory,
  /// split and grow fail. On host memory, also returns kMismatch if another rank's last 64 calls differ from this
  /// rank's. You need not call it: the destructor waits too.
  Status finalize();
  /// Aborts the communicator on all ranks. It does not wait. On device memory, the destructor then waits at most a
  /// second: work that is queued behind other work of its stream may end later, and everything is then freed in the
  /// background. Any thread may call it.
  void abort();
  /// Returns ok, or the error that stopped this communicator. Never blocks.
  Status error() const;
  /// Returns the plan of such a call, and the reason for it.
  std::string explain_plan(Collective collective, uint64_t count_elems, Dtype dtype, Op op);
  /// Returns the planner's forecast for such a call in microseconds, equal on all ranks. Uses row, algorithm and
  /// promises of options. Errors: kInvalidArgument, kUnsupported (no algorithm satisfies the options; send and recv
  /// have no plan).
  Expected<double> forecast_us(Collective collective, uint64_t count_elems, Dtype dtype, Op op, Rank root = 0,
                               const CallOptions* options = nullptr);

 private:
  explicit Communicator(std::unique_ptr<CommunicatorImpl> impl);
  static Expected<std::unique_ptr<Communicator>> wrap(Expected<std::unique_ptr<CommunicatorImpl>> made);
  friend class CommunicatorImpl;
  friend CommunicatorImpl& impl_of(Communicator& comm);  // src/api
  std::unique_ptr<CommunicatorImpl> impl_;
};

/// Sets settings from lines of a configuration file. They override only the built-in defaults. A library that has its
/// own names for settings can use it. `from` names the source of the settings. A call replaces the settings of earlier
/// calls and affects communicators that are made later. Errors: kInvalidArgument. Thread safety: any thread.
RONDO_API Status set_default_settings(const std::string& lines, const std::string& from);

/// Begin and end a group: the operations that this thread issues between them run as one batch (rondo_group_start).
RONDO_API void group_start();
RONDO_API Status group_end();

}  // namespace rondo
