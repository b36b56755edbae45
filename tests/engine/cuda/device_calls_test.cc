// Communicators of device memory beyond conformance: streams, groups, graphs, several communicators, messages between
// two ranks, parts of different lengths, scales in device memory; and what goes wrong. Emulated devices; ranks are threads.
// labels: unit tsan
// timeout: 120
// links: host_kernels
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "engine/cuda/device_floats.h"
#include "support/emulated_cuda.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

// Runs on both engines; `fn` gets the communicator with its context current.
template <class Fn>
void on_devices(int devices, int nranks, Fn fn) {
  for (const char* engine : {"interpreter", "stream"}) {
    SCOPED_TRACE(engine);
    EmulatedCuda cuda(FakeMachine::uniform(devices));
    SpawnOptions options;
    options.config = device_config(std::string("device_channels = 2\ndevice_engine = ") + engine);
    options.config.deadline_s = 30;
    spawn_threads(
        nranks,
        [&](Communicator& comm) -> Status {
          use_device(comm);
          return fn(comm);
        },
        options);
    EXPECT_EQ(cuda.fake().leaks(), "");
  }
}

// Calls of one communicator run in the order of their issue, whatever their streams.
TEST(DeviceCallsTest, CallsOnSeveralStreamsAreChained) {
  on_devices(1, 3, [](Communicator& comm) -> Status {
    Floats a(comm, 1000);
    a.set_simple(comm.rank());
    Stream streams[3];
    for (int i = 0; i < 3; ++i) {  // each sums what the one before has left
      const CallOptions options = streams[i].options();
      RONDO_TRY(comm.all_reduce(a.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &options));
    }
    streams[2].wait();
    EXPECT_TRUE(a.holds_simple_sum(3, 9));
    return comm.error();
  });
}

// What stands in the caller's stream before a call is done before it, what stands behind it comes after.
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

// What a kernel has inlined runs by it when that is asked for, beside calls that the interpreter runs, also in a group.
TEST(DeviceCallsTest, InlinedTexts) {
  for (const bool inlines : {false, true}) {
    EmulatedCuda cuda(FakeMachine::uniform(2));
    SpawnOptions options;
    options.config = device_config("device_channels = 2\ndevice_engine = interpreter\nalgo = ring\ndevice_inline = " +
                                   std::string(inlines ? "on" : "off"));
    options.config.deadline_s = 30;
    spawn_threads(
        2,
        [&](Communicator& comm) -> Status {
          use_device(comm);
          const std::string sum = comm.explain_plan(Collective::kAllReduce, 3001, Dtype::kFloat32, Op::kSum);
          EXPECT_EQ(sum.starts_with("ring ll inlined, ") || sum.starts_with("ring simple inlined, "), inlines) << sum;
          const std::string most = comm.explain_plan(Collective::kAllReduce, 3001, Dtype::kFloat32, Op::kMax);
          EXPECT_EQ(most.find("inlined"), std::string::npos) << most;
          Floats a(comm, 3001), b(comm, 3001), whole(comm, 2 * 3001), c(comm, 900);
          Stream stream;
          const CallOptions call = stream.options();
          for (int round = 0; round < 3; ++round) {
            a.set_simple(comm.rank());
            c.set_simple(comm.rank());
            group_start();
            RONDO_TRY(comm.all_reduce(a.data(), b.data(), a.size(), Dtype::kFloat32, Op::kSum, &call));
            RONDO_TRY(comm.all_reduce(c.data(), c.data(), c.size(), Dtype::kFloat32, Op::kMax, &call));
            RONDO_TRY(comm.all_gather(a.data(), whole.data(), a.size(), Dtype::kFloat32, &call));
            RONDO_TRY(group_end());
            RONDO_TRY(comm.reduce_scatter(whole.data(), a.data(), a.size(), Dtype::kFloat32, Op::kSum, &call));
            stream.wait();
            EXPECT_TRUE(b.holds_simple_sum(2));
            EXPECT_EQ(c.get()[50], simple_value(1, 50));
            EXPECT_EQ(whole.get()[3001 + 77], simple_value(1, 77));
            EXPECT_EQ(a.get()[77], 2 * simple_value(comm.rank(), 77));
          }
          return comm.error();
        },
        options);
    EXPECT_EQ(cuda.has_found("rondo_interpret_float_sum"), !inlines);
    EXPECT_EQ(cuda.has_found("rondo_ring_all_reduce_float_sum"), inlines);
    EXPECT_EQ(cuda.has_found("rondo_ring_reduce_scatter_float_sum"), inlines);
    EXPECT_EQ(cuda.has_found("rondo_ring_all_gather_copy"), inlines);
    EXPECT_TRUE(cuda.has_found("rondo_interpret_float_max"));
    EXPECT_EQ(cuda.fake().leaks(), "");
  }
}

// One thread owns all ranks, on one stream: the group makes one launch of them.
TEST(DeviceCallsTest, OneThreadOwnsAllRanks) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  auto comms = Communicator::init_all(4, device_config("device_channels = 2"));
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
      for (Rank p = 0; p < n; ++p) {  // to itself too, twice: messages of a pair keep their order
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

// Of every rank to every one, itself too: 14 units of blocks on a share of 3.
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
  /// Of a distance that is a multiple of `step`.
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

TEST(DeviceCallsTest, MoreMessagesThanBlocks) {
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
            // Ranks list them in orders of their own.
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

TEST(DeviceCallsTest, MoreMessagesThanBlocksOfRanksOfOneThread) {
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
      EXPECT_EQ(cuda.fake().calls("cuLaunchKernelEx") - before, 5u);  // 10 units of each of 5 ranks, 15 blocks
    }
    messages.clear();
    while (!comms->empty()) comms->pop_back();
  }
  EXPECT_EQ(cuda.fake().leaks(), "");
}

// A communicator of one rank is driven by streams, others by a kernel; a group holds both, in either order.
TEST(DeviceCallsTest, GroupsOfBothEngines) {
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

// Calls of two communicators that do not fit their device together, whose shares of it differ.
TEST(DeviceCallsTest, CommunicatorsThatDoNotFitTogether) {
  EmulatedCuda cuda(small_device(24));
  SpawnOptions options;
  options.config = device_config("device_channels = 2\nalgo = ring\nproto = simple\ndevice_min_blocks = 6");
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

// A captured call replays with the same values every time, among calls that are not captured.
TEST(DeviceCallsTest, CapturedCallsReplayAmongOthers) {
  for (const char* engine : {"interpreter", "stream"}) {
    SCOPED_TRACE(engine);
    EmulatedCuda cuda(FakeMachine::uniform(1));
    SpawnOptions spawn_options;
    spawn_options.config = device_config(std::string("device_channels = 2\ndevice_engine = ") + engine);
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
            if (round % 3 == 0) {  // on a stream of its own: in order all the same
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

// A ring has three lanes: blocks come in threes. A limit that no algorithm can keep is kept as far as it can be.
TEST(DeviceCallsTest, LimitsOfBlocksAreKept) {
  const struct {
    const char* settings;
    uint64_t count;
    const char* channels;
  } cases[] = {{"device_max_blocks = 7", 1 << 20, " 2 channels"},
               {"device_max_blocks = 1", 1 << 20, " 1 channels"},
               {"device_min_blocks = 12", 64, " 4 channels"},
               {"device_min_blocks = 12\ndevice_max_blocks = 6", 64, " 2 channels"}};
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

// Of a call, beside those of its communicator: the narrower limit holds.
TEST(DeviceCallsTest, CallsLimitTheirBlocks) {
  const struct {
    const char* settings;
    int least, most;
    uint64_t count;
    uint32_t blocks;
  } cases[] = {{"", 0, 7, 1 << 20, 6},
               {"", 0, 1, 1 << 20, 3},  // as few as the algorithm has
               {"", 12, 0, 64, 12},
               {"", 12, 12, 1 << 20, 12},
               {"device_max_blocks = 6", 0, 9, 1 << 20, 6},
               {"device_max_blocks = 6", 12, 0, 64, 6}};
  for (const auto& c : cases) {
    SCOPED_TRACE(fmt::format("{} {} {}", c.settings, c.least, c.most));
    EmulatedCuda cuda(FakeMachine::uniform(2));
    float_sums = find_host_kernel("rondo_interpret_float_sum");
    cuda.fake().add_kernel("rondo_interpret_float_sum", {count_blocks, sizeof(LaunchArgs), true});
    SpawnOptions options;
    options.config = device_config(std::string("algo = ring\nproto = simple\ndevice_inline = off\n") + c.settings);
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
            // No rank launches its next sum before the other one has looked.
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

// The caller's event says that the kernel has begun, or that the stream has come to the call, while the other rank has
// not even called; eagerly, in a group and in a graph.
TEST(DeviceCallsTest, EventsTellThatACallHasBegun) {
  for (const auto& [engine, version] : {std::pair("interpreter", 13000), {"interpreter", 12020}, {"stream", 13000}}) {
    SCOPED_TRACE(fmt::format("{}, CUDA {}", engine, version));
    FakeMachine machine = FakeMachine::uniform(2);
    machine.driver_version = version;
    EmulatedCuda cuda(machine);
    SpawnOptions options;
    options.config = device_config(std::string("device_engine = ") + engine);
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
          // The same event twice is one; two are more than a captured launch can record.
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
          if (engine == std::string("interpreter")) {
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

TEST(DeviceCallsTest, LimitsOfBlocksAreChecked) {
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

// Two communicators whose calls come in one order on both ranks, on two streams, and a device that holds one launch at a
// time. Rank 0's first call is held up in its stream: its second one must not take the device meanwhile.
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
        constexpr size_t kCount = 200'000;  // both lanes of two channels at least
        Floats a(first, kCount), b(first, kCount);
        Stream x, y;
        const CallOptions on_x = x.options(), on_y = y.options();
        for (int warm = 0; warm < 2; ++warm) {  // connections are made
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

// --- what goes wrong

TEST(DeviceCallsTest, HostMemoryIsRefusedByName) {
  on_devices(1, 2, [](Communicator& comm) -> Status {
    std::vector<float> on_host(10);
    Floats a(comm, 10);
    EXPECT_TRUE(fails_with(comm.all_reduce(on_host.data(), a.data(), 10, Dtype::kFloat32, Op::kSum),
                           StatusCode::kInvalidArgument, {"in", "rank " + std::to_string(comm.rank()), "device 0"}));
    EXPECT_TRUE(fails_with(comm.all_reduce(a.data(), on_host.data(), 10, Dtype::kFloat32, Op::kSum),
                           StatusCode::kInvalidArgument, {"out"}));
    a.set_simple(comm.rank());
    Stream stream;
    const CallOptions options = stream.options();
    RONDO_TRY(comm.all_reduce(a.data(), a.data(), 10, Dtype::kFloat32, Op::kSum, &options));  // nothing is broken
    stream.wait();
    EXPECT_TRUE(a.holds_simple_sum(2));
    return comm.error();
  });
}

TEST(DeviceCallsTest, AnAbortEndsWhatWaitsOnTheDevice) {
  on_devices(1, 2, [](Communicator& comm) -> Status {
    Floats a(comm, 100);
    Stream stream;
    const CallOptions options = stream.options();
    RONDO_TRY(comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &options));
    stream.wait();
    if (comm.rank() == 1) {
      comm.abort();
      EXPECT_EQ(comm.error().code(), StatusCode::kAborted);
      return {};
    }
    Work work;
    Status s = comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &options, &work);
    if (s.ok()) s = work.wait();
    EXPECT_TRUE(fails_with(s, StatusCode::kAborted, {"rank 1 aborted"}));
    EXPECT_EQ(comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &options).code(),
              StatusCode::kAborted);
    return {};
  });
}

TEST(DeviceCallsTest, ADeadlineNamesWhoIsMissing) {
  on_devices(1, 2, [](Communicator& comm) -> Status {
    Floats a(comm, 100);
    Stream stream;
    CallOptions options = stream.options();
    RONDO_TRY(comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &options));
    stream.wait();
    if (comm.rank() == 1) {  // never calls the second
      while (comm.error().ok()) std::this_thread::yield();
      EXPECT_EQ(comm.error().code(), StatusCode::kAborted);
      return {};
    }
    options.deadline_s = 0.2;
    Work work;
    Status s = comm.all_reduce(a.data(), a.data(), 100, Dtype::kFloat32, Op::kSum, &options, &work);
    if (s.ok()) s = work.wait();
    EXPECT_TRUE(fails_with(s, StatusCode::kTimeout, {"rank 0", "rank 1 has not called it", "all_reduce"}));
    return {};
  });
}

// Two ranks that call different things hear so, on the device itself.
TEST(DeviceCallsTest, RanksThatDisagreeHearSo) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  SpawnOptions spawn_options;
  spawn_options.config = device_config("device_channels = 1\ndevice_engine = interpreter\nalgo = ring\nproto = simple");
  spawn_threads(
      2,
      [&](Communicator& comm) -> Status {
        use_device(comm);
        Floats a(comm, 4000);
        Stream stream;
        const CallOptions options = stream.options();
        RONDO_TRY(comm.all_reduce(a.data(), a.data(), 4000, Dtype::kFloat32, Op::kSum, &options));
        stream.wait();
        Work work;
        Status s = comm.all_reduce(a.data(), a.data(), comm.rank() == 0 ? 4000 : 3000, Dtype::kFloat32, Op::kSum,
                                   &options, &work);
        if (s.ok()) s = work.wait();
        EXPECT_TRUE(s.code() == StatusCode::kMismatch || s.code() == StatusCode::kAborted) << s.to_string();
        if (s.code() == StatusCode::kMismatch) {
          EXPECT_TRUE(fails_with(s, StatusCode::kMismatch, {"rank " + std::to_string(1 - comm.rank())}));
        }
        return {};
      },
      spawn_options);
}

TEST(DeviceCallsTest, FailuresOfTheDriverAreErrorsWithTheirNames) {
  EmulatedCuda cuda(FakeMachine::uniform(1));
  cuda.fake().fail("cuMemAlloc_v2", cuda::kErrorOutOfMemory);
  const auto none = Communicator::init_all(2, device_config());
  EXPECT_TRUE(fails_with(none.status(), StatusCode::kExhausted, {"cuMemAlloc", "rank"}));
  Config config = device_config();
  config.devices = {0, 3};
  EXPECT_TRUE(
      fails_with(Communicator::init_all(2, config).status(), StatusCode::kInvalidArgument, {"devices[1] is 3"}));
  config.devices = {0};
  EXPECT_TRUE(
      fails_with(Communicator::init_all(2, config).status(), StatusCode::kInvalidArgument, {"1 entries for 2"}));
  EXPECT_EQ(cuda.fake().leaks(), "");
}

TEST(DeviceCallsTest, WithoutADriverTheReasonIsGiven) {
  if (cuda::driver() != nullptr) GTEST_SKIP() << "this machine has a CUDA driver";
  const auto none = Communicator::init_all(2, device_config());
  EXPECT_TRUE(fails_with(none.status(), StatusCode::kUnsupported, {"no NVIDIA driver"}));
}

}  // namespace
}  // namespace rondo::testing
