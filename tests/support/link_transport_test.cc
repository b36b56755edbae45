// labels: unit tsan
// timeout: 120
// A simulated line delivers everything, in order, and not sooner than its rate and latency allow.
#include "support/link_transport.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <numeric>
#include <vector>

#include "support/shared.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

constexpr Line kFast{.bytes_per_us = 1e4};

// At least the time of one call on all ranks behind lines, from the first one's entry to rank `last`'s return. It
// begins before a barrier that no rank leaves earlier.
template <class Call>
double seconds_of(int nranks, const Line& line, Rank last, Call call) {
  std::atomic<double> begin_s{0}, end_s{0};
  spawn_threads(nranks,
                [&](Communicator& comm) -> Status {
                  RONDO_TRY(call(comm));  // connections are made
                  if (comm.rank() == 0) begin_s = now_s();
                  RONDO_TRY(comm.barrier());
                  RONDO_TRY(call(comm));
                  if (comm.rank() == last) end_s = now_s();
                  return {};
                },
                {.decorate = behind_line(line)});
  return end_s - begin_s;
}

TEST(LinkTransport, EverythingArrivesAsItWasSent) {
  for (const int n : {1, 2, 3, 5})
    for (const uint64_t count : {0, 1, 7, 1009, 300007}) {
      SCOPED_TRACE(::testing::Message() << n << " ranks, " << count << " elements");
      spawn_threads(n,
                    [&](Communicator& comm) -> Status {
                      std::vector<int64_t> sum(count), all(count * static_cast<uint64_t>(n));
                      for (int round = 0; round < 3; ++round) {
                        std::iota(sum.begin(), sum.end(), comm.rank() + round);
                        RONDO_TRY(comm.all_gather(sum.data(), all.data(), count, Dtype::kInt64));
                        for (uint64_t i = 0; i < all.size(); ++i)
                          EXPECT_EQ(all[i], static_cast<int64_t>(i % count) + static_cast<int64_t>(i / count) + round);
                        RONDO_TRY(comm.all_reduce(sum.data(), sum.data(), count, Dtype::kInt64, Op::kSum));
                        for (uint64_t i = 0; i < count; ++i)
                          EXPECT_EQ(sum[i], n * (static_cast<int64_t>(i) + round) + n * (n - 1) / 2);
                      }
                      return {};
                    },
                    {.decorate = behind_line(kFast)});
    }
}

TEST(LinkTransport, BytesTakeTheirTime) {
  constexpr uint64_t kBytes = 1 << 20;
  constexpr double kBytesPerUs = 50;  // a MiB in 21 ms
  std::vector<char> data(kBytes);
  const double s = seconds_of(2, {.bytes_per_us = kBytesPerUs}, 1, [&](Communicator& comm) {
    return comm.rank() == 0 ? comm.send(data.data(), kBytes, Dtype::kInt8, 1) : [&] {
      std::vector<char> to(kBytes);
      return comm.recv(to.data(), kBytes, Dtype::kInt8, 0);
    }();
  });
  EXPECT_GE(s, kBytes / kBytesPerUs * 1e-6);
}

TEST(LinkTransport, ARanksMessagesShareItsLine) {
  constexpr uint64_t kBytes = 1 << 19;  // to each of two peers
  constexpr double kBytesPerUs = 50;
  const double s = seconds_of(3, {.bytes_per_us = kBytesPerUs}, 0, [](Communicator& comm) -> Status {
    std::vector<char> from(3 * kBytes), to(3 * kBytes);
    return comm.all_to_all(from.data(), to.data(), kBytes, Dtype::kInt8);
  });
  EXPECT_GE(s, 2 * kBytes / kBytesPerUs * 1e-6);
}

// A communicator may end while its messages are on the line. The peer does not get them earlier.
TEST(LinkTransport, MessagesAreUnderWayForTheLatency) {
  constexpr double kLatencyUs = 5000;
  // There and back.
  const double s = seconds_of(2, {.bytes_per_us = 1e4, .latency_us = kLatencyUs}, 0, [](Communicator& comm) -> Status {
    char c = 'x';
    const Rank peer = 1 - comm.rank();
    if (comm.rank() == 0) RONDO_TRY(comm.send(&c, 1, Dtype::kInt8, peer));
    RONDO_TRY(comm.recv(&c, 1, Dtype::kInt8, peer));
    if (comm.rank() == 1) RONDO_TRY(comm.send(&c, 1, Dtype::kInt8, peer));
    return {};
  });
  EXPECT_GE(s, 2 * kLatencyUs * 1e-6);
}

// No algorithm bypasses the line by mapped or copied memory.
TEST(LinkTransport, AllPayloadIsCounted) {
  constexpr uint64_t kBytes = 1 << 22;
  std::array<std::atomic<LinkTransport*>, 2> links{};
  const TransportDecorator decorate = [&](Rank rank, int nranks, std::unique_ptr<Transport> real) {
    auto link = std::make_unique<LinkTransport>(rank, nranks, std::move(real), kFast);
    links[static_cast<size_t>(rank)] = link.get();
    return link;
  };
  spawn_threads(2,
                [&](Communicator& comm) -> Status {
                  std::vector<char> x(2 * kBytes);
                  RONDO_TRY(comm.all_gather(x.data() + static_cast<uint64_t>(comm.rank()) * kBytes, x.data(), kBytes,
                                            Dtype::kInt8));
                  RONDO_TRY(comm.barrier());  // after it all have this rank's messages
                  EXPECT_GE(links[static_cast<size_t>(comm.rank())].load()->bytes_sent(), kBytes);
                  return {};
                },
                {.decorate = decorate});
}

}  // namespace
}  // namespace rondo::testing
