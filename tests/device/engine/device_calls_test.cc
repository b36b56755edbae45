// Communicators of device memory beyond conformance: streams, groups, graphs, several communicators, messages between
// two ranks, variable counts, scales in device memory. Emulated devices; ranks are threads.
// labels: unit tsan
// timeout: 120
// links: host_kernels
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <memory>
#include <thread>

#include "device/engine/device_floats.h"
#include "support/emulated_cuda.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

// Calls of one communicator run in the order of issue, whatever their streams.
TEST(DeviceCallsTest, CallsOnSeveralStreamsAreChained) {
  on_devices(1, 3, [](Communicator& comm) -> Status {
    Floats a(comm, 1000);
    a.set_simple(comm.rank());
    Stream streams[3];
    for (int i = 0; i < 3; ++i) {  // each sums the previous result
      const CallOptions options = streams[i].options();
      RONDO_TRY(comm.all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &options));
    }
    streams[2].wait();
    EXPECT_TRUE(a.holds_simple_sum(3, 9));
    return comm.error();
  });
}

// Earlier work of the caller's stream is done before the call, later work comes after it.
TEST(DeviceCallsTest, CallsAreOrderedWithTheirStream) {
  on_devices(2, 2, [](Communicator& comm) -> Status {
    Floats a(comm, 5000), b(comm, 5000);
    a.set_simple(comm.rank());
    Stream stream;
    const CallOptions options = stream.options();
    for (int round = 0; round < 5; ++round) {
      EXPECT_EQ(cuda::driver()->memcpy_async(at(b.data()), at(a.data()), 5000 * sizeof(float), stream.get()), 0);
      RONDO_TRY(comm.all_reduce(b.data(), b.data(), b.size(), Dtype::kFloat32, Op::kSum, &options));
    }
    stream.wait();
    EXPECT_TRUE(b.holds_simple_sum(2));
    return comm.error();
  });
}

TEST(DeviceCallsTest, AGroupOfCallsAndMessagesOnTwoCommunicators) {
  on_devices(1, 3, [](Communicator& comm) -> Status {
    RONDO_TRY_ASSIGN(auto other, comm.split(0, comm.rank()));
    const int n = comm.size();
    Floats a(comm, 3001), b(comm, 17), c(comm, 900), sent(comm, 100), got(comm, 100);
    for (int round = 0; round < 3; ++round) {
      a.set_simple(comm.rank());
      c.set_simple(comm.rank());
      b.set_simple(comm.rank());
      sent.set(std::vector<float>(100, static_cast<float>(10 * comm.rank() + round)));
      Stream stream;
      const CallOptions options = stream.options();
      group_start();
      RONDO_TRY(comm.all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &options));
      RONDO_TRY(comm.recv(got.data(), 100, Dtype::kFloat32, (comm.rank() + n - 1) % n, &options));
      RONDO_TRY(other->all_reduce(b.data(), b.data(), b.size(), Dtype::kFloat32, Op::kSum, &options));
      RONDO_TRY(comm.send(sent.data(), 100, Dtype::kFloat32, (comm.rank() + 1) % n, &options));
      RONDO_TRY(comm.all_reduce(c.data(), c.data(), c.size(), Dtype::kFloat32, Op::kMax, &options));
      RONDO_TRY(group_end());
      stream.wait();
      EXPECT_TRUE(a.holds_simple_sum(n));
      EXPECT_TRUE(b.holds_simple_sum(n));
      EXPECT_EQ(c.get()[50], simple_value(n - 1, 50));
      EXPECT_EQ(got.get()[99], static_cast<float>(10 * ((comm.rank() + n - 1) % n) + round));
    }
    return comm.error();
  });
}

// One thread owns all ranks, on one stream: the group makes one launch of them.
TEST(DeviceCallsTest, OneThreadOwnsAllRanks) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  auto comms = Communicator::init_all(4, device_config("device_blocks = -6"));
  ASSERT_TRUE(comms.ok()) << comms.status().to_string();
  use_device(*(*comms)[0]);
  std::vector<Floats> data;
  for (auto& c : *comms) data.emplace_back(*c, 2222);
  auto stream_of_all = std::make_unique<Stream>();
  const Stream& stream = *stream_of_all;
  const CallOptions options = stream.options();
  const uint64_t before = cuda.fake().calls("cuLaunchKernelEx");
  for (int round = 0; round < 3; ++round) {
    for (Rank r = 0; r < 4; ++r) data[static_cast<size_t>(r)].set_simple(r);
    group_start();
    for (size_t r = 0; r < 4; ++r)
      ASSERT_TRUE(
          is_ok((*comms)[r]->all_reduce(data[r].data(), data[r].data(), 2222, Dtype::kFloat32, Op::kSum, &options)));
    ASSERT_TRUE(is_ok(group_end()));
    stream.wait();
    for (const Floats& d : data) EXPECT_TRUE(d.holds_simple_sum(4));
  }
  EXPECT_EQ(cuda.fake().calls("cuLaunchKernelEx") - before, 3u);
  while (!comms->empty()) comms->pop_back();
  stream_of_all.reset();
  EXPECT_EQ(cuda.fake().leaks(), "");
}

TEST(DeviceCallsTest, MessagesOfAllSizesBetweenAllRanks) {
  on_devices(1, 3, [](Communicator& comm) -> Status {
    const int n = comm.size();
    Stream stream;
    const CallOptions options = stream.options();
    for (const size_t size : {size_t{0}, size_t{1}, size_t{1000}, size_t{300'001}}) {
      std::vector<Floats> out, in;
      for (Rank p = 0; p < n; ++p) {
        out.emplace_back(comm, size);
        in.emplace_back(comm, size);
        out.back().set(std::vector<float>(size, static_cast<float>(100 * comm.rank() + p)));
      }
      group_start();
      for (Rank p = 0; p < n; ++p) {  // also to itself, and twice: messages of a pair keep their order
        for (int twice = 0; twice < 2; ++twice) {
          RONDO_TRY(comm.send(out[static_cast<size_t>(p)].data(), size, Dtype::kFloat32, p, &options));
          RONDO_TRY(comm.recv(in[static_cast<size_t>(p)].data(), size, Dtype::kFloat32, p, &options));
        }
      }
      RONDO_TRY(group_end());
      stream.wait();
      for (Rank p = 0; p < n && size != 0; ++p)
        EXPECT_EQ(in[static_cast<size_t>(p)].get(), std::vector<float>(size, static_cast<float>(100 * p + comm.rank())))
            << size;
    }
    return comm.error();
  });
}

TEST(DeviceCallsTest, PartsOfDifferentLengths) {
  on_devices(1, 3, [](Communicator& comm) -> Status {
    const auto r = static_cast<size_t>(comm.rank());
    const std::vector<uint64_t> counts{700, 0, 1301};
    Stream stream;
    const CallOptions options = stream.options();
    Floats part(comm, 1301), whole(comm, 2001), sum(comm, 1301);
    part.set(std::vector<float>(1301, static_cast<float>(r + 1)));
    RONDO_TRY(comm.all_gather_v(part.data(), whole.data(), counts.data(), nullptr, Dtype::kFloat32, &options));
    RONDO_TRY(
        comm.reduce_scatter_v(whole.data(), sum.data(), counts.data(), nullptr, Dtype::kFloat32, Op::kSum, &options));
    // Rank s gives d the s + 2 * d elements that they agree on.
    std::vector<uint64_t> to, from;
    uint64_t total = 0;
    for (uint64_t p = 0; p < 3; ++p)
      to.push_back(100 * r + 200 * p), from.push_back(100 * p + 200 * r), total += from.back();
    Floats out(comm, 300 * 3 + 600), in(comm, total);
    out.set(std::vector<float>(out.size(), static_cast<float>(r)));
    RONDO_TRY(
        comm.all_to_all_v(out.data(), to.data(), nullptr, in.data(), from.data(), nullptr, Dtype::kFloat32, &options));
    stream.wait();
    std::vector<float> expected(2001);
    for (size_t i = 0; i < 2001; ++i) expected[i] = i < 700 ? 1.f : 3.f;
    EXPECT_EQ(whole.get(), expected);
    if (counts[r] != 0) {
      EXPECT_EQ(sum.get()[counts[r] - 1], 3.f * static_cast<float>(r + 1));
    }
    std::vector<float> received;
    for (size_t p = 0; p < 3; ++p) received.insert(received.end(), from[p], static_cast<float>(p));
    EXPECT_EQ(in.get(), received);
    return comm.error();
  });
}

// A scale in device memory is read when the call runs.
TEST(DeviceCallsTest, ScalesInDeviceMemory) {
  on_devices(1, 2, [](Communicator& comm) -> Status {
    Floats a(comm, 900), scale(comm, 1);
    a.set_simple(comm.rank());
    Stream stream;
    CallOptions options = stream.options();
    options.premul = scale.data();
    options.premul_on_device = true;
    scale.set({7.f});
    Floats four(comm, 1);
    four.set({4.f});
    EXPECT_EQ(cuda::driver()->memcpy_async(at(scale.data()), at(four.data()), sizeof(float), stream.get()), 0);
    RONDO_TRY(comm.all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kPremulSum, &options));
    stream.wait();
    EXPECT_TRUE(a.holds_simple_sum(2, 4));
    return comm.error();
  });
}

// A captured call replays with the same values every time, among other calls.
TEST(DeviceCallsTest, CapturedCallsReplayAmongOthers) {
  for (const char* engine : {"interpreter", "stream"}) {
    SCOPED_TRACE(engine);
    EmulatedCuda cuda(FakeMachine::uniform(1));
    SpawnOptions spawn_options;
    spawn_options.config = device_config(std::string("device_blocks = -6\ndevice_engine = ") + engine);
    std::barrier<> together(2);
    spawn_threads(
        2,
        [&](Communicator& comm) -> Status {
          use_device(comm);
          Floats a(comm, 3000), b(comm, 3000), c(comm, 400);
          a.set_simple(comm.rank());
          Stream stream, side;
          const CallOptions options = stream.options(), elsewhere = side.options();
          c.set_simple(comm.rank());
          RONDO_TRY(comm.all_reduce(c.data(), c.data(), c.size(), Dtype::kFloat32, Op::kSum, &elsewhere));
          EXPECT_EQ(cuda.fake().begin_capture(stream.get(), cuda::kCaptureModeThreadLocal), 0);
          EXPECT_EQ(cuda::driver()->memcpy_async(at(b.data()), at(a.data()), 3000 * sizeof(float), stream.get()), 0);
          Status s = comm.all_reduce(b.data(), b.data(), b.size(), Dtype::kFloat32, Op::kSum, &options);
          if (s.ok()) s = comm.all_reduce(b.data(), b.data(), b.size(), Dtype::kFloat32, Op::kMax, &options);
          cuda::Graph graph = nullptr;
          EXPECT_EQ(cuda.fake().end_capture(stream.get(), &graph), 0);
          RONDO_TRY(s);
          side.wait();
          EXPECT_TRUE(c.holds_simple_sum(2));
          for (int round = 0; round < 20; ++round) {
            EXPECT_EQ(cuda.fake().launch_graph(graph, stream.get()), 0);
            if (round % 3 == 0) {  // on another stream: still in order
              RONDO_TRY(comm.all_reduce(b.data(), b.data(), b.size(), Dtype::kFloat32, Op::kSum, &elsewhere));
              side.wait();
              EXPECT_TRUE(b.holds_simple_sum(2, 2)) << round;
              together.arrive_and_wait();  // the other rank's next replay comes after this
            } else {
              stream.wait();
              EXPECT_TRUE(b.holds_simple_sum(2)) << round;
            }
          }
          EXPECT_EQ(cuda.fake().destroy_graph(graph), 0);
          return comm.error();
        },
        spawn_options);
    EXPECT_EQ(cuda.fake().leaks(), "");
  }
}

// Two communicators whose calls have one order on both ranks, on two streams, and a device that holds one launch at a
// time. Rank 0's first call is delayed in its stream: its second call must not take the device meanwhile.
TEST(DeviceCallsTest, CommunicatorsInOneOrderDoNotBlockEachOther) {
  FakeMachine machine = FakeMachine::uniform(2);
  for (FakeDevice& d : machine.devices) d.multiprocessors = 6;
  machine.resident_blocks = 6;
  EmulatedCuda cuda(machine);
  SpawnOptions options;
  options.config = device_config("algo = ring\nproto = simple");
  options.config.deadline_s = 10;
  spawn_threads(
      2,
      [&](Communicator& first) -> Status {
        use_device(first);
        RONDO_TRY_ASSIGN(auto second, first.split(0, first.rank()));
        constexpr size_t kCount = 200'000;  // at least both lanes of two channels
        Floats a(first, kCount), b(first, kCount);
        Stream x, y;
        const CallOptions on_x = x.options(), on_y = y.options();
        for (int warm = 0; warm < 2; ++warm) {  // makes connections
          RONDO_TRY(first.all_reduce(a.data(), a.data(), kCount, Dtype::kFloat32, Op::kMax, &on_x));
          RONDO_TRY(second->all_reduce(b.data(), b.data(), kCount, Dtype::kFloat32, Op::kMax, &on_x));
          x.wait();
        }
        a.set_simple(first.rank());
        b.set_simple(first.rank());
        std::atomic<bool> go{first.rank() != 0};
        EXPECT_EQ(cuda::driver()->launch_host_function(
                      x.get(),
                      [](void* flag) {
                        while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
                      },
                      &go),
                  0);
        RONDO_TRY(first.all_reduce(a.data(), a.data(), kCount, Dtype::kFloat32, Op::kSum, &on_x));
        RONDO_TRY(second->all_reduce(b.data(), b.data(), kCount, Dtype::kFloat32, Op::kSum, &on_y));
        for (int i = 0; i < 2000 && first.rank() == 0; ++i) std::this_thread::yield();  // time enough to begin
        go.store(true);
        x.wait();
        y.wait();
        EXPECT_TRUE(a.holds_simple_sum(2));
        EXPECT_TRUE(b.holds_simple_sum(2));
        RONDO_TRY(first.error());
        return second->error();
      },
      options);
}

// Shapes that differ only in counts share a program. The plan cache holds 2,048 plans.
TEST(DeviceCallsTest, AnyNumberOfShapesNeedsBoundedMemory) {
  if (kSanitized) GTEST_SKIP() << "takes a minute with a sanitizer";
  const auto call_many = [](Communicator& comm) -> Status {
    constexpr uint64_t kShapes = 2500;
    constexpr Op kOps[] = {Op::kMax, Op::kMin, Op::kProd};  // other shapes, with programs of equal sizes
    Floats a(comm, kShapes);
    Stream stream;
    const CallOptions options = stream.options();
    uint64_t bytes[3];
    for (int round = 0; round < 3; ++round) {
      for (uint64_t n = 1; n <= kShapes; ++n)
        RONDO_TRY(comm.all_reduce(a.data(), a.data(), n, Dtype::kFloat32, kOps[round], &options));
      stream.wait();
      bytes[round] = comm.device_bytes();
    }
    EXPECT_EQ(bytes[1], bytes[2]);
    a.set_simple(comm.rank());
    RONDO_TRY(comm.all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &options));
    stream.wait();
    EXPECT_TRUE(a.holds_simple_sum(2));
    return comm.error();
  };
  on_devices(1, 2, call_many, {"interpreter"});  // streams need no programs in device memory
}

}  // namespace
}  // namespace rondo::testing
