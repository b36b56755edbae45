// Internals of the fake driver: the objects of the opaque handles, and the process's state. See fake_cuda.h.
//
// State::mutex, locked by Section, guards everything here unless stated otherwise. Operations run without it.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <list>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "support/fake_cuda/fake_cuda.h"
#include "support/fake_cuda/quiet.h"

namespace rondo::testing::fake {

struct Capture;
struct State;

/// One recording of an event: complete when its stream has reached it.
struct Record {
  bool done = false;
  std::chrono::steady_clock::time_point at;
  char token = 0;
};

/// A node of a graph that must have ended or, for a kernel, begun.
struct Dependency {
  size_t node;
  bool begun = false;
  bool operator<(const Dependency& o) const { return std::pair(node, begun) < std::pair(o.node, o.begun); }
};

/// The work of an operation. Kernels call `begun` when their blocks have begun; other operations need not.
using Work = std::function<void(const std::function<void()>& begun)>;

struct Op {
  const char* what = "";
  Work run;
  Shared<Record> begun;                       // done when the operation has begun
  std::function<void(State&)> launched = {};  // for a graph node: its graph is launched; in a section
  std::vector<std::pair<Shared<cuda::StreamHandle>, uint64_t>> after;  // operations of other streams
  Shared<Op> ahead;                                                    // in its hardware queue
  bool has_begun = false;
};

/// Device, pinned, registered or imported memory.
struct Allocation {
  enum class Kind { kDevice, kPinned, kRegistered, kImported };
  Kind kind;
  uintptr_t base;
  size_t bytes;
  int device;
  uint64_t id;
  struct Block* block = nullptr;  // kDevice
  uint32_t slot = 0;              // kDevice: in its block's directory
  uintptr_t mapped = 0;           // kImported: the mapping
  size_t mapped_bytes = 0;
  std::string key = {};  // kImported: of its handle
  uint64_t opened = 1;   // kImported
  bool ipc = true;       // kDevice: has IPC handles
};

/// A memfd of whole 2 MiB, and a page after them with the live allocations. Small allocations share one.
struct Block {
  int fd = -1;
  uintptr_t base = 0;
  size_t bytes = 0;
  size_t used = 0;
  uint32_t slots = 0, live = 0;
  std::atomic<uint64_t>* generations = nullptr;  // in that page: by slot, 0: not live
};

struct State {
  explicit State(FakeMachine m);
  ~State();

  FakeMachine machine;
  const uint64_t serial;  // unique for each state
  std::map<std::string, FakeKernel, std::less<>> kernels;
  std::function<std::optional<FakeKernel>(std::string_view)> find_kernel;
  std::atomic<int> pid;           // the owner's; outside the mutex
  std::atomic<bool> used{false};  // outside the mutex
  std::atomic<bool> stopping{false};

  std::mutex mutex;
  std::condition_variable changed;  // an operation or event is done, or blocks have left

  std::map<std::string, uint64_t, std::less<>> num_calls;
  std::map<std::string, std::pair<uint64_t, cuda::Result>, std::less<>> failures;  // call number and error

  std::vector<std::unique_ptr<cuda::ContextHandle>> contexts;  // by device
  std::map<cuda::Stream, Shared<cuda::StreamHandle>> streams;
  std::map<cuda::Event, std::unique_ptr<cuda::EventHandle>> events;
  std::map<cuda::Module, std::unique_ptr<cuda::ModuleHandle>> modules;
  std::map<std::string, std::unique_ptr<cuda::FunctionHandle>> functions;
  std::map<cuda::Graph, std::unique_ptr<cuda::GraphHandle>> graphs;
  std::vector<Shared<Capture>> captures;  // active
  std::vector<Shared<Op>> queue_ends;     // by device and hardware queue
  std::list<std::thread> threads;         // of streams
  // Threads in a call that waits for streams with the driver's lock, as a driver does (seen with 580.159): a copy to
  // pageable memory, and the loading of a module, which needs an idle context.
  int lock_holders = 0;
  int serving = 0;                        // number of these threads that have not ended
  uint64_t next_id = 1;

  uintptr_t region = 0, region_end = 0, region_next = 0;
  std::multimap<size_t, uintptr_t> free_addresses;
  std::map<uintptr_t, Allocation> memory;  // by base
  std::list<Block> blocks;
  std::vector<Block*> open_block;  // by device
  std::vector<uint64_t> memory_used;
  std::vector<uint32_t> blocks_resident;  // by device
  std::string damage;
};

State& state();
/// Of the current thread.
cuda::Context current_context();
void set_current_context(cuda::Context context);
/// kSuccess, or why this thread must not make a call that could disturb a capture. That capture is then invalid.
cuda::Result may_disturb(State& st);
/// The current context, or null with the error in `r`.
cuda::ContextHandle* need_context(State& st, cuda::Result& r);
/// The stream of a handle, the legacy stream or the thread's; null with the error in `r`.
Shared<cuda::StreamHandle> find_stream(State& st, cuda::Stream stream, cuda::Result& r);
/// Waits in `section` until `ready`. Ends the program if that takes too long. In operations: until stopping, too.
void wait_until(State& st, Section& section, const char* what, const std::function<bool()>& ready);
/// Waits in `section` until no other thread waits in the driver with its lock.
void wait_for_lock(State& st, Section& section);
/// Appends an operation to a stream, or a node to the graph that it captures. Not in a section.
cuda::Result submit(cuda::Stream stream, Op op, const std::function<void(cuda::StreamHandle&)>& locked = {});
/// Waits for all submitted operations of a context's streams.
void synchronize(State& st, cuda::ContextHandle& context);
/// Marks an event's record done and wakes its waiters. Not in a section.
void finish(State& st, Record& record);
/// The live allocation that contains the whole range, or null.
Allocation* find_memory(State& st, uintptr_t address, size_t bytes);
void release_memory(State& st);
/// Marks it invalid. All its operations fail from now on.
cuda::Result invalidate(Capture& capture, cuda::Result why);
/// Adds a node of a capturing stream.
void add_node(State& st, cuda::StreamHandle& stream, Op op);
/// True if this thread is in a host function or a destructor, where CUDA must not be called.
bool& in_callback();

// The table: one function for each driver function.
#define RONDO_X(member, symbol, args) cuda::Result fake_##member args;
using namespace rondo::cuda;  // NOLINT: the prototypes name the driver's types
inline constexpr Result kErrorCaptureImplicit = 906;
RONDO_CUDA_DRIVER(RONDO_X)
#undef RONDO_X

}  // namespace rondo::testing::fake

namespace rondo::cuda {

struct ContextHandle {
  int device = 0;
  int retained = 0;
  Result broken = kSuccess;
  testing::fake::Shared<StreamHandle> legacy;
  std::map<std::thread::id, testing::fake::Shared<StreamHandle>> of_threads;
  std::set<int> peers;
  uint32_t next_queue = 0;  // of the next stream
};

struct StreamHandle {
  ContextHandle* context = nullptr;
  bool blocking = false, legacy = false, destroyed = false, started = false;
  bool of_thread = false;       // a thread's CU_STREAM_PER_THREAD
  uint32_t hardware_queue = 0;  // of its device
  std::condition_variable work;
  std::deque<testing::fake::Shared<testing::fake::Op>> queue;  // its front is running
  uint64_t submitted = 0, completed = 0;
  char done = 0;  // token: completed operations
  // While it is part of a capture:
  testing::fake::Shared<testing::fake::Capture> capture;
  std::set<testing::fake::Dependency> last;
  std::vector<const void*> last_nodes;  // the same, for cuStreamGetCaptureInfo
};

struct EventHandle {
  unsigned flags = 0;
  testing::fake::Shared<testing::fake::Record> last;
  // Recorded in a capture:
  testing::fake::Shared<testing::fake::Capture> capture;
  std::set<testing::fake::Dependency> nodes;
};

struct ModuleHandle {};

struct FunctionHandle {
  std::string name;
  testing::FakeKernel kernel;
};

struct GraphHandle {
  struct Node {
    testing::fake::Op op;
    std::set<testing::fake::Dependency> after;
  };
  std::deque<Node> nodes;                           // with stable addresses
  testing::fake::Shared<StreamHandle> last_stream;  // of its last launch
  uint64_t last_submitted = 0;
};

}  // namespace rondo::cuda

namespace rondo::testing::fake {

struct Capture {
  uint64_t id = 0;
  int mode = 0;
  std::thread::id thread;
  cuda::StreamHandle* origin = nullptr;
  cuda::GraphHandle* graph = nullptr;
  std::set<cuda::StreamHandle*> streams;
  bool invalid = false;
};

}  // namespace rondo::testing::fake
