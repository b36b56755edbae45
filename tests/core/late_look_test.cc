// A message that was sent before its sender left is received, however late the receiver looks: here it is sent between
// the receiver's look for it and its look for losses, and the sender has destroyed its communicator by then.
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

constexpr double kPatienceS = 30;

// Of the receiver: its first look for those who have left holds it up until the sender has.
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
      EXPECT_TRUE(moments_.left.wait_at_least(1, kPatienceS));
    }
    return real_->departed(r);
  }

 private:
  Moments& moments_;
};

TEST(LateLook, FindsWhatWasSentBeforeTheSenderLeft) {
  LateLook::Moments moments;
  Config config;
  config.deadline_s = config.init_deadline_s = kPatienceS;
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
    EXPECT_TRUE(moments.looked.wait_at_least(1, kPatienceS));
    const float sent = 42;
    EXPECT_TRUE(is_ok(comms[0]->send(&sent, 1, Dtype::kFloat32, 1)));
    comms[0].reset();
    moments.left.add();
  });
  float got = 0;
  EXPECT_TRUE(is_ok(comms[1]->recv(&got, 1, Dtype::kFloat32, 0)));
  EXPECT_EQ(got, 42);
  sender.join();
  // And what has not been sent by then will not come.
  EXPECT_TRUE(fails_with(comms[1]->recv(&got, 1, Dtype::kFloat32, 0), StatusCode::kPeerLost, {"rank 0"}));
}

}  // namespace
}  // namespace rondo::testing
