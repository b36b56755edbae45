// Communicator: one rank's end of a group of ranks, and the collectives on it. The C++ twin of rondo.h, same semantics.
//
// Thread safety: see rondo.h.
#pragma once

#include <atomic>
#include <cstdint>
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

/// Ends from another thread what makes communicators: an init, split, shrink or grow that was given the token (Config)
/// returns kAborted at most 100 ms after raise(). Copies are the same token. Thread safety: any thread.
class RONDO_API AbortToken {
 public:
  AbortToken();
  void raise() const { raised_->store(true, std::memory_order_release); }
  bool raised() const { return raised_->load(std::memory_order_acquire); }
  const std::atomic<bool>* flag() const { return raised_.get(); }

 private:
  std::shared_ptr<std::atomic<bool>> raised_;
};

/// Where all buffers of a communicator lie, on all its ranks.
enum class Memory : uint8_t { kHost = RONDO_MEMORY_HOST, kCuda = RONDO_MEMORY_CUDA };

struct Config {
  double deadline_s = 0;       // 0: RONDO_TIMEOUT_S or 600
  double init_deadline_s = 0;  // 0: RONDO_INIT_TIMEOUT_S or 120
  std::optional<AbortToken> abort = {};  // children made by split, shrink and grow inherit it
  std::string settings = {};  // lines as in a configuration file, stronger than it and the environment (docs/settings.md)
  Memory memory = Memory::kHost;
  /// Of kCuda: this rank's device, by CUDA's number; -1: that of the calling thread's current context (else 0).
  int device = -1;
  /// Of kCuda, init_all: a device for each rank, which may be equal; empty: rank r takes device r modulo their number.
  std::vector<int> devices = {};
};

inline constexpr int kNoColour = RONDO_NO_COLOUR;  // Communicator::split

/// Optional parts of a call; the default is what a plain call does.
struct CallOptions {
  TypeRow* row = nullptr;           // nullptr: uniform_row(dtype)
  double deadline_s = 0;            // 0: the communicator's
  const char* algorithm = nullptr;  // nullptr: the planner's choice
  const void* premul = nullptr;     // Op::kPremulSum: one element of the accumulator type
  bool premul_on_device = false;    // it stands in device memory, in the input's type, and is read when the call runs
  void* stream = nullptr;           // communicators of device memory: the CUDA stream that orders the call
  uint32_t promises = 0;            // RONDO_PROMISE_*
  uint64_t tag = 0;
  // Communicators of device memory: thread blocks of a collective's launch, at most 1024; 0: the communicator's. The
  // lowest upper limit is the strongest. One below what the algorithm needs is kept as far as it can be; a group's
  // launch has as many as its widest call. Equal on all ranks. Host memory and the stream engine have no blocks.
  int min_blocks = 0;
  int max_blocks = 0;
  // Communicators of device memory: a CUDA event, recorded when the kernel that the call is part of has begun with all
  // its blocks (before CUDA 12.3, and where no kernel waits, when the stream has come to the call): what waits for it
  // takes no place on the device that the call needs. Made without timing, for this process, on the call's device. Not
  // recorded where there is nothing to move. While the stream is captured: one event of a group, which is then part of
  // the graph. The call's end does not say that it has been recorded.
  void* launch_event = nullptr;
  bool check_only = false;  // the call is checked as ever, but neither run nor added to a group
};

struct Operation;  // src/engine
class CommunicatorImpl;  // src/api

/// Calls of communicators of device memory are ordered in CallOptions::stream (nullptr: the default stream) and return
/// when they stand there, with or without a Work, which then tells when the device is done. They may be captured into
/// CUDA graphs. What goes wrong later stands in error().

/// An asynchronous operation. Movable; destroying it does not wait. It may outlive its communicator, whose destruction
/// completes it: it then says how it ended.
class RONDO_API Work {
 public:
  Work() = default;
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();
  /// Blocks until the operation is done; drives it meanwhile.
  Status wait();
  /// kInProgress, or how it ended.
  Status test();

 private:
  friend class CommunicatorImpl;
  friend class Communicator;
  std::shared_ptr<struct WorkState> state_;
};

class RONDO_API Communicator {
 public:
  static Expected<UniqueId> make_unique_id();
  /// The id that all ranks get who name the same "host:port" and secret, so that nothing but these two need travel.
  /// Rank 0 passes open: its process listens there (host is one of its own names or addresses) until all ranks have
  /// joined, and the others may come first. Errors: kInvalidArgument, kSystem (the name is unknown, the port is taken).
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
  /// What its ranks talk through: "inproc" (threads), "shm" (processes of a host), "shm+tcp", "shm+ucx" (several hosts,
  /// and shared memory on each), "tcp", "ucx" (also on one host), "cuda_p2p". O(1).
  std::string_view transport() const;

  /// in, out: count_elems. Blocks when work is nullptr. Errors: kInvalidArgument, kMismatch, kTimeout, kPeerLost,
  /// kAborted, kUnsupported. Steps and bytes: those of the plan's algorithm (explain_plan).
  Status all_reduce(const void* in, void* out, uint64_t count_elems, Dtype dtype, Op op,
                    const CallOptions* options = nullptr, Work* work = nullptr);
  /// in: size() * count_elems, out: count_elems.
  Status reduce_scatter(const void* in, void* out, uint64_t count_elems, Dtype dtype, Op op,
                        const CallOptions* options = nullptr, Work* work = nullptr);
  /// in: count_elems, out: size() * count_elems.
  Status all_gather(const void* in, void* out, uint64_t count_elems, Dtype dtype,
                    const CallOptions* options = nullptr, Work* work = nullptr);

  /// in of the root into out of all. in: count_elems, used on the root alone, where it may be out.
  Status broadcast(const void* in, void* out, uint64_t count_elems, Dtype dtype, Rank root,
                   const CallOptions* options = nullptr, Work* work = nullptr);
  /// The sum of all in, into out of the root. out: count_elems, used on the root alone.
  Status reduce(const void* in, void* out, uint64_t count_elems, Dtype dtype, Op op, Rank root,
                const CallOptions* options = nullptr, Work* work = nullptr);
  /// Part p of in goes to rank p, where it becomes part rank() of out. in, out: size() * count_elems; never in place.
  Status all_to_all(const void* in, void* out, uint64_t count_elems, Dtype dtype, const CallOptions* options = nullptr,
                    Work* work = nullptr);
  /// Every rank's in becomes its part of the root's out. in: count_elems; out: size() * count_elems, on the root alone.
  Status gather(const void* in, void* out, uint64_t count_elems, Dtype dtype, Rank root,
                const CallOptions* options = nullptr, Work* work = nullptr);
  /// Part p of the root's in becomes rank p's out. in: size() * count_elems, on the root alone; out: count_elems.
  Status scatter(const void* in, void* out, uint64_t count_elems, Dtype dtype, Rank root,
                 const CallOptions* options = nullptr, Work* work = nullptr);
  /// Returns when all ranks have called it.
  Status barrier(const CallOptions* options = nullptr, Work* work = nullptr);

  /// One message from this rank to `peer`, which calls recv with the same count and type; calls between two ranks match
  /// in their order. May return before the peer has received (up to 2 MiB lie in the connection), so that no program
  /// should depend on it: calls that wait for each other belong into a group. peer may be this rank. Zero elements: no
  /// message.
  Status send(const void* buffer, uint64_t count_elems, Dtype dtype, Rank peer, const CallOptions* options = nullptr,
              Work* work = nullptr);
  Status recv(void* buffer, uint64_t count_elems, Dtype dtype, Rank peer, const CallOptions* options = nullptr,
              Work* work = nullptr);

  /// all_gather in which rank r gives counts[r] elements, which every rank finds at out + offsets[r] (nullptr: one after
  /// the other). counts, offsets: size() values, in elements, read before the call returns; counts equal on all ranks,
  /// offsets given by all ranks or by none. Zero counts are allowed. In place: in == out + offsets[rank()].
  Status all_gather_v(const void* in, void* out, const uint64_t* counts, const uint64_t* offsets, Dtype dtype,
                      const CallOptions* options = nullptr, Work* work = nullptr);
  /// reduce_scatter in which rank r gets the counts[r] elements that stand at in + offsets[r]. As all_gather_v.
  Status reduce_scatter_v(const void* in, void* out, const uint64_t* counts, const uint64_t* offsets, Dtype dtype,
                          Op op, const CallOptions* options = nullptr, Work* work = nullptr);
  /// in_counts[p] elements at in + in_offsets[p] go to rank p; out_counts[p] from rank p come to out + out_offsets[p].
  /// A rank knows only its own counts: each pair of ranks checks that they agree on theirs (kMismatch).
  Status all_to_all_v(const void* in, const uint64_t* in_counts, const uint64_t* in_offsets, void* out,
                      const uint64_t* out_counts, const uint64_t* out_offsets, Dtype dtype,
                      const CallOptions* options = nullptr, Work* work = nullptr);

  /// Device memory that this rank's connections have taken so far, in bytes; 0 of communicators of host memory.
  uint64_t device_bytes() const;

  /// Memory that all ranks can reach: calls whose buffers all lie in such memory may go straight from buffer to buffer.
  /// Collective, equal bytes on all ranks; page-aligned, zeroed. Where ranks are processes, each maps every other's: at
  /// most the init deadline, errors the same on all ranks. On devices at most 1024 such regions live at once. Errors:
  /// kInvalidArgument, kExhausted, kMismatch (another call, other bytes), kTimeout, kPeerLost, kAborted, kSystem.
  Expected<void*> alloc(uint64_t bytes);
  /// Collective. On devices waits for this rank's calls; no replay of a graph that holds a call on this memory may be
  /// under way or follow. Freed with the communicator otherwise. Errors: kInvalidArgument, those of alloc; after an
  /// error the memory stays until the communicator ends.
  Status free(void* ptr);

  /// Memory of the caller's own, which alloc did not make, for the same purpose; on devices memory of cuMemAlloc
  /// (cudaMalloc, a tensor of PyTorch) on this rank's device, all or part of one allocation. Collective; bytes may
  /// differ between ranks. Other processes open an allocation once, however many registrations lie in it.
  ///
  /// At every call each rank looks whether its buffers still belong to the allocation that it has registered. When one
  /// does not, or was never registered, all ranks run the call through staging memory (explain_plan names both ways);
  /// a captured call decides when it is captured. That is a safety net: until it is deregistered, or the
  /// communicator destroyed, on all ranks, other processes have it mapped, and CUDA leaves undefined what freeing it
  /// then does.
  ///
  /// Where threads reach one another's memory anyway nothing is exchanged and the call is not collective, nor where no
  /// call goes from buffer to buffer (by streams, through host memory, device_direct = off): it is noted, no more.
  /// Errors: kInvalidArgument (memory of another device, beyond its allocation, registered already), kUnsupported
  /// (memory that other processes cannot open: managed, pooled, of cuMemCreate; host memory between processes), those
  /// of alloc. O(ranks) opened handles.
  Status register_memory(void* ptr, uint64_t bytes);
  /// Ends it: `ptr` as it was registered, also after its memory was freed. Collective, and waits, as free. When it
  /// returns ok no other process has the memory mapped for it. Errors: kInvalidArgument (not registered), kMismatch
  /// (ranks mean different registrations; none has ended), those of alloc.
  Status deregister_memory(void* ptr);

  // Communicators of other ranks (docs/communicators.md). These calls wait for all ranks that take part, so each rank
  // needs a thread of its own. Parent and children are independent: they may be used, aborted and destroyed in any order.
  // They wait at most the init deadline, and return kAborted when a rank aborts this communicator meanwhile (not shrink).

  /// Collective. Ranks of equal colour get a communicator of their own, ordered by (key, rank); nullptr, and ok, where
  /// colour is kNoColour (or negative). Errors are returned to all ranks: kMismatch, kTimeout (names the ranks that did
  /// not come), kPeerLost, kAborted, kSystem, kInvalidArgument (a rank's config).
  Expected<std::unique_ptr<Communicator>> split(int colour, int key, const Config& config = {});
  /// Collective over the ranks that live and are not in `excluded`, also after an error or abort: they agree on who is
  /// left, and get a communicator of those, in the order of their ranks. A rank that dies meanwhile is left out too.
  /// `excluded` must be equal on all callers; the excluded ranks do not call. Errors: kTimeout (names the ranks that
  /// live but did not come), kMismatch (another rank excluded this one), kAborted (the token), kSystem.
  Expected<std::unique_ptr<Communicator>> shrink(const std::vector<Rank>& excluded = {}, const Config& config = {});
  /// Collective over this communicator's ranks, which keep their ranks, and new_nranks - size() newcomers, which call
  /// init_rank(new_nranks, id, rank) with ranks from size() on. Only rank 0 need pass the id. Errors: those of init_rank.
  Expected<std::unique_ptr<Communicator>> grow(int new_nranks, const UniqueId* id, const Config& config = {});

  /// Waits until this rank's outstanding work is done and returns its first error; after that no call is accepted but
  /// abort, error and shrink. kMismatch too if another rank's last 64 calls are seen to differ from this rank's.
  /// Not needed before destruction, which waits likewise.
  Status finalize();
  /// From any thread.
  void abort();
  /// Ok, or the error after which this communicator refuses work. Never blocks.
  Status error() const;
  /// Which plan a call of this shape gets, and why.
  std::string explain_plan(Collective collective, uint64_t count_elems, Dtype dtype, Op op);
  /// How long the planner expects such a call to take, in microseconds; equal on all ranks. Of options: row, algorithm
  /// and promises count. Errors: kInvalidArgument, kUnsupported (no algorithm that the options leave), and for send and
  /// recv, which have no plan.
  Expected<double> forecast_us(Collective collective, uint64_t count_elems, Dtype dtype, Op op, Rank root = 0,
                               const CallOptions* options = nullptr);

  CommunicatorImpl& impl() { return *impl_; }

 private:
  explicit Communicator(std::unique_ptr<CommunicatorImpl> impl);
  static std::unique_ptr<Communicator> wrap(std::unique_ptr<CommunicatorImpl> impl);
  friend class CommunicatorImpl;
  std::unique_ptr<CommunicatorImpl> impl_;
};

/// Settings that are weaker than any file and stronger than the built-in defaults, as lines of a configuration file:
/// for libraries whose users know them by other names. `from` is what `rondo info` and errors call the source. They
/// replace those of an earlier call, and count for what is made afterwards. Errors: kInvalidArgument. Thread safety:
/// any thread.
RONDO_API Status set_default_settings(const std::string& lines, const std::string& from);

/// Operations that this thread issues between the two run as one batch (see rondo_group_start).
RONDO_API void group_start();
RONDO_API Status group_end();

}  // namespace rondo
