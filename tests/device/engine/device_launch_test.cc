// Contents of a launch on devices: limits of thread blocks, groups that need more blocks than exist, communicators of
// both engines in a group, events for the begin of a launch. Emulated devices; ranks are threads.
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

// A rank with the caller's event for the begin of its calls.
class RankWithEvent {
 public:
  RankWithEvent(Communicator& comm, FakeCuda& fake) : comm_(comm), fake_(fake), data_(comm, 2000) {
    begun_ = std::move(*cuda::OwnedEvent::make());
    second_ = std::move(*cuda::OwnedEvent::make());
  }
  Status sum(cuda::Event begun) {
    CallOptions call = stream.options();
    call.launch_event = begun;
    return comm_.all_reduce(data_.data(), data_.data(), data_.size(), Dtype::kFloat32, Op::kSum, &call);
  }
  Status grouped_sums(const std::vector<cuda::Event>& events) {
    Status s;
    group_start();
    for (const cuda::Event e : events)
      if (s.ok()) s = sum(e);
    const Status ended = group_end();
    return s.ok() ? ended : s;
  }
  void capture() { EXPECT_EQ(fake_.begin_capture(stream.get(), cuda::kCaptureModeThreadLocal), 0); }
  void replay() {
    cuda::Graph graph = nullptr;
    EXPECT_EQ(fake_.end_capture(stream.get(), &graph), 0);
    set();
    EXPECT_EQ(fake_.launch_graph(graph, stream.get()), 0);
    stream.wait();
    EXPECT_EQ(fake_.destroy_graph(graph), 0);
  }
  void set() { data_.set_simple(comm_.rank()); }
  void expect_sum() { EXPECT_TRUE(data_.holds_simple_sum(2)); }
  static void expect_recorded(cuda::Event e) { EXPECT_EQ(cuda::driver()->event_synchronize(e), 0); }
  cuda::Event begun() const { return begun_.get(); }
  cuda::Event second() const { return second_.get(); }
  const Stream stream;

 private:
  Communicator& comm_;
  FakeCuda& fake_;
  Floats data_;
  cuda::OwnedEvent begun_, second_;
};

// Runs `fn` on two ranks: with a driver that tells when a kernel has begun, one that does not, and without a kernel.
template <class Fn>
void with_events(FakeLimits limits, Fn fn) {
  const struct {
    std::string engine;
    int version;
  } cases[] = {{"interpreter", 13000}, {"interpreter", 12020}, {"stream", 13000}};
  for (const auto& c : cases) {
    SCOPED_TRACE(fmt::format("{}, CUDA {}", c.engine, c.version));
    FakeMachine machine = FakeMachine::uniform(2);
    machine.driver_version = c.version;
    machine.limits = limits;
    EmulatedCuda cuda(machine);
    SpawnOptions options;
    options.config = device_config("device_engine = " + c.engine);
    std::atomic<int> seen{0};
    spawn_threads(
        2,
        [&](Communicator& comm) -> Status {
          use_device(comm);
          RankWithEvent rank(comm, cuda.fake());
          RONDO_TRY(rank.sum(nullptr));  // makes the connections
          rank.stream.wait();
          RONDO_TRY(fn(comm, rank, seen, c.engine == "interpreter", c.version));
          return comm.error();
        },
        options);
    EXPECT_EQ(cuda.fake().leaks(), "");
  }
}

// The caller's event shows that the kernel has begun, or that the stream has reached the call, while the other rank has
// not even called: directly and in a group. The driver need not tell this before the kernel ends, but may.
TEST(DeviceLaunchTest, EventsTellThatACallHasBegun) {
  FakeLimits punctual = FakeLimits::from_env();
  punctual.late = false;
  with_events(punctual, [](Communicator& comm, RankWithEvent& rank, std::atomic<int>& seen, bool, int) -> Status {
    for (const bool grouped : {false, true}) {
      const int round = grouped ? 2 : 1;
      const cuda::Event event = comm.rank() == 0 ? rank.begun() : nullptr;
      rank.set();
      while (comm.rank() == 1 && seen < round) std::this_thread::yield();
      RONDO_TRY(grouped ? rank.grouped_sums({event}) : rank.sum(event));
      if (comm.rank() == 0) {
        RankWithEvent::expect_recorded(event);
        EXPECT_NE(cuda::driver()->stream_query(rank.stream.get()), 0) << "rank 1 has not called";
        seen = round;
      }
      rank.stream.wait();
      rank.expect_sum();
    }
    return {};
  });
}

// Whenever the driver tells it, a call that has ended has begun. The same event twice counts once. A captured launch
// cannot record two.
TEST(DeviceLaunchTest, EventsOfCallsComeByTheirEnd) {
  const auto fn = [](Communicator& comm, RankWithEvent& rank, std::atomic<int>&, bool kernel, int version) -> Status {
    const cuda::Event x = comm.rank() == 0 ? rank.begun() : nullptr, y = comm.rank() == 0 ? rank.second() : nullptr;
    for (const std::vector<cuda::Event>& events : {std::vector{x}, {x, y}, {y, y}}) {
      RONDO_TRY(events.size() == 1 ? rank.sum(x) : rank.grouped_sums(events));
      rank.stream.wait();
      if (comm.rank() == 0)
        for (const cuda::Event e : events) RankWithEvent::expect_recorded(e);
    }
    if (version < 12030) return {};  // there a captured event is the stream's own work
    if (kernel) {
      rank.capture();
      if (comm.rank() == 0) {
        EXPECT_TRUE(fails_with(rank.grouped_sums({x, y}), StatusCode::kUnsupported, {"launch_event"}));
      }
      RONDO_TRY(rank.grouped_sums({x, x}));
      rank.replay();
    }
    rank.capture();
    RONDO_TRY(rank.sum(x));
    rank.replay();
    rank.expect_sum();
    return {};
  };
  with_events(FakeLimits::from_env(), fn);
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
