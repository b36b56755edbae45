// A CUDA driver for tests with any number of fake devices on the host, so that all of rondo's CUDA host code runs
// without a GPU, under sanitizers, with ranks as threads and as forked processes.
//
//   FakeCuda cuda(FakeMachine::uniform(2));            // set_driver(...) with its own table
//   cuda.add_kernel("my_kernel", {&my_host_function, sizeof(MyArgs)});
//   ... rondo code, which finds devices, streams and kernels ...
//   EXPECT_EQ(cuda.leaks(), "");
//
// What it implements:
//
// - device memory is host memory in memfds, at addresses of a separate region. IPC handles work between processes of
//   one user. Freed memory is poisoned or unmapped and not reused (unless reuse_addresses). Writes behind an allocation
//   are detected when it is freed. Copies, fills and stream memory operations are checked against the table of
//   allocations, accesses by kernels are not.
// - each stream runs in FIFO order in its own thread, started at the first operation. The legacy stream and the
//   blocking streams wait for each other. Each thread has a CU_STREAM_PER_THREAD. cuMemFree and cuMemFreeHost wait for
//   the whole device, as the driver does.
// - a kernel is a host function that runs the whole grid. A launch waits until all its blocks fit next to the running
//   ones (FakeMachine::resident_blocks). A launch that can never fit and whose blocks wait for one another never
//   starts. Kernels that wait for each other without being resident together hang, as on a device. Each process has its
//   own devices in this respect.
// - capture records and replays with CUDA's dependencies and refusals. Capturing and launching graphs are functions of
//   this class, not of the table: only rondo's callers do that.
// - ThreadSanitizer sees only CUDA's order: the fake's own locks are hidden (quiet.h), and the driver's guarantees are
//   declared (a launch follows earlier work of its thread; an operation follows earlier ones in its stream and events
//   that it waits for; the host follows the work that it synchronised with). A missing event is a report.
//
// A host wait longer than deadline_s ends the program with a list of the streams' operations. In a child forked after
// the first use every function returns CUDA_ERROR_NOT_INITIALIZED, as in CUDA. A child forked before that starts clean.
//
// Thread safety: the table's functions from any thread. Only one FakeCuda at a time in a process, made and destroyed
// while the table is not in use. The destructor drops operations that have not begun and waits for running kernels.
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
  std::map<int, int> attributes;  // CUdevice_attribute -> value, overrides the values above
};

/// A device's access to another's memory.
struct FakePeer {
  bool access = true;
  bool native_atomics = true;
  bool lossy = false;  // what a process writes to another's memory by IPC arrives in its first page only
};

/// Limits of real drivers and devices that the fake has only on request: FAKE_CUDA=queues=2,operations=16,late,
/// delay_us=50, or some of it. The test presets tsan and asan-ubsan ask for all of them.
struct FakeLimits {
  uint32_t queues = 0;      // streams share so many hardware queues, in order of creation. In a queue an operation
                            // begins after the earlier ones have begun; what is no kernel, after they have ended
  uint32_t operations = 0;  // a submission waits while its stream has so many unfinished operations
  bool late = false;        // launch-completion events come only when the kernel has ended
  uint32_t delay_us = 0;    // an operation begins after a random pause of at most this
  static FakeLimits from_env();
};

struct FakeMachine {
  std::vector<FakeDevice> devices;
  std::vector<std::vector<FakePeer>> peers;  // [from][to]; empty: every device reaches every other
  int driver_version = 13000;
  uint32_t resident_blocks = 0;  // blocks that fit on a device at once; 0: one per multiprocessor
  uint32_t block_threads = 2;    // larger blocks run with this many threads
  double deadline_s = 30;
  FakeLimits limits = FakeLimits::from_env();
  bool reuse_addresses = false;  // freed addresses are soon reused, as on a device: finds stale tables of addresses

  /// n equal devices, on buses 1, 2, ...
  static FakeMachine uniform(int num_devices);
};

/// Runs a whole grid, and returns when all blocks have ended. `args`: the kernel's only argument.
using HostKernel = void (*)(const void* args, uint32_t grid, uint32_t block_threads);

struct FakeKernel {
  HostKernel run = nullptr;
  size_t args_bytes = 0;    // of the kernel's only argument
  bool blocks_meet = true;  // blocks wait for one another: a grid that does not fit as a whole never ends
  int max_threads = 1024;
};

class FakeCuda {
 public:
  explicit FakeCuda(FakeMachine machine);
  ~FakeCuda();
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  /// Adds a kernel for cuModuleGetFunction, whatever image was loaded.
  void add_kernel(std::string name, FakeKernel kernel);
  /// Called for names that were not added.
  void find_kernels_with(std::function<std::optional<FakeKernel>(std::string_view name)> find);

  /// The nth call from now of a function ("cuMemAlloc_v2") returns `error` and does nothing. Later calls work again.
  void fail(std::string_view symbol, cuda::Result error, uint64_t nth = 1);
  /// From now on every call that needs the device's context returns `error`, as after a fault of a kernel.
  void break_device(int ordinal, cuda::Result error);
  /// Makes the allocation one without IPC handles, as from cuMemCreate and memory pools.
  void forbid_ipc(cuda::DevicePtr ptr);
  /// Number of calls of a function.
  uint64_t calls(std::string_view symbol) const;
  /// Describes leaks: memory, registrations, mappings, streams, events, modules, contexts, and writes
  /// behind an allocation. Empty if there are none.
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
