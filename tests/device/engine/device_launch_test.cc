// Contents of a launch on devices: limits of thread blocks, groups that need more blocks than exist, communicators of
// both engines in a group, events for the begin of a launch. Emulated devices; ranks are threads.
// labels: unit tsan
// timeout: 120
// links: host_kernels
// again with: FAKE_CUDA=operations=16,delay_us=50
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

// From every rank to every rank, itself included: 14 units of blocks on a share of 3.
struct AllMessages {
  AllMessages(Communicator& comm, size_t size) : rank(comm.rank()), size(size) {
    for (Rank p = 0; p < comm.size(); ++p) {
      out.emplace_back(comm, size);
      in.emplace_back(comm, size);
    }
  }
  void set(int round) {
    for (Rank p = 0; p < static_cast<Rank>(out.size()); ++p)
      out[static_cast<size_t>(p)].set(std::vector<float>(size, value(rank, p, round)));
  }
  /// Messages with a distance that is a multiple of `step`.
  Status issue(Communicator& comm, const CallOptions& options, int step) {
    const int n = comm.size();
    for (Rank p = 0; p < n; ++p) {
      if ((p - rank + n) % n % step == 0)
        RONDO_TRY(comm.send(out[static_cast<size_t>(p)].data(), length(rank, p), Dtype::kFloat32, p, &options));
      if ((rank - p + n) % n % step == 0)
        RONDO_TRY(comm.recv(in[static_cast<size_t>(p)].data(), length(p, rank), Dtype::kFloat32, p, &options));
    }
    return {};
  }
  void expect(int round, int step) {
    const auto n = static_cast<int>(in.size());
    for (Rank p = 0; p < n; ++p) {
      if ((rank - p + n) % n % step != 0) continue;
      std::vector<float> got = in[static_cast<size_t>(p)].get();
      got.resize(length(p, rank));
      EXPECT_EQ(got, std::vector<float>(got.size(), value(p, rank, round))) << p;
    }
  }
  size_t length(Rank from, Rank to) const { return size / static_cast<size_t>(1 + (from + 2 * to) % 3 * 40); }
  static float value(Rank from, Rank to, int round) { return static_cast<float>(10000 * round + 100 * from + to); }
  Rank rank;
  size_t size;
  std::vector<Floats> out, in;
};

FakeMachine small_device(int multiprocessors) {
  FakeMachine machine = FakeMachine::uniform(1);
  machine.devices[0].multiprocessors = multiprocessors;
  machine.deadline_s = 5;
  return machine;
}

TEST(DeviceLaunchTest, MoreMessagesThanBlocks) {
  EmulatedCuda cuda(small_device(7 * 3));
  SpawnOptions options;
  options.config = device_config("device_engine = interpreter");
  options.config.deadline_s = 5;
  spawn_threads(
      7,
      [&](Communicator& comm) -> Status {
        use_device(comm);
        Stream stream;
        const CallOptions call = stream.options();
        AllMessages messages(comm, 50'001);
        for (int round = 0; round < 4; ++round)
          for (const int step : {1, 2, 3}) {
            messages.set(round);
            // Ranks list them in different orders.
            group_start();
            RONDO_TRY(messages.issue(comm, call, step));
            RONDO_TRY(group_end());
            stream.wait();
            messages.expect(round, step);
          }
        return comm.error();
      },
      options);
  EXPECT_EQ(cuda.fake().leaks(), "");
}

TEST(DeviceLaunchTest, MoreMessagesThanBlocksOfRanksOfOneThread) {
  constexpr int kRanks = 5;
  EmulatedCuda cuda(small_device(kRanks * 3));
  {
    auto comms = Communicator::init_all(kRanks, device_config("device_engine = interpreter"));
    ASSERT_TRUE(comms.ok()) << comms.status().to_string();
    use_device(*(*comms)[0]);
    Stream stream;
    const CallOptions call = stream.options();
    std::vector<AllMessages> messages;
    for (auto& c : *comms) messages.emplace_back(*c, 3001);
    for (int round = 0; round < 3; ++round) {
      for (AllMessages& m : messages) m.set(round);
      const uint64_t before = cuda.fake().calls("cuLaunchKernelEx");
      group_start();
      for (size_t r = 0; r < kRanks; ++r) ASSERT_TRUE(is_ok(messages[r].issue(*(*comms)[r], call, 1)));
      ASSERT_TRUE(is_ok(group_end()));
      stream.wait();
      for (AllMessages& m : messages) m.expect(round, 1);
      EXPECT_EQ(cuda.fake().calls("cuLaunchKernelEx") - before, 5u);  // 10 units for each of 5 ranks, 15 blocks
    }
    messages.clear();
    while (!comms->empty()) comms->pop_back();
  }
  EXPECT_EQ(cuda.fake().leaks(), "");
}

// Calls of one thread's ranks that are longer than a stream's queue are issued in turns. One after the other, the first
// rank's submission would wait for a rank that has nothing in its stream yet.
TEST(DeviceLaunchTest, CallsLongerThanAQueueOfRanksOfOneThread) {
  constexpr int kRanks = 3;
  constexpr size_t kElems = size_t{6} << 20;  // 8 messages of a stream for each chunk
  FakeMachine machine = FakeMachine::uniform(1);
  machine.limits.operations = 64;
  machine.deadline_s = 10;
  EmulatedCuda cuda(machine);
  {
    auto comms = Communicator::init_all(kRanks, device_config("device_engine = stream"));
    ASSERT_TRUE(comms.ok()) << comms.status().to_string();
    use_device(*(*comms)[0]);
    Stream stream;
    const CallOptions call = stream.options();
    std::vector<std::unique_ptr<Floats>> data;
    for (auto& c : *comms) {
      data.push_back(std::make_unique<Floats>(*c, kElems));
      data.back()->set_simple(c->rank());
    }
    group_start();
    for (size_t r = 0; r < kRanks; ++r)
      ASSERT_TRUE(
          is_ok((*comms)[r]->all_reduce(data[r]->data(), data[r]->data(), kElems, Dtype::kFloat32, Op::kSum, &call)));
    ASSERT_TRUE(is_ok(group_end()));
    stream.wait();
    for (const auto& d : data) EXPECT_TRUE(d->holds_simple_sum(kRanks));
    data.clear();
    while (!comms->empty()) comms->pop_back();
  }
  EXPECT_EQ(cuda.fake().leaks(), "");
}

// A communicator of one rank uses streams, others a kernel. A group has both, in either order.
TEST(DeviceLaunchTest, GroupsOfBothEngines) {
  EmulatedCuda cuda(FakeMachine::uniform(2));
  SpawnOptions options;
  options.config = device_config();
  spawn_threads(
      2,
      [&](Communicator& comm) -> Status {
        use_device(comm);
        RONDO_TRY_ASSIGN(const auto alone, comm.split(comm.rank(), 0, device_config()));
        EXPECT_NE(alone->explain_plan(Collective::kAllReduce, 700, Dtype::kFloat32, Op::kSum).find("by streams"),
                  std::string::npos);
        Floats a(comm, 2000), from(comm, 700), to(comm, 700);
        Stream stream;
        const CallOptions call = stream.options();
        from.set_simple(comm.rank());
        for (const bool alone_first : {false, true}) {
          a.set_simple(comm.rank());
          to.set(std::vector<float>(700, -1));
          auto copy = [&] { return alone->all_reduce(from.data(), to.data(), 700, Dtype::kFloat32, Op::kSum, &call); };
          group_start();
          if (alone_first) RONDO_TRY(copy());
          RONDO_TRY(comm.all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &call));
          if (!alone_first) RONDO_TRY(copy());
          RONDO_TRY(group_end());
          stream.wait();
          EXPECT_TRUE(a.holds_simple_sum(2));
          EXPECT_EQ(to.get(), from.get());
        }
        RONDO_TRY(alone->error());
        return comm.error();
      },
      options);
  EXPECT_EQ(cuda.fake().leaks(), "");
}

// Calls of two communicators that do not fit their device together and have different shares of it.
TEST(DeviceLaunchTest, CommunicatorsThatDoNotFitTogether) {
  EmulatedCuda cuda(small_device(24));
  SpawnOptions options;
  options.config = device_config("device_blocks = 6\nalgo = ring\nproto = simple");
  options.config.deadline_s = 5;
  std::atomic<uint64_t> launches{0};
  std::barrier all_here(4);
  spawn_threads(
      4,
      [&](Communicator& comm) -> Status {
        use_device(comm);
        RONDO_TRY_ASSIGN(const auto pair, comm.split(comm.rank() / 2, 0, options.config));
        Floats a(comm, 20000), b(comm, 20000);
        Stream one, other;
        const CallOptions call = one.options(), beside = other.options();
        for (int round = 0; round < 4; ++round) {
          a.set_simple(comm.rank());
          b.set_simple(pair->rank());
          all_here.arrive_and_wait();
          launches = cuda.fake().calls("cuLaunchKernelEx");
          all_here.arrive_and_wait();
          group_start();
          RONDO_TRY(comm.all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &call));
          RONDO_TRY(
              pair->all_reduce(b.data(), b.data(), b.size(), Dtype::kFloat32, Op::kSum, round < 2 ? &call : &beside));
          RONDO_TRY(group_end());
          one.wait();
          other.wait();
          EXPECT_TRUE(a.holds_simple_sum(4));
          EXPECT_TRUE(b.holds_simple_sum(2));
        }
        RONDO_TRY(pair->error());
        return comm.error();
      },
      options);
  EXPECT_EQ(cuda.fake().calls("cuLaunchKernelEx") - launches, 4u * 2u);
  EXPECT_EQ(cuda.fake().leaks(), "");
}

// A ring has three lanes: blocks come in threes. A limit below every algorithm is kept as far as possible.
TEST(DeviceLaunchTest, LimitsOfBlocksAreKept) {
  const struct {
    const char* settings;
    uint64_t count;
    const char* channels;
  } cases[] = {{"device_blocks = -7", 1 << 20, " 2 channels"},
               {"device_blocks = -1", 1 << 20, " 1 channels"},
               {"device_blocks = 12-", 64, " 4 channels"},
               {"device_blocks = 6", 64, " 2 channels"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.settings);
    EmulatedCuda cuda(FakeMachine::uniform(2));
    SpawnOptions options;
    options.config = device_config(std::string("algo = ring\nproto = simple\n") + c.settings);
    spawn_threads(
        2,
        [&](Communicator& comm) -> Status {
          use_device(comm);
          const std::string text = comm.explain_plan(Collective::kAllReduce, c.count, Dtype::kFloat32, Op::kSum);
          EXPECT_NE(text.find(c.channels), std::string::npos) << text;
          Floats a(comm, 1000);
          a.set_simple(comm.rank());
          Stream stream;
          const CallOptions call = stream.options();
          RONDO_TRY(comm.all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &call));
          stream.wait();
          EXPECT_TRUE(a.holds_simple_sum(2));
          return comm.error();
        },
        options);
  }
}

std::atomic<uint32_t> blocks_launched{0};
HostKernel float_sums = nullptr;
void count_blocks(const void* args, uint32_t grid, uint32_t block_threads) {
  blocks_launched = grid;
  float_sums(args, grid, block_threads);
}

// A call's limit and its communicator's: the lower one counts.
TEST(DeviceLaunchTest, CallsLimitTheirBlocks) {
  const struct {
    const char* settings;
    int least, most;
    uint64_t count;
    uint32_t blocks;
  } cases[] = {{"", 0, 7, 1 << 20, 6},
               {"", 0, 1, 1 << 20, 3},  // the algorithm's minimum
               {"", 12, 0, 64, 12},
               {"", 12, 12, 1 << 20, 12},
               {"device_blocks = -6", 0, 9, 1 << 20, 6},
               {"device_blocks = -6", 12, 0, 64, 6}};
  for (const auto& c : cases) {
    SCOPED_TRACE(fmt::format("{} {} {}", c.settings, c.least, c.most));
    EmulatedCuda cuda(FakeMachine::uniform(2));
    float_sums = find_host_kernel("rondo_interpret_float_sum");
    cuda.fake().add_kernel("rondo_interpret_float_sum", {count_blocks, sizeof(LaunchArgs), true});
    SpawnOptions options;
    options.config = device_config(std::string("algo = ring\nproto = simple\n") + c.settings);
    spawn_threads(
        2,
        [&](Communicator& comm) -> Status {
          use_device(comm);
          Floats a(comm, c.count);
          Stream stream;
          CallOptions call = stream.options();
          uint32_t blocks = 0;
          auto sum = [&]() -> Status {
            a.set_simple(comm.rank());
            RONDO_TRY(comm.all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &call));
            stream.wait();
            EXPECT_TRUE(a.holds_simple_sum(2));
            // No rank launches its next sum before the other has checked.
            const CallOptions options = stream.options();
            RONDO_TRY(comm.barrier(&options));
            stream.wait();
            blocks = blocks_launched;
            RONDO_TRY(comm.barrier(&options));
            stream.wait();
            return comm.error();
          };
          RONDO_TRY(sum());
          const uint32_t free_choice = blocks;
          call.min_blocks = c.least, call.max_blocks = c.most;
          RONDO_TRY(sum());
          EXPECT_EQ(blocks, c.blocks) << "a free choice has " << free_choice;
          call.min_blocks = call.max_blocks = 0;
          RONDO_TRY(sum());
          EXPECT_EQ(blocks, free_choice);
          return {};
        },
        options);
  }
}

// The caller's event shows that the kernel has begun, or that the stream has reached the call, while the other rank has
// not even called: directly, in a group and in a graph.
TEST(DeviceLaunchTest, EventsTellThatACallHasBegun) {
  const struct {
    std::string engine;
    int version;
  } cases[] = {{"interpreter", 13000}, {"interpreter", 12020}, {"stream", 13000}};
  for (const auto& c : cases) {
    const std::string& engine = c.engine;
    const int version = c.version;
    SCOPED_TRACE(fmt::format("{}, CUDA {}", engine, version));
    FakeMachine machine = FakeMachine::uniform(2);
    machine.driver_version = version;
    EmulatedCuda cuda(machine);
    SpawnOptions options;
    options.config = device_config("device_engine = " + engine);
    std::atomic<int> seen{0};
    spawn_threads(
        2,
        [&](Communicator& comm) -> Status {
          use_device(comm);
          const cuda::Driver* d = cuda::driver();
          Floats a(comm, 2000);
          Stream stream;
          RONDO_TRY_ASSIGN(const cuda::OwnedEvent begun, cuda::OwnedEvent::make());
          CallOptions call = stream.options();
          auto sum = [&](const CallOptions& o) {
            return comm.all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &o);
          };
          a.set_simple(comm.rank());
          RONDO_TRY(sum(call));  // makes the connections
          stream.wait();
          if (comm.rank() == 0) call.launch_event = begun.get();
          for (const bool grouped : {false, true}) {
            const int round = grouped ? 2 : 1;
            a.set_simple(comm.rank());
            while (comm.rank() == 1 && seen < round) std::this_thread::yield();
            if (grouped) group_start();
            RONDO_TRY(sum(call));
            if (grouped) RONDO_TRY(group_end());
            if (comm.rank() == 0) {
              EXPECT_EQ(d->event_synchronize(begun.get()), 0);
              EXPECT_NE(d->stream_query(stream.get()), 0) << "rank 1 has not called";
              seen = round;
            }
            stream.wait();
            EXPECT_TRUE(a.holds_simple_sum(2));
          }
          // The same event twice counts once. A captured launch cannot record two.
          RONDO_TRY_ASSIGN(const cuda::OwnedEvent second, cuda::OwnedEvent::make());
          auto group_of_two = [&](cuda::Event x, cuda::Event y) -> Status {
            CallOptions told = call;
            group_start();
            told.launch_event = x;
            Status s = sum(told);
            told.launch_event = y;
            if (s.ok()) s = sum(told);
            const Status ended = group_end();
            return s.ok() ? ended : s;
          };
          RONDO_TRY(group_of_two(begun.get(), second.get()));
          stream.wait();
          EXPECT_EQ(d->event_synchronize(begun.get()), 0);
          EXPECT_EQ(d->event_synchronize(second.get()), 0);
          if (version < 12030) return comm.error();  // there a captured event is the stream's own work
          if (engine == "interpreter") {
            EXPECT_EQ(cuda.fake().begin_capture(stream.get(), cuda::kCaptureModeThreadLocal), 0);
            EXPECT_TRUE(
                fails_with(group_of_two(begun.get(), second.get()), StatusCode::kUnsupported, {"launch_event"}));
            RONDO_TRY(group_of_two(begun.get(), begun.get()));
            cuda::Graph graph = nullptr;
            EXPECT_EQ(cuda.fake().end_capture(stream.get(), &graph), 0);
            EXPECT_EQ(cuda.fake().launch_graph(graph, stream.get()), 0);
            stream.wait();
            EXPECT_EQ(cuda.fake().destroy_graph(graph), 0);
          }
          EXPECT_EQ(cuda.fake().begin_capture(stream.get(), cuda::kCaptureModeThreadLocal), 0);
          RONDO_TRY(sum(call));
          cuda::Graph graph = nullptr;
          EXPECT_EQ(cuda.fake().end_capture(stream.get(), &graph), 0);
          a.set_simple(comm.rank());
          EXPECT_EQ(cuda.fake().launch_graph(graph, stream.get()), 0);
          stream.wait();
          EXPECT_TRUE(a.holds_simple_sum(2));
          EXPECT_EQ(cuda.fake().destroy_graph(graph), 0);
          return comm.error();
        },
        options);
    EXPECT_EQ(cuda.fake().leaks(), "");
  }
}

TEST(DeviceLaunchTest, LimitsOfBlocksAreChecked) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  SpawnOptions options;
  options.config = device_config("");
  spawn_threads(
      1,
      [&](Communicator& comm) -> Status {
        use_device(comm);
        Floats a(comm, 10);
        for (const auto& [least, most, name] :
             {std::tuple(-1, 0, "min_blocks"), {0, 1025, "max_blocks"}, {3, 2, "max_blocks"}}) {
          CallOptions call;
          call.min_blocks = least, call.max_blocks = most;
          const Status s = comm.all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &call);
          EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
          EXPECT_NE(s.message().find(name), std::string::npos) << s.message();
        }
        return comm.error();
      },
      options);
}

}  // namespace
}  // namespace rondo::testing
