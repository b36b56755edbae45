// Credits between ranks without common memory, over TCP rails of one process.
// labels: unit
#include "transport/net/remote_fifo.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "protocol/fifo.h"
#include "protocol/memory.h"
#include "protocol/spin.h"
#include "support/simple_calls.h"

namespace rondo::net {
namespace {

using testing::is_ok;

// A rank with its FIFOs and rails.
class End final : public Sink {
 public:
  End(Rank rank, int nranks) : fifos(rank, nranks, *StagingPool::acquire()) {
    auto made = RailSet::create(tcp_network, *this, {}, {rank, nranks, "", {"127.0.0.1"}});
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    rails = std::move(*made);
  }
  ReceiveTarget place(const Header& header, const HeaderLine& line, size_t bytes, PostedReceiveUse use) override {
    auto at = fifos.place(header, line, bytes, use);
    EXPECT_TRUE(at.ok()) << at.status().to_string();
    return at.ok() ? *at : ReceiveTarget{};
  }
  void arrived(const Header& header, const HeaderLine* line, const std::byte* data, size_t bytes) override {
    EXPECT_TRUE(is_ok(fifos.arrived(header, line, data, bytes)));
  }
  void fail_here(const Status& why) override { ADD_FAILURE() << why.to_string(); }
  void move() {
    fifos.carry(*rails);
    rails->progress();
  }
  RemoteFifos fifos;
  std::unique_ptr<RailSet> rails;
};

// The rings of ranks on several hosts have laps of kRingMessages. A reader that has read everything must not keep the
// credit that its writer waits for.
TEST(RemoteFifo, AWriterAlwaysGetsSpaceForTheNextMessage) {
  for (const int nranks : {2, 17})  // they have different numbers of lines
    for (const uint32_t longest : {1000u, 20'000u, 128u * 1024})
      for (const bool ragged : {false, true}) {
        SCOPED_TRACE(std::to_string(nranks) + " ranks, " + std::to_string(longest) + " B, " + std::to_string(ragged));
        End ends[] = {{0, nranks}, {1, nranks}};
        std::vector<PeerRoute> routes(static_cast<size_t>(nranks), {ends[0].rails->address(), "127.0.0.1", true});
        routes[1].address = ends[1].rails->address();
        for (End& end : ends) ASSERT_TRUE(is_ok(end.rails->set_peers(routes, 4711)));
        const ConnectionKey key{0, 1, 3, 0, false, 0};
        const auto source = ends[0].fifos.open_writer(key, {1});
        const auto replica = ends[1].fifos.open_reader(key);
        ASSERT_TRUE(source.ok() && replica.ok());
        const uint32_t counter = 0;
        FifoWriter<HostMem> writer(*source, &counter, 1);
        FifoReader<HostMem> reader(**replica, 0);
        std::mt19937 random(longest + ragged);
        const auto within = [&](const std::function<bool()>& is_so) {
          const uint64_t since = monotonic_ns();
          while (!is_so()) {
            if (monotonic_ns() - since > 5'000'000'000) return false;
            for (End& end : ends) end.move();
          }
          return true;
        };
        const auto read_one = [&] {
          ASSERT_TRUE(within([&] { return reader.arrived(1, 1) == Arrival::kReady; }));
          reader.release(1);
        };
        for (int i = 0; i < 500; ++i) {
          const uint32_t bytes = ragged ? 1 + random() % longest : longest;
          const auto has_space = [&] { return writer.room_for(bytes, kRingMessages * place_bytes(longest)); };
          while (!has_space() && reader.step() != writer.step()) ASSERT_NO_FATAL_FAILURE(read_one());
          ASSERT_TRUE(within(has_space)) << "message " << i << ", and all earlier ones are read";
          writer.post_data(bytes, 1);
          if (random() % 8 == 0)  // as after a pause: laps begin anywhere
            ends[1].fifos.send_credits(*ends[1].rails, RemoteFifos::Credits::kAll);
          if (random() % 3 == 0 && reader.step() != writer.step()) {
            ASSERT_NO_FATAL_FAILURE(read_one());
          }
        }
        for (End& end : ends) EXPECT_TRUE(end.rails->close(monotonic_ns() + 5'000'000'000));
      }
}

}  // namespace
}  // namespace rondo::net
