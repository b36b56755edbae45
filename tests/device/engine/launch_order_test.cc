// The order of a thread's launches on a device: launches that fit next to one another do not wait for one another,
// others do. Emulated devices; ranks are threads.
// labels: unit tsan
// timeout: 120
// links: host_kernels
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "device/engine/device_floats.h"
#include "support/emulated_cuda.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

FakeMachine machine_of(int devices, int multiprocessors = 132) {
  FakeMachine machine = FakeMachine::uniform(devices);
  for (FakeDevice& d : machine.devices) d.multiprocessors = multiprocessors;
  machine.deadline_s = 10;
  return machine;
}

SpawnOptions options_of(const std::string& settings) {
  SpawnOptions options;
  options.config = device_config(settings);
  options.config.deadline_s = 5;
  return options;
}

// Rank 0 receives on one communicator before it sends on the other, rank 1 the other way around. Neither launch must
// wait for the one before it, even if the driver tells late that a kernel has begun.
TEST(LaunchOrderTest, CrossingMessagesOfTwoCommunicators) {
  for (const bool late : {false, true}) {
    SCOPED_TRACE(late);
    FakeMachine machine = machine_of(2);
    machine.limits.late = late;
    EmulatedCuda cuda(machine);
    spawn_threads(
        2,
        [&](Communicator& first) -> Status {
          use_device(first);
          RONDO_TRY_ASSIGN(const auto second, first.split(0, first.rank()));
          Communicator* const order[] = {first.rank() == 0 ? &first : second.get(),
                                         first.rank() == 0 ? second.get() : &first};
          const Rank peer = 1 - first.rank();
          constexpr size_t kCount = 5000;
          Floats in(first, kCount), out(first, kCount);
          Stream x, y;
          const CallOptions on_x = x.options(), on_y = y.options();
          for (int round = 0; round < 4; ++round) {
            const bool grouped = round == 0 || round == 3;  // the first round makes the connections
            out.set(std::vector<float>(kCount, static_cast<float>(10 * round + first.rank())));
            // A message on `first` goes to rank 0, one on `second` to rank 1.
            auto receive = [&] { return order[0]->recv(in.data(), kCount, Dtype::kFloat32, peer, &on_x); };
            auto send = [&] { return order[1]->send(out.data(), kCount, Dtype::kFloat32, peer, &on_y); };
            if (round == 0) {
              group_start();
              RONDO_TRY(receive());
              RONDO_TRY(send());
              RONDO_TRY(group_end());
            } else {
              for (const bool sends : {false, true}) {
                if (grouped) group_start();
                RONDO_TRY(sends ? send() : receive());
                if (grouped) RONDO_TRY(group_end());
              }
            }
            x.wait();
            y.wait();
            EXPECT_EQ(in.get(), std::vector<float>(kCount, static_cast<float>(10 * round + peer))) << round;
          }
          RONDO_TRY(second->error());
          return first.error();
        },
        options_of("device_engine = interpreter"));
    EXPECT_EQ(cuda.fake().leaks(), "");
  }
}

// A collective that waits for its peer does not hold up one of another communicator (a prefetch of sharded training).
TEST(LaunchOrderTest, ACallThatWaitsDoesNotHoldUpAnotherCommunicator) {
  FakeMachine machine = machine_of(2);
  machine.limits.late = true;
  EmulatedCuda cuda(machine);
  std::barrier prefetched(2);
  spawn_threads(
      2,
      [&](Communicator& first) -> Status {
        use_device(first);
        RONDO_TRY_ASSIGN(const auto second, first.split(0, first.rank()));
        Floats a(first, 3000), b(first, 3000);
        Stream x, y;
        const CallOptions on_x = x.options(), on_y = y.options();
        for (int round = 0; round < 3; ++round) {
          a.set_simple(first.rank());
          b.set_simple(first.rank());
          auto sum_a = [&] { return first.all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &on_x); };
          const bool early = first.rank() == 0 || round == 0;  // round 0 makes the connections
          if (early) RONDO_TRY(sum_a());
          RONDO_TRY(second->all_reduce(b.data(), b.data(), b.size(), Dtype::kFloat32, Op::kSum, &on_y));
          y.wait();
          prefetched.arrive_and_wait();
          if (!early) RONDO_TRY(sum_a());
          x.wait();
          EXPECT_TRUE(a.holds_simple_sum(2));
          EXPECT_TRUE(b.holds_simple_sum(2));
        }
        RONDO_TRY(second->error());
        return first.error();
      },
      options_of("device_engine = interpreter"));
  EXPECT_EQ(cuda.fake().leaks(), "");
}

// The same in a graph: two captured calls of communicators that do not fit together. Rank 0's first call is delayed in
// its stream. Its second call must not take the device meanwhile.
TEST(LaunchOrderTest, CapturedCallsThatDoNotFitTogether) {
  EmulatedCuda cuda(machine_of(2, 6));
  spawn_threads(
      2,
      [&](Communicator& first) -> Status {
        use_device(first);
        RONDO_TRY_ASSIGN(const auto second, first.split(0, first.rank()));
        constexpr size_t kCount = 200'000;  // at least both lanes of two channels
        Floats a(first, kCount), b(first, kCount);
        Stream x, y;
        const CallOptions on_x = x.options(), on_y = y.options();
        auto sums = [&]() -> Status {
          RONDO_TRY(first.all_reduce(a.data(), a.data(), kCount, Dtype::kFloat32, Op::kSum, &on_x));
          return second->all_reduce(b.data(), b.data(), kCount, Dtype::kFloat32, Op::kSum, &on_y);
        };
        RONDO_TRY(sums());  // makes the connections
        x.wait();
        y.wait();
        a.set_simple(first.rank());
        b.set_simple(first.rank());
        EXPECT_EQ(cuda.fake().begin_capture(x.get(), cuda::kCaptureModeThreadLocal), 0);
        const cuda::OwnedEvent fork = std::move(*cuda::OwnedEvent::make());
        RONDO_TRY(cuda::record(fork.get(), x.get()));
        RONDO_TRY(cuda::wait_for(y.get(), fork.get()));
        std::atomic<bool> go{first.rank() != 0};
        EXPECT_EQ(cuda::driver()->launch_host_function(
                      x.get(),
                      [](void* flag) {
                        while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
                      },
                      &go),
                  0);
        RONDO_TRY(sums());
        RONDO_TRY(cuda::record(fork.get(), y.get()));
        RONDO_TRY(cuda::wait_for(x.get(), fork.get()));
        cuda::Graph graph = nullptr;
        EXPECT_EQ(cuda.fake().end_capture(x.get(), &graph), 0);
        EXPECT_EQ(cuda.fake().launch_graph(graph, x.get()), 0);
        for (int i = 0; i < 2000 && first.rank() == 0; ++i) std::this_thread::yield();  // time enough to begin
        go.store(true);
        x.wait();
        EXPECT_TRUE(a.holds_simple_sum(2));
        EXPECT_TRUE(b.holds_simple_sum(2));
        EXPECT_EQ(cuda.fake().destroy_graph(graph), 0);
        RONDO_TRY(second->error());
        return first.error();
      },
      options_of("algo = ring\nproto = simple"));
  EXPECT_EQ(cuda.fake().leaks(), "");
}

// Calls of one communicator run in the order of issue, also on the threads' own streams, which have the same handle.
TEST(LaunchOrderTest, CallsOnPerThreadStreamsAreChained) {
  for (const char* engine : {"interpreter", "stream"}) {
    SCOPED_TRACE(engine);
    EmulatedCuda cuda(machine_of(1));
    spawn_threads(
        2,
        [&](Communicator& comm) -> Status {
          use_device(comm);
          const auto stream_per_thread = reinterpret_cast<cuda::Stream>(2);
          Floats a(comm, 1000);
          a.set_simple(comm.rank());
          CallOptions options;
          options.stream = stream_per_thread;
          auto sum = [&] { return comm.all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &options); };
          RONDO_TRY(sum());  // makes the connections
          std::atomic<bool> go{false};
          EXPECT_EQ(cuda::driver()->launch_host_function(
                        stream_per_thread,
                        [](void* flag) {
                          while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
                        },
                        &go),
                    0);
          RONDO_TRY(sum());
          std::thread second([&] {
            use_device(comm);
            EXPECT_TRUE(is_ok(sum()));
            for (int i = 0; i < 2000; ++i) std::this_thread::yield();  // time enough to run
            EXPECT_EQ(cuda::driver()->stream_query(stream_per_thread), cuda::kErrorNotReady);
            go.store(true);
            EXPECT_EQ(cuda::driver()->stream_synchronize(stream_per_thread), 0);
          });
          second.join();
          EXPECT_TRUE(a.holds_simple_sum(2, 4));
          return comm.error();
        },
        options_of("device_engine = " + std::string(engine)));
    EXPECT_EQ(cuda.fake().leaks(), "");
  }
}

// Four threads share a device that holds one call of each. A rank's second call must not take another rank's room.
TEST(LaunchOrderTest, CallsLeaveTheRoomOfOtherRanks) {
  constexpr int kRanks = 4;
  FakeMachine machine = machine_of(1, 6 * kRanks);
  machine.limits.late = false;
  EmulatedCuda cuda(machine);
  std::barrier second_called(kRanks);
  spawn_threads(
      kRanks,
      [&](Communicator& first) -> Status {
        use_device(first);
        RONDO_TRY_ASSIGN(const auto second, first.split(0, first.rank()));
        Floats a(first, 20000), b(first, 20000);
        Stream x, y;
        const CallOptions on_x = x.options(), on_y = y.options();
        for (int round = 0; round < 4; ++round) {
          a.set_simple(first.rank());
          b.set_simple(first.rank());
          auto sum = [&](Communicator& comm, Floats& data, const CallOptions& call) {
            return comm.all_reduce(data.data(), data.data(), data.size(), Dtype::kFloat32, Op::kSum, &call);
          };
          const bool last = first.rank() == kRanks - 1 && round != 0;
          if (last) second_called.arrive_and_wait();  // the others' second calls are in their streams
          RONDO_TRY(sum(first, a, on_x));
          RONDO_TRY(sum(*second, b, on_y));
          if (!last && round != 0) second_called.arrive_and_wait();
          x.wait();
          y.wait();
          EXPECT_TRUE(a.holds_simple_sum(kRanks));
          EXPECT_TRUE(b.holds_simple_sum(kRanks));
        }
        RONDO_TRY(second->error());
        return first.error();
      },
      options_of("device_blocks = 6\nalgo = ring\nproto = simple"));
  EXPECT_EQ(cuda.fake().leaks(), "");
}

// A thread may issue several calls of one of its ranks before it issues those of the other.
TEST(LaunchOrderTest, CallsOfARankBeforeThoseOfTheThreadsOtherRank) {
  constexpr size_t kElems = 20000;
  EmulatedCuda cuda(machine_of(1, 12));
  {
    auto comms = Communicator::init_all(2, options_of("device_blocks = 6\nalgo = ring\nproto = simple").config);
    ASSERT_TRUE(comms.ok()) << comms.status().to_string();
    use_device(*(*comms)[0]);
    Stream streams[2];
    std::vector<std::unique_ptr<Floats>> data;
    for (auto& c : *comms) data.push_back(std::make_unique<Floats>(*c, kElems));
    auto sum = [&](size_t r) {
      const CallOptions call = streams[r].options();
      return (*comms)[r]->all_reduce(data[r]->data(), data[r]->data(), kElems, Dtype::kFloat32, Op::kMax, &call);
    };
    group_start();  // makes the connections
    for (size_t r = 0; r < 2; ++r) ASSERT_TRUE(is_ok(sum(r)));
    ASSERT_TRUE(is_ok(group_end()));
    for (size_t r = 0; r < 2; ++r)
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(is_ok(sum(r)));
    for (const Stream& s : streams) s.wait();
    for (auto& c : *comms) EXPECT_TRUE(is_ok(c->error()));
    data.clear();
    while (!comms->empty()) comms->pop_back();
  }
  EXPECT_EQ(cuda.fake().leaks(), "");
}

}  // namespace
}  // namespace rondo::testing
