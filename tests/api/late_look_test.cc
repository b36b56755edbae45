// A rank that has done its part is not lost when it leaves. A message sent before its sender left is received, however
// late the receiver polls. Here it is sent between the receiver's poll and its check for losses, and by then the sender
// has destroyed its communicator. Also, operations may finish in another order than issued.
//
// labels: unit tsan
#include <gtest/gtest.h>

#include <thread>

#include "rondo/communicator.h"
#include "support/fault_case.h"
#include "support/forwarding_transport.h"
#include "support/shared.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

constexpr double kLateDeadlineS = 30;

// For the receiver: its first check for departed ranks waits until the sender has left.
class LateLook final : public ForwardingTransport {
 public:
  struct Moments {
    std::atomic<bool> armed{false};
    SharedCounter looked, left;
  };
  LateLook(std::unique_ptr<Transport> real, Moments& moments)
      : ForwardingTransport(std::move(real)), moments_(moments) {}
  bool departed(Rank r) override {
    if (moments_.armed.exchange(false)) {
      moments_.looked.add();
      EXPECT_TRUE(moments_.left.wait_at_least(1, kLateDeadlineS));
    }
    return real_->departed(r);
  }

 private:
  Moments& moments_;
};

TEST(LateLook, FindsWhatWasSentBeforeTheSenderLeft) {
  LateLook::Moments moments;
  Config config;
  config.deadline_s = config.init_deadline_s = kLateDeadlineS;
  auto made = init_all_with(
      [&](Rank rank, int, std::unique_ptr<Transport> real) -> std::unique_ptr<Transport> {
        if (rank != 1) return real;
        return std::make_unique<LateLook>(std::move(real), moments);
      },
      2, config);
  ASSERT_TRUE(is_ok(made.status()));
  auto& comms = *made;
  moments.armed = true;
  std::thread sender([&] {
    EXPECT_TRUE(moments.looked.wait_at_least(1, kLateDeadlineS));
    const float sent = 42;
    EXPECT_TRUE(is_ok(comms[0]->send(&sent, 1, Dtype::kFloat32, 1)));
    comms[0].reset();
    moments.left.add();
  });
  float got = 0;
  EXPECT_TRUE(is_ok(comms[1]->recv(&got, 1, Dtype::kFloat32, 0)));
  EXPECT_EQ(got, 42);
  sender.join();
  // Messages that were not sent by then will not come.
  EXPECT_TRUE(fails_with(comms[1]->recv(&got, 1, Dtype::kFloat32, 0), StatusCode::kPeerLost, {"rank 0"}));
}

// Counts its checks for departed ranks.
class CountedLooks final : public ForwardingTransport {
 public:
  CountedLooks(std::unique_ptr<Transport> real, SharedCounter& looks) : ForwardingTransport(std::move(real)), looks_(looks) {}
  bool departed(Rank r) override {
    const bool gone = real_->departed(r);
    if (gone) looks_.add();
    return gone;
  }

 private:
  SharedCounter& looks_;
};

// Rank 0 finishes its second operation, then its first, and leaves. Rank 1 waits in the second one for rank 2.
TEST(LateLook, WhoHasFinishedInAnotherOrderIsNotLost) {
  SharedCounter looks, second_done, left;
  Config config;
  config.deadline_s = config.init_deadline_s = kLateDeadlineS;
  auto made = init_all_with(
      [&](Rank rank, int, std::unique_ptr<Transport> real) -> std::unique_ptr<Transport> {
        if (rank != 1) return real;
        return std::make_unique<CountedLooks>(std::move(real), looks);
      },
      3, config);
  ASSERT_TRUE(is_ok(made.status()));
  auto& comms = *made;
  float first[3] = {0, 0, 7}, given[3] = {1, 2, 3}, gathered[3] = {};
  const auto broadcast = [&](Rank r, Work* work) {
    return comms[static_cast<size_t>(r)]->broadcast(&first[r], &first[r], 1, Dtype::kFloat32, 2, nullptr, work);
  };
  const auto gather = [&](Rank r, Work* work) {
    CallOptions options;
    options.algorithm = "linear";
    return comms[static_cast<size_t>(r)]->gather(&given[r], r == 1 ? gathered : nullptr, 1, Dtype::kFloat32, 1, &options,
                                                 work);
  };
  std::thread rank0([&] {
    Work one, two;
    EXPECT_TRUE(is_ok(broadcast(0, &one)));
    EXPECT_TRUE(is_ok(gather(0, &two)));
    EXPECT_TRUE(is_ok(two.wait()));
    EXPECT_EQ(one.test().code(), StatusCode::kInProgress);
    second_done.add();
    EXPECT_TRUE(is_ok(one.wait()));
    comms[0].reset();
    left.add();
  });
  std::thread rank2([&] {
    EXPECT_TRUE(second_done.wait_at_least(1, kLateDeadlineS));
    EXPECT_TRUE(is_ok(broadcast(2, nullptr)));
    EXPECT_TRUE(left.wait_at_least(1, kLateDeadlineS));
    EXPECT_TRUE(looks.wait_at_least(2, kLateDeadlineS));
    EXPECT_TRUE(is_ok(gather(2, nullptr)));
  });
  EXPECT_TRUE(is_ok(broadcast(1, nullptr)));
  EXPECT_TRUE(is_ok(gather(1, nullptr)));
  rank0.join();
  rank2.join();
  EXPECT_EQ(std::vector<float>(gathered, gathered + 3), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(first[0] + first[1], 14);
}

}  // namespace
}  // namespace rondo::testing
