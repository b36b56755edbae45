// On a real device: calls captured in a CUDA graph, replayed 1,000 times, mixed with other calls.
// labels: gpu
// timeout: 300
// separate
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <barrier>

#include "api/communicator_impl.h"
#include "gpu/gpu.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

// Only callers capture and launch graphs, so rondo's own table lacks these functions.
struct Graphs {
  int (*begin)(cuda::Stream, int mode);
  int (*end)(cuda::Stream, void** graph);
  int (*instantiate)(void** executable, void* graph, unsigned long long flags);
  int (*launch)(void* executable, cuda::Stream);
  Graphs() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    auto find = [&](auto& f, const char* name) {
      f = reinterpret_cast<std::decay_t<decltype(f)>>(dlsym(library, name));
    };
    find(begin, "cuStreamBeginCapture_v2");
    find(end, "cuStreamEndCapture");
    find(instantiate, "cuGraphInstantiateWithFlags");
    find(launch, "cuGraphLaunch");
  }
};

void replay(const std::string& engine) {
  const Graphs graphs;
  constexpr uint64_t kCount = 100'003;
  SpawnOptions options;
  options.config = gpu_config(2, "device_engine = " + engine);
  options.deadline_s = 120;
  std::barrier<> together(2);
  spawn_threads(
      2,
      [&](Communicator& comm) -> Status {
        const cuda::Driver* d = cuda::driver();
        EXPECT_EQ(d->context_set_current(impl_of(comm).device()->transport().context()), 0);
        RONDO_TRY_ASSIGN(void* const memory, comm.alloc(2 * kCount * sizeof(float)));
        auto* const a = static_cast<float*>(memory);
        float* const b = a + kCount;
        std::vector<float> values(kCount);
        for (uint64_t i = 0; i < kCount; ++i) values[i] = simple_value(comm.rank(), i);
        const auto at = [](const void* p) { return reinterpret_cast<cuda::DevicePtr>(p); };
        EXPECT_TRUE(is_ok(cuda::upload(nullptr, at(a), values.data(), kCount * sizeof(float))));
        RONDO_TRY_ASSIGN(const auto stream, cuda::OwnedStream::make());
        CallOptions call;
        call.stream = stream.get();
        RONDO_TRY(comm.all_reduce(a, b, kCount, Dtype::kFloat32, Op::kSum, &call));
        EXPECT_EQ(d->stream_synchronize(stream.get()), 0);
        void *graph = nullptr, *executable = nullptr;
        EXPECT_EQ(graphs.begin(stream.get(), cuda::kCaptureModeThreadLocal), 0);
        EXPECT_EQ(d->memcpy_async(at(b), at(a), kCount * sizeof(float), stream.get()), 0);
        const Status captured = comm.all_reduce(b, b, kCount, Dtype::kFloat32, Op::kSum, &call);
        EXPECT_EQ(graphs.end(stream.get(), &graph), 0);
        RONDO_TRY(captured);
        EXPECT_EQ(graphs.instantiate(&executable, graph, 0), 0);
        together.arrive_and_wait();
        for (int round = 0; round < static_cast<int>(full_or_quick(1000, 101)); ++round) {
          EXPECT_EQ(graphs.launch(executable, stream.get()), 0);
          if (round % 100 != 0) continue;
          EXPECT_EQ(d->stream_synchronize(stream.get()), 0);
          EXPECT_EQ(d->memcpy_device_to_host(values.data(), at(b), kCount * sizeof(float)), 0);
          uint64_t wrong = 0;
          for (uint64_t i = 0; i < kCount; ++i) wrong += values[i] != simple_sum(2, i);
          EXPECT_EQ(wrong, 0u) << "round " << round;
          RONDO_TRY(comm.all_reduce(b, b, kCount, Dtype::kFloat32, Op::kMax, &call));
        }
        EXPECT_EQ(d->stream_synchronize(stream.get()), 0);
        return comm.error();
      },
      options);
}

TEST(GraphsGpuTest, Interpreter) {
  RONDO_NEEDS_GPU();
  replay("interpreter");
}
TEST(GraphsGpuTest, Streams) {
  RONDO_NEEDS_GPU();
  replay("stream");
}

}  // namespace
}  // namespace rondo::testing
