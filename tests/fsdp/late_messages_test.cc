// labels: unit tsan
// timeout: 120
// Random ranks and messages are late: no rank computes with data that has not come, nothing is gathered into a buffer
// or written over gradients in use, and no gradients are reduced before they are computed. Each error would change the
// bits, and ThreadSanitizer would report it.
#include "fsdp/hooks.h"
#include "fsdp/training.h"
#include "support/fault_transport.h"

namespace rondo::fsdp::testing {
namespace {

// Every message is delayed by a random time up to this.
constexpr uint32_t kMostUs = 300;

std::unique_ptr<Transport> with_late_messages(Rank rank, int nranks, std::unique_ptr<Transport> real) {
  static rondo::testing::FaultMoment nothing_goes_wrong;
  auto control = std::make_shared<rondo::testing::FaultControl>(&nothing_goes_wrong);
  control->delay_each(kMostUs, static_cast<uint32_t>(rank));
  return std::make_unique<rondo::testing::FaultTransport>(rank, nranks, std::move(real), control);
}

void expect_orderings(const Step& by) {
  for (const int n : {2, 3})
    for (const BackwardPrefetch order : {BackwardPrefetch::kPre, BackwardPrefetch::kPost})
      for (const int ahead : {0, 1, 2})
        for (const int buffers : {1, 2}) {
          SCOPED_TRACE(::testing::Message() << n << " ranks, " << ahead << " ahead, " << buffers << " buffers");
          Setting s;
          s.net = {.layers = 4, .dim = 13};
          s.plan = {.nranks = n,
                    .forward_prefetch = ahead,
                    .backward_prefetch = ahead,
                    .backward_order = order,
                    .data_buffers = buffers,
                    .grad_buffers = buffers};
          s.decorate = with_late_messages;
          s.by = by;
          expect_same_training(World::kThreads, s);
        }
}

TEST(FsdpLateMessages, TheListsOrderingsHold) { expect_orderings(train_step); }

TEST(FsdpLateMessages, ThePassesOrderingsHold) { expect_orderings(by_hooks({.dawdling = true})); }

}  // namespace
}  // namespace rondo::fsdp::testing
