// A CUDA driver for tests: any number of devices played on the host, so that all of rondo's CUDA host code runs without
// a GPU, under sanitizers, with ranks as threads and as forked processes.
//
//   FakeCuda cuda(FakeMachine::uniform(2));            // set_driver(...) with a table of its own
//   cuda.add_kernel("my_kernel", {&my_host_function, sizeof(MyArgs)});
//   ... rondo code, which finds devices, streams and kernels ...
//   EXPECT_EQ(cuda.leaks(), "");
//
// What it plays, and how far:
// - device memory is host memory in memfds, at addresses of a region of its own; IPC handles work between processes of
//   one user. Freed memory is poisoned or unmapped and not used again (unless reuse_addresses); whatever is written
//   behind an allocation is found when it is freed. Accesses by copies, fills and stream memory operations are checked
//   against the table of allocations; those by kernels cannot be.
// - streams run in FIFO order, each in a thread of its own, started at the first operation; the legacy stream waits for
//   the blocking ones and they for it. cuMemFree and cuMemFreeHost wait for the whole device, as the driver does.
// - a kernel is a function of the host that plays the whole grid. A launch waits until all its blocks fit beside those
//   that run (FakeMachine::resident_blocks); one that can never fit and whose blocks wait for one another never starts.
//   Where kernels wait for each other without being resident together, this hangs, as a device does. Each process has
//   devices of its own in this respect.
// - capture records and replays with CUDA's dependencies and refusals. Capturing and launching graphs are functions of
//   this class, not of the table: rondo does neither, its callers do.
// - ThreadSanitizer sees CUDA's order and no other: the fake's own locks are hidden from it (quiet.h), and what the
//   driver promises (a launch is after what its thread did before, an operation after those before it in its stream,
//   after events it waits for; the host after what it synchronised with) is told to it. A missing event is a report.
//
// A wait of the host that takes longer than deadline_s ends the program with a list of what every stream is doing.
// In a child forked after the first use every function says CUDA_ERROR_NOT_INITIALIZED, as CUDA does; a child forked
// before that starts clean.
//
// Thread safety: the table's functions from any thread; one FakeCuda at a time in a process, made and destroyed while
// nothing uses the table. The destructor drops what has not begun and waits for kernels that run.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/driver/driver.h"

namespace rondo::testing {

struct FakeDevice {
  std::string name = "Fake GPU";
  cuda::Uuid uuid{};  // all zero: made from the ordinal
  uint32_t pci_domain = 0, pci_bus = 0, pci_device = 0;
  int major = 9, minor = 0;
  int multiprocessors = 132;
  uint64_t memory_bytes = uint64_t{8} << 30;
  std::map<int, int> attributes;  // CUdevice_attribute -> value, instead of what follows from the above
};

/// What one device may do with another's memory.
struct FakePeer {
  bool access = true;
  bool native_atomics = true;
  int performance_rank = 0;
};

struct FakeMachine {
  std::vector<FakeDevice> devices;
  std::vector<std::vector<FakePeer>> peers;  // [from][to]; empty: every device reaches every other
  int driver_version = 13000;
  uint32_t resident_blocks = 0;  // of a device: how many blocks fit at once; 0: one on each multiprocessor
  uint32_t block_threads = 2;    // a block of more threads is played by that many
  double deadline_s = 30;
  bool reuse_addresses = false;  // freed addresses come back soon, as on a device: to find stale tables of addresses

  /// n devices of one kind, on buses 1, 2, ...
  static FakeMachine uniform(int num_devices);
};

/// Plays a whole grid: returns when all blocks have ended. `args` is the kernel's one argument.
using HostKernel = void (*)(const void* args, uint32_t grid, uint32_t block_threads);

struct FakeKernel {
  HostKernel run = nullptr;
  size_t args_bytes = 0;    // of the kernel's one argument
  bool blocks_meet = true;  // blocks wait for one another: a grid that cannot be resident as a whole never ends
  int registers = 32, max_threads = 1024, blocks_per_multiprocessor = 1;
};

class FakeCuda {
 public:
  explicit FakeCuda(FakeMachine machine);
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  /// Kernels that cuModuleGetFunction finds, whatever image was loaded.
  void add_kernel(std::string name, FakeKernel kernel);
  /// Asked for names that were not added.
  void find_kernels_with(std::function<std::optional<FakeKernel>(std::string_view name)> find);

  /// The nth call from now of a function ("cuMemAlloc_v2") returns `error` and does nothing; later ones work again.
  void fail(std::string_view symbol, cuda::Result error, uint64_t nth = 1);
  /// From now on every call that needs the device's context returns `error`, as after a fault of a kernel.
  void break_device(int ordinal, cuda::Result error);
  /// The allocation becomes one of those that have no IPC handles, as cuMemCreate and memory pools make them.
  void forbid_ipc(cuda::DevicePtr ptr);
  /// How often a function was called.
  uint64_t calls(std::string_view symbol) const;
  /// What is left: memory, registrations, mappings, streams, events, modules, contexts, user objects, and what was
  /// written behind an allocation. Empty: nothing.
  std::string leaks() const;

  // Stream capture and graphs, as cuStreamBeginCapture, cuStreamEndCapture, cuGraphInstantiate and cuGraphLaunch.
  cuda::Result begin_capture(cuda::Stream stream, int mode = cuda::kCaptureModeGlobal);
  cuda::Result end_capture(cuda::Stream stream, cuda::Graph* graph);
  cuda::Result launch_graph(cuda::Graph graph, cuda::Stream stream);
  cuda::Result destroy_graph(cuda::Graph graph);  // waits for its last launch
  size_t num_nodes(cuda::Graph graph) const;

 private:
  cuda::Driver table_;
};

}  // namespace rondo::testing
