// The fake driver as a libcuda.so.1, with rondo's own kernels as host functions and one device: for programs that find
// their driver by dlopen. A program that has real kernel images runs too, because the fake finds kernels by name.
//
// rondo's objects inside are this library's own: its version script exports only the driver's functions.
#include "support/emulated_cuda.h"

namespace rondo::testing {
namespace {

// Never destroyed: as in a real driver, threads may still be in it when the process ends.
struct Library {
  Library() {
    FakeMachine machine = FakeMachine::uniform(1);
    machine.resident_blocks = 1024;  // the fake starts a kernel only as a whole: one that need not wait must always fit
    machine.devices[0].memory_bytes = uint64_t{32} << 30;
    emulated = new EmulatedCuda(std::move(machine));
    table = cuda::driver();
  }
  EmulatedCuda* emulated;
  const cuda::Driver* table;
};

Library& library() {
  static auto* const the_library = new Library;
  return *the_library;
}

}  // namespace
}  // namespace rondo::testing

using namespace rondo::cuda;  // NOLINT: the prototypes name its types
using rondo::testing::library;

// An indirect function: dlsym() calls the resolver and returns what it returns, the fake's function.
extern "C" {
#define RONDO_X(member, symbol, args)                                                                           \
  [[gnu::visibility("hidden")]] decltype(Driver::member) resolve_##member() { return library().table->member; } \
  Result symbol args __attribute__((ifunc("resolve_" #member), visibility("default")));
RONDO_CUDA_DRIVER(RONDO_X)
#undef RONDO_X

Result cuStreamBeginCapture_v2(Stream stream, int mode) {
  return library().emulated->fake().begin_capture(stream, mode);
}
Result cuStreamEndCapture(Stream stream, Graph* graph) { return library().emulated->fake().end_capture(stream, graph); }
Result cuGraphInstantiateWithFlags(Graph* executable, Graph graph, unsigned long long) {
  *executable = graph;  // the fake launches the graph itself
  return kSuccess;
}
Result cuGraphLaunch(Graph graph, Stream stream) { return library().emulated->fake().launch_graph(graph, stream); }
}
