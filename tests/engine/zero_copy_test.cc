// Zero-copy sends and posted receives: read as late and written as early as a transport may. Results must equal those
// of copied messages. Nothing is read after a call has returned, no data that is still to be sent is overwritten, and
// after a failed call the caller's memory is not used.
// labels: unit tsan
// timeout: 180
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <memory>
#include <vector>

#include "conformance/conformance_cases.h"
#include "support/fault_transport.h"
#include "support/simple_calls.h"

namespace rondo::testing {
namespace {

// The controls of a communicator's ranks, which all use zero-copy sends.
class ZeroCopySenders {
 public:
  explicit ZeroCopySenders(int nranks, uint32_t most_us) {
    for (int r = 0; r < nranks; ++r) {
      controls_.push_back(std::make_shared<FaultControl>(&nothing_));
      controls_.back()->send_zero_copy();
      if (most_us != 0) controls_.back()->delay_each(most_us, static_cast<uint32_t>(r));
    }
  }
  TransportDecorator decorator() {
    return [this](Rank rank, int nranks, std::unique_ptr<Transport> real) {
      return std::make_unique<FaultTransport>(rank, nranks, std::move(real), controls_[static_cast<size_t>(rank)]);
    };
  }
  FaultControl& operator[](Rank r) { return *controls_[static_cast<size_t>(r)]; }
  uint64_t total(uint64_t (FaultControl::*count)() const) const {
    uint64_t n = 0;
    for (const auto& c : controls_) n += (c.get()->*count)();
    return n;
  }

 private:
  FaultMoment nothing_;
  std::vector<std::shared_ptr<FaultControl>> controls_;
};

// Every algorithm, in place too, with short and long messages. The runner refills its buffers as soon as a call has
// returned.
TEST(ZeroCopy, EveryAlgorithmGivesTheSameBits) {
  for (const int nranks : kSanitized ? std::vector<int>{2, 3} : std::vector<int>{2, 3, 5, 8}) {
    ZeroCopySenders zero_copy_senders(nranks, 20);
    for (const uint64_t bytes : {30'000, 200'000})
      run_cases(World::kThreads, nranks, Memory::kHeap, large_cases(nranks, bytes), {}, 0,
                zero_copy_senders.decorator());
    EXPECT_GT(zero_copy_senders.total(&FaultControl::num_zero_copy), 100u) << nranks;
    EXPECT_EQ(zero_copy_senders.total(&FaultControl::num_changed), 0u) << nranks;
    EXPECT_GT(zero_copy_senders.total(&FaultControl::num_landed), 100u) << nranks;
  }
}

// So many short messages in one call that lines are reused before their zero-copy sends are complete.
TEST(ZeroCopy, ALineThatComesRoundBeforeItsZeroCopySendIsNotZeroCopy) {
  constexpr uint64_t kElems = 200'000;
  ZeroCopySenders zero_copy_senders(2, 20);
  SpawnOptions options;
  options.decorate = zero_copy_senders.decorator();
  setenv("RONDO_MESSAGE_BYTES", "4096", 1);
  spawn(
      World::kThreads, 2,
      [&](Communicator& comm) {
        std::vector<float> in(kElems), out(2 * kElems);
        for (uint64_t i = 0; i < kElems; ++i) in[i] = static_cast<float>(i + static_cast<uint64_t>(comm.rank()));
        CallOptions call;
        call.algorithm = "ring";
        ASSERT_TRUE(is_ok(comm.all_gather(in.data(), out.data(), kElems, Dtype::kFloat32, &call)));
        uint64_t wrong = 0;
        for (uint64_t i = 0; i < 2 * kElems; ++i) wrong += out[i] != static_cast<float>(i % kElems + i / kElems);
        EXPECT_EQ(wrong, 0u);
      },
      options);
  unsetenv("RONDO_MESSAGE_BYTES");
  EXPECT_GT(zero_copy_senders.total(&FaultControl::num_zero_copy), 200u);
  EXPECT_EQ(zero_copy_senders.total(&FaultControl::num_changed), 0u);
}

// Two calls run at a time. Each is complete when the data that it sent itself has been read: its buffer is overwritten
// at once, whatever the other call still sends.
TEST(ZeroCopy, OfTwoCallsEachWaitsForItsOwnSends) {
  constexpr uint64_t kElems = 100'000;
  ZeroCopySenders zero_copy_senders(2, 20);
  SpawnOptions options;
  options.decorate = zero_copy_senders.decorator();
  spawn(
      World::kThreads, 2,
      [&](Communicator& comm) {
        std::vector<float> in[2], out[2];
        Work works[2];
        CallOptions call;
        call.algorithm = "ring";  // ranks that are threads would pull
        auto start = [&](int i, int round) {
          in[i].assign(kElems, static_cast<float>(comm.rank() + round));
          out[i].assign(2 * kElems, -1);
          ASSERT_TRUE(is_ok(comm.all_gather(in[i].data(), out[i].data(), kElems, Dtype::kFloat32, &call, &works[i])));
        };
        start(0, 0);
        for (int round = 0; round < 20; ++round) {
          start((round + 1) % 2, round + 1);
          const std::vector<float>& done = out[round % 2];
          ASSERT_TRUE(is_ok(works[round % 2].wait()));
          for (int r = 0; r < 2; ++r)
            ASSERT_EQ(
                std::count(done.begin() + r * static_cast<ptrdiff_t>(kElems),
                           done.begin() + (r + 1) * static_cast<ptrdiff_t>(kElems), static_cast<float>(r + round)),
                static_cast<ptrdiff_t>(kElems))
                << round;
          in[round % 2].assign(kElems, -2);
          out[round % 2].assign(2 * kElems, -2);
        }
        ASSERT_TRUE(is_ok(works[0].wait()));
      },
      options);
  EXPECT_GT(zero_copy_senders.total(&FaultControl::num_zero_copy), 20u);
  EXPECT_EQ(zero_copy_senders.total(&FaultControl::num_changed), 0u);
}

// After a failed call no zero-copy send is outstanding: the proxy has stopped, so none completes by itself.
TEST(ZeroCopy, AFailedCallLeavesNobodyWithItsBuffers) {
  constexpr uint64_t kElems = 300'000;
  ZeroCopySenders zero_copy_senders(2, 0);
  SpawnOptions options;
  options.decorate = zero_copy_senders.decorator();
  std::barrier<> first_is_over(2);  // its messages may be in flight when one rank has all of its own
  spawn(
      World::kThreads, 2,
      [&](Communicator& comm) {
        std::vector<float> in(kElems, 1), out(2 * kElems);
        CallOptions call;
        call.algorithm = "ring";
        EXPECT_TRUE(is_ok(comm.all_gather(in.data(), out.data(), kElems, Dtype::kFloat32, &call)));
        first_is_over.arrive_and_wait();
        if (comm.rank() == 0) zero_copy_senders[0].now(Fault::kStop);
        call.deadline_s = 0.2;
        const Status s = comm.all_gather(in.data(), out.data(), kElems, Dtype::kFloat32, &call);
        EXPECT_FALSE(s.ok());
      },
      options);
  EXPECT_GT(zero_copy_senders[0].num_let_go(), 0u);
}

}  // namespace
}  // namespace rondo::testing
