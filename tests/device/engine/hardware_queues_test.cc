// Streams of several ranks that share a device's hardware queues (FakeLimits::queues): what works with how many, the
// warning, and the error if there are too few; calls longer than a stream's queue. Emulated devices.
// labels: unit tsan
// timeout: 180
// links: host_kernels
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "device/engine/device_floats.h"
#include "support/emulated_cuda.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

constexpr const char* kEngines[] = {"interpreter", "stream"};

FakeMachine with_queues(uint32_t queues) {
  FakeMachine machine = FakeMachine::uniform(1);
  machine.limits = {.queues = queues};
  machine.deadline_s = 20;
  return machine;
}
Config config_of(const std::string& engine, double deadline_s) {
  Config config = device_config("device_engine = " + engine);
  config.deadline_s = deadline_s;
  return config;
}

// First in this file: the warning comes once in a process.
TEST(HardwareQueuesTest, TooFewAreReportedOnce) {
  const struct {
    int ranks;
    bool reported;
  } cases[] = {{7, false}, {8, true}, {8, false}};
  for (const auto& c : cases) {
    EmulatedCuda cuda(with_queues(8));
    ::testing::internal::CaptureStderr();
    auto comms = Communicator::init_all(c.ranks, config_of("stream", 10));
    const std::string text = ::testing::internal::GetCapturedStderr();
    ASSERT_TRUE(comms.ok()) << comms.status().to_string();
    for (const char* part : {"8 ranks of this process use device 0", "8 hardware queues",
                             "CUDA_DEVICE_MAX_CONNECTIONS=32", "process", "groups"})
      EXPECT_EQ(text.find(part) != std::string::npos, c.reported) << text;
    EXPECT_EQ(text.find("rondo: "), text.rfind("rondo: ")) << text;
  }
}

// The ranks of one thread, with a stream for all.
class OneThread {
 public:
  OneThread(int ranks, const Config& config, size_t elems) : elems_(elems) {
    auto made = Communicator::init_all(ranks, config);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    comms = std::move(*made);
    use_device(*comms[0]);
    for (auto& c : comms) {
      streams.emplace_back();
      data_.push_back(std::make_unique<Floats>(*c, elems));
      to_.push_back(std::make_unique<Floats>(*c, elems));
    }
  }
  Status sum(size_t r, const Stream& stream, Work* work = nullptr) {
    const CallOptions call = stream.options();
    float* const data = data_[r]->data();
    return comms[r]->all_reduce(data, data, elems_, Dtype::kFloat32, Op::kSum, &call, work);
  }
  // A sum, and its result to the next rank.
  Status grouped(const Stream& stream) {
    const CallOptions call = stream.options();
    const auto n = static_cast<Rank>(comms.size());
    group_start();
    for (Rank r = 0; r < n; ++r) {
      const auto i = static_cast<size_t>(r);
      RONDO_TRY(sum(i, stream));
      RONDO_TRY(comms[i]->send(data_[i]->data(), elems_, Dtype::kFloat32, (r + 1) % n, &call));
      RONDO_TRY(comms[i]->recv(to_[i]->data(), elems_, Dtype::kFloat32, (r + n - 1) % n, &call));
    }
    return group_end();
  }
  void set() {
    for (size_t r = 0; r < comms.size(); ++r) data_[r]->set_simple(static_cast<Rank>(r));
  }
  bool holds_sums(float times = 1) const {
    const auto n = static_cast<int>(comms.size());
    return std::all_of(data_.begin(), data_.end(), [&](const auto& d) { return d->holds_simple_sum(n, times); });
  }
  bool holds_messages() const {
    const auto n = static_cast<int>(comms.size());
    return std::all_of(to_.begin(), to_.end(), [&](const auto& d) { return d->holds_simple_sum(n); });
  }

  std::vector<std::unique_ptr<Communicator>> comms;
  std::vector<Stream> streams;

 private:
  size_t elems_;
  std::vector<std::unique_ptr<Floats>> data_, to_;
};

// Ranks of one thread in a group need no queue of their own: their work is issued in an order in which nothing waits
// for something behind it. The long messages need more slots than a connection of the stream engine has.
TEST(HardwareQueuesTest, AGroupOfOneThreadNeedsOneQueue) {
  const struct {
    const char* engine;
    int ranks;
    size_t elems;
  } cases[] = {
      {"interpreter", 2, 20'000}, {"interpreter", 5, 5000}, {"stream", 2, size_t{9} << 18}, {"stream", 5, 5000}};
  for (const auto& c : cases)
    for (const uint32_t queues : {1u, 2u}) {
      SCOPED_TRACE(fmt::format("{}, {} ranks, {} queues", c.engine, c.ranks, queues));
      FakeMachine machine = with_queues(queues);
      machine.limits.operations = 64;
      EmulatedCuda cuda(machine);
      {
        OneThread thread(c.ranks, config_of(c.engine, 10), c.elems);
        Stream stream;
        for (int round = 0; round < 2; ++round) {
          thread.set();
          ASSERT_TRUE(is_ok(thread.grouped(stream)));
          stream.wait();
          ASSERT_TRUE(is_ok(thread.comms[0]->error()));
          EXPECT_TRUE(thread.holds_sums());
          EXPECT_TRUE(thread.holds_messages());
        }
      }
      EXPECT_EQ(cuda.fake().leaks(), "");
    }
}

// Ranks with threads of their own need a queue for each stream, and one for set-up.
TEST(HardwareQueuesTest, AQueueForEachRankAndOneMoreAreEnough) {
  for (const char* engine : kEngines)
    for (const int ranks : {1, 3, 7}) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", engine, ranks));
      EmulatedCuda cuda(with_queues(static_cast<uint32_t>(ranks) + 1));
      SpawnOptions options;
      options.config = config_of(engine, 20);
      spawn_threads(
          ranks,
          [&](Communicator& comm) -> Status {
            use_device(comm);
            Stream stream;
            const CallOptions call = stream.options();
            for (const size_t elems : {1000u, 100'000u}) {
              Floats a(comm, elems), b(comm, elems);
              for (int round = 0; round < 2; ++round) {
                a.set_simple(comm.rank());
                for (int i = 0; i < 2; ++i) {
                  RONDO_TRY(comm.all_reduce(a.data(), b.data(), elems, Dtype::kFloat32, Op::kSum, &call));
                  RONDO_TRY(comm.all_reduce(a.data(), a.data(), elems, Dtype::kFloat32, Op::kMax, &call));
                }
                stream.wait();
              }
            }
            return comm.error();
          },
          options);
      EXPECT_EQ(cuda.fake().leaks(), "");
    }
}

// Otherwise a rank's second call can stand before another rank's first one, which its own first one waits for. All
// ranks get an error at the deadline.
TEST(HardwareQueuesTest, TooFewEndAtTheDeadline) {
  for (const char* engine : kEngines)
    for (const uint32_t queues : {1u, 8u}) {
      SCOPED_TRACE(fmt::format("{}, {} queues", engine, queues));
      EmulatedCuda cuda(with_queues(queues));
      {
        OneThread thread(2, config_of(engine, queues == 1 ? 0.5 : 20), 5000);
        thread.set();
        ASSERT_TRUE(is_ok(thread.grouped(thread.streams[0])));  // makes the connections
        thread.streams[0].wait();
        thread.set();
        std::vector<Work> works(4);
        for (size_t i = 0; i < 4; ++i)  // rank 0 twice, then rank 1 twice
          ASSERT_TRUE(is_ok(thread.sum(i / 2, thread.streams[i / 2], &works[i])));
        int late = 0;
        for (size_t i = 0; i < 4; ++i) {
          const Status s = works[i].wait();
          if (queues != 1) {
            EXPECT_TRUE(is_ok(s));
            continue;
          }
          EXPECT_TRUE(s.code() == StatusCode::kTimeout || s.code() == StatusCode::kAborted) << s.to_string();
          late += s.code() == StatusCode::kTimeout;
          EXPECT_NE(s.message().find(fmt::format("rank {}: ", i / 2)), std::string::npos) << s.to_string();
        }
        EXPECT_EQ(late != 0, queues == 1);
        if (queues != 1) {
          EXPECT_TRUE(thread.holds_sums(2));
        }
      }
      EXPECT_EQ(cuda.fake().leaks(), "");
    }
}

// A call longer than the stream's queue blocks its thread in the driver, if no other rank takes part.
TEST(HardwareQueuesTest, ACallLongerThanAQueueEndsAtItsDeadline) {
  constexpr size_t kElems = size_t{6} << 20;
  FakeMachine machine = FakeMachine::uniform(1);
  machine.limits.operations = 64;
  machine.deadline_s = 20;
  EmulatedCuda cuda(machine);
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  spawn_threads(2, [&](Communicator& host) -> Status {
    RONDO_TRY_ASSIGN(const auto comm, host.split(0, host.rank(), device_config("device_engine = stream")));
    use_device(*comm);
    Floats data(*comm, kElems);
    Stream stream;
    CallOptions call = stream.options();
    RONDO_TRY(comm->all_reduce(data.data(), data.data(), kElems, Dtype::kFloat32, Op::kSum, &call));
    stream.wait();  // the connections are made
    if (comm->rank() == 0) {
      call.deadline_s = 0.5;
      const uint64_t since = rondo::monotonic_ns();
      (void)comm->all_reduce(data.data(), data.data(), kElems, Dtype::kFloat32, Op::kSum, &call);
      EXPECT_LT(rondo::monotonic_ns() - since, 8'000'000'000u);
      EXPECT_TRUE(fails_with(comm->error(), StatusCode::kTimeout, {"rank 0"}));
      end.set_value();
    }
    EXPECT_EQ(ended.wait_for(std::chrono::seconds(10)), std::future_status::ready);
    return Status();
  });
}

}  // namespace
}  // namespace rondo::testing
