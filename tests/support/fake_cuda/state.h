// The fake driver's insides: what the opaque handles point to, and the one state of the process. See fake_cuda.h.
//
// Everything here is guarded by State::mutex, taken through Section, unless it says otherwise. Operations run outside
// it.
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

/// One recording of an event: complete when its stream has come to it.
struct Record {
  bool done = false;
  std::chrono::steady_clock::time_point at;
  char token = 0;
};

/// A node of a graph that has to be done, or, for a kernel, to have begun.
struct Dependency {
  size_t node;
  bool begun = false;
  bool operator<(const Dependency& o) const { return std::pair(node, begun) < std::pair(o.node, o.begun); }
};

/// What an operation does. `begun` is to be called when its kernel's blocks have begun; nothing else needs to call it.
using Work = std::function<void(const std::function<void()>& begun)>;

struct Op {
  const char* what = "";
  Work run;
  Shared<Record> begun;                       // done when the operation has begun
  std::function<void(State&)> launched = {};  // of a graph's node: its graph is launched; in a section
  std::vector<std::pair<Shared<cuda::StreamHandle>, uint64_t>> after;  // operations of other streams
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
  uint32_t slot = 0;              // kDevice: of its block's directory
  uintptr_t mapped = 0;           // kImported: what was mapped
  size_t mapped_bytes = 0;
  std::string key = {};  // kImported: of its handle
  uint64_t opened = 1;   // kImported
  bool ipc = true;       // kDevice: has handles
};

/// A memfd of whole 2 MiB, and a page behind them that says which allocations live. Small allocations share one.
struct Block {
  int fd = -1;
  uintptr_t base = 0;
  size_t bytes = 0;
  size_t used = 0;
  uint32_t slots = 0, live = 0;
  std::atomic<uint64_t>* generations = nullptr;  // in the page: by slot, 0: not live
};

struct State {
  explicit State(FakeMachine m);
  ~State();

  FakeMachine machine;
  const uint64_t serial;  // another one for every state
  std::map<std::string, FakeKernel, std::less<>> kernels;
  std::function<std::optional<FakeKernel>(std::string_view)> find_kernel;
  std::atomic<int> pid;           // whose it is; outside the mutex
  std::atomic<bool> used{false};  // outside the mutex
  std::atomic<bool> stopping{false};

  std::mutex mutex;
  std::condition_variable changed;  // an operation has ended, an event is done, blocks have left

  std::map<std::string, uint64_t, std::less<>> num_calls;
  std::map<std::string, std::pair<uint64_t, cuda::Result>, std::less<>> failures;  // at which call, and how

  std::vector<std::unique_ptr<cuda::ContextHandle>> contexts;  // by device
  std::map<cuda::Stream, Shared<cuda::StreamHandle>> streams;
  std::map<cuda::Event, std::unique_ptr<cuda::EventHandle>> events;
  std::map<cuda::Module, std::unique_ptr<cuda::ModuleHandle>> modules;
  std::map<std::string, std::unique_ptr<cuda::FunctionHandle>> functions;
  std::map<cuda::Graph, std::unique_ptr<cuda::GraphHandle>> graphs;
  std::map<cuda::UserObject, std::unique_ptr<cuda::UserObjectHandle>> user_objects;
  std::vector<Shared<Capture>> captures;  // going on
  std::list<std::thread> threads;         // of streams
  int serving = 0;                        // of these threads, those that have not ended
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
/// Of the thread.
cuda::Context current_context();
void set_current_context(cuda::Context context);
/// kSuccess, or why the current thread may not make a call that could disturb a capture; that capture is then invalid.
cuda::Result may_disturb(State& st);
/// The current context, or null with the error in `r`.
cuda::ContextHandle* need_context(State& st, cuda::Result& r);
/// The stream of a handle, or the legacy one; null with the error in `r`.
Shared<cuda::StreamHandle> find_stream(State& st, cuda::Stream stream, cuda::Result& r);
/// Waits in `section` until `ready`; ends the program when that takes too long. In operations: until stopping, too.
void wait_until(State& st, Section& section, const char* what, const std::function<bool()>& ready);
/// Appends an operation to a stream, or a node to the graph that it captures. Not in a section.
cuda::Result submit(cuda::Stream stream, Op op, const std::function<void(cuda::StreamHandle&)>& locked = {});
/// Waits for everything that was submitted to a context's streams.
void synchronize(State& st, cuda::ContextHandle& context);
/// Marks an event's record done, and wakes who waits for it. Not in a section.
void finish(State& st, Record& record);
/// The live allocation that holds all of it; null: none.
Allocation* find_memory(State& st, uintptr_t address, size_t bytes);
void release_memory(State& st);
/// Marks it invalid; everything in it fails from now on.
cuda::Result invalidate(Capture& capture, cuda::Result why);
/// A capturing stream's new node.
void add_node(State& st, cuda::StreamHandle& stream, Op op);
/// Whether this thread is in a host function or a destructor, where CUDA may not be called.
bool& in_callback();

// What the table holds: one function for each of the driver's.
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
  std::set<int> peers;
};

struct StreamHandle {
  ContextHandle* context = nullptr;
  bool blocking = false, legacy = false, destroyed = false, started = false;
  std::condition_variable work;
  std::deque<testing::fake::Shared<testing::fake::Op>> queue;  // its front is running
  uint64_t submitted = 0, completed = 0;
  char done = 0;  // token: what has been completed
  // While it is part of a capture:
  testing::fake::Shared<testing::fake::Capture> capture;
  std::set<testing::fake::Dependency> last;
  std::vector<const void*> last_nodes;  // the same, as cuStreamGetCaptureInfo shows it
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
  int max_dynamic_shared = 48 * 1024;
};

struct UserObjectHandle {
  void* data = nullptr;
  void (*destroy)(void*) = nullptr;
  unsigned count = 0;
};

struct GraphHandle {
  struct Node {
    testing::fake::Op op;
    std::set<testing::fake::Dependency> after;
  };
  std::deque<Node> nodes;  // addresses stay
  std::map<UserObject, unsigned> objects;
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
