// Messages sent by address: read from the writers' memory, late or not at all, while writers go on or need their
// buffers for other data. Results must equal those of copied messages.
// labels: unit tsan
// timeout: 180
#include <gtest/gtest.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <memory>
#include <random>
#include <vector>

#include "conformance/conformance_cases.h"
#include "support/forwarding_transport.h"
#include "support/shared.h"
#include "support/simple_calls.h"

namespace rondo::testing {
namespace {

/// Controls and counters of the readers of a communicator's ranks.
struct Pulls {
  uint32_t most_us = 0;  // each is late by a time below this
  std::atomic<uint64_t> num_pulls{0};
  std::atomic<bool> holds{false};  // each waits after it has begun and before it reads
  std::atomic<bool> held{false};   // one of them waits
  std::atomic<int> num_held{0};
  std::atomic<bool> fails{false};                          // the kernel refuses
  enum class Later { kWorks, kFails, kFailsInTheMiddle };  // after a message's first block, except its last byte
  std::atomic<Later> later{Later::kWorks};
  std::atomic<uint64_t> num_later{0};  // blocks after the first
};

// Threads share memory. The kernel reads it here as it reads another process's, hidden from sanitizers: a writer may
// change data that a late reader reads and then discards.
class PullingTransport final : public ForwardingTransport {
 public:
  PullingTransport(Rank rank, std::unique_ptr<Transport> real, Pulls& pulls)
      : ForwardingTransport(std::move(real)), rank_(rank), pulls_(pulls), random_(static_cast<unsigned>(rank)) {}
  bool sends_by_address(const ConnectionKey& key) const override {
    return !key.inline_only && key.writer != key.reader;
  }
  // Its driver carries messages, like a network's: nothing runs in one pass.
  bool needs_progress() const override { return true; }
  bool progress() override {
    // A writer waits a while at each poll until its reader is held. The message must be sent first.
    for (const Stopwatch watch; rank_ != 0 && pulls_.holds && !pulls_.held && watch.seconds() < 2e-3;) sched_yield();
    return ForwardingTransport::progress();
  }
  Status pull(Rank, const RemoteAddress& address, uint64_t offset_bytes, void* to, uint64_t bytes) override {
    ++pulls_.num_pulls;
    const bool behind = offset_bytes != 0, end = behind && bytes == 1;
    pulls_.num_later += behind && !end ? 1 : 0;
    if (pulls_.most_us != 0) usleep(random_() % pulls_.most_us);
    if (pulls_.holds) {
      ++pulls_.num_held;
      pulls_.held = true;
      while (pulls_.holds) sched_yield();
    }
    const Pulls::Later later = pulls_.later;
    if (pulls_.fails || (later == Pulls::Later::kFails && behind) ||
        (later == Pulls::Later::kFailsInTheMiddle && behind && !end))
      return Status(StatusCode::kSystem, "the kernel says no");
    EXPECT_EQ(address.region, RemoteAddress::kByCopy);
    const iovec local{to, bytes}, remote{reinterpret_cast<void*>(address.offset_bytes + offset_bytes), bytes};
    const bool read = process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
    // Once a call has failed, its writers may free their data, which are in the ring then.
    EXPECT_TRUE(read || later == Pulls::Later::kFailsInTheMiddle);
    return read ? Status() : Status(StatusCode::kSystem, "the data are gone");
  }

 private:
  const Rank rank_;
  Pulls& pulls_;
  std::mt19937 random_;
};

// Long enough to be sent by address.
Config with_long_messages() {
  Config config;
  config.settings = "message_bytes = 65536";
  return config;
}

TransportDecorator pulling(Pulls& pulls) {
  return [&pulls](Rank rank, int, std::unique_ptr<Transport> real) {
    return std::make_unique<PullingTransport>(rank, std::move(real), pulls);
  };
}

// In place too, with sent data overwritten in the same call. The runner refills its buffers as soon as a call has
// returned.
TEST(SendByAddress, EveryAlgorithmGivesTheSameBits) {
  for (const int nranks : kSanitized ? std::vector<int>{2, 3} : std::vector<int>{2, 3, 5, 8}) {
    for (const uint32_t most_us : {0u, 300u}) {
      Pulls pulls;
      pulls.most_us = most_us;
      run_cases(World::kThreads, nranks, Memory::kHeap, large_cases(nranks, 1'200'000), with_long_messages(), 0,
                pulling(pulls));
      EXPECT_GT(pulls.num_pulls, 100u) << nranks;
      if (nranks >= 5) EXPECT_GT(pulls.num_later, 100u) << nranks;  // data of many senders is read in blocks
    }
  }
}

// A reader so late that the writer's call is over and its buffer holds other data still gets the message, and the
// writer does not wait.
TEST(SendByAddress, ALateReaderKeepsNobodyAndGetsTheMessage) {
  constexpr uint64_t kElems = 40'000;
  Pulls pulls;
  SpawnOptions options;
  options.decorate = pulling(pulls);
  options.config = with_long_messages();
  std::barrier<> round_begins(2);
  spawn(
      World::kThreads, 2,
      [&](Communicator& comm) {
        std::vector<float> in(kElems), out(kElems);
        CallOptions call;
        call.algorithm = "one_shot";
        // If the reader comes after the end of the writer's call, it need not be held.
        for (int round = 0; round < 2000 && pulls.num_held < 5; ++round) {
          in.assign(kElems, static_cast<float>(comm.rank() + 1));
          if (comm.rank() == 1) {
            pulls.held = false;
            pulls.holds = true;
          }
          round_begins.arrive_and_wait();
          // Only rank 0 receives, and its reader is held.
          ASSERT_TRUE(is_ok(comm.reduce(in.data(), comm.rank() == 0 ? out.data() : nullptr, kElems, Dtype::kFloat32,
                                        Op::kSum, 0, &call)));
          if (comm.rank() == 1) {
            in.assign(kElems, -1);
            pulls.holds = false;
          } else {
            ASSERT_EQ(std::count(out.begin(), out.end(), 3.0f), static_cast<ptrdiff_t>(kElems)) << round;
          }
          round_begins.arrive_and_wait();
        }
      },
      options);
  EXPECT_GE(pulls.num_held, 5);
}

// Memory that the kernel refuses to read goes through the ring. A refused writer soon stops sending by address to that
// reader. (A writer that ends just then may not notice.)
TEST(SendByAddress, WhatCannotBeReadComesThroughTheRing) {
  constexpr int kRounds = 40;
  for (const char* algorithm : {"ring", "one_shot"}) {
    Pulls pulls;
    pulls.fails = true;
    SpawnOptions options;
    options.decorate = pulling(pulls);
    options.config = with_long_messages();
    options.config.deadline_s = 20;
    spawn(
        World::kThreads, 3,
        [&](Communicator& comm) {
          CallOptions how;
          how.algorithm = algorithm;
          for (int round = 0; round < kRounds; ++round) {
            SimpleAllReduce call(comm, 100'000);
            ASSERT_TRUE(is_ok(call.start(comm, nullptr, &how)));
            ASSERT_EQ(call.judge(), "") << round;
          }
        },
        options);
    EXPECT_GE(pulls.num_pulls, 1u) << algorithm;
    EXPECT_LE(pulls.num_pulls, kRounds) << algorithm;  // of several per round
  }
}

// A message that begins in readable memory and ends in other memory comes through the ring as well.
TEST(SendByAddress, WhatCannotBeReadToItsEndComesThroughTheRing) {
  Pulls pulls;
  pulls.later = Pulls::Later::kFails;
  SpawnOptions options;
  options.decorate = pulling(pulls);
  options.config = with_long_messages();
  options.config.deadline_s = 20;
  spawn(
      World::kThreads, 5,
      [&](Communicator& comm) {
        CallOptions how;
        how.algorithm = "one_shot";
        for (int round = 0; round < 10; ++round) {
          SimpleAllReduce call(comm, 300'000);
          ASSERT_TRUE(is_ok(call.start(comm, nullptr, &how)));
          ASSERT_EQ(call.judge(), "") << round;
        }
      },
      options);
  EXPECT_EQ(pulls.num_later, 0u);
  EXPECT_GE(pulls.num_pulls, 1u);
}

// Within a message nothing can be repeated: part of it has been added, perhaps in place. The call ends with the
// kernel's error, also if the sum was to be forwarded, and no rank hangs.
TEST(SendByAddress, WhatCannotBeReadAnyMoreEndsTheCall) {
  constexpr int kRanks = 5;
  for (const char* algorithm : {"one_shot", "two_shot"}) {
    Pulls pulls;
    SpawnOptions options;
    options.decorate = pulling(pulls);
    options.config = with_long_messages();
    options.config.deadline_s = 20;
    std::atomic<int> told = 0;
    std::barrier<> all(kRanks);
    const Stopwatch watch;
    spawn(
        World::kThreads, kRanks,
        [&](Communicator& comm) {
          CallOptions how;
          how.algorithm = algorithm;
          for (int round = 0; round < 10; ++round) {  // lines and rings are reused
            SimpleAllReduce call(comm, 1'000'000);
            ASSERT_TRUE(is_ok(call.start(comm, nullptr, &how)));
            ASSERT_EQ(call.judge(), "") << round;
          }
          all.arrive_and_wait();
          pulls.later = Pulls::Later::kFailsInTheMiddle;
          std::vector<float> data(1'000'000, 1);
          const Status status = comm.all_reduce(data.data(), data.data(), data.size(), Dtype::kFloat32, Op::kSum, &how);
          EXPECT_FALSE(status.ok());
          if (status.message().find("the kernel says no") != std::string_view::npos) ++told;
        },
        options);
    EXPECT_GE(told, 1) << algorithm;
    EXPECT_LT(watch.seconds(), 15);
    EXPECT_GE(pulls.num_later, 1u);
  }
}

}  // namespace
}  // namespace rondo::testing
