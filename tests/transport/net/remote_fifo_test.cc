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

// A connection from rank 0 to rank 1. Both ends work in this thread.
class Connection {
 public:
  Connection(int nranks, uint32_t longest) : ends_{{0, nranks}, {1, nranks}} {
    for (End& end : ends_) end.fifos.set_longest_message(std::max(longest, end.fifos.longest_message_bytes()));
    std::vector<PeerRoute> routes(static_cast<size_t>(nranks), {ends_[0].rails->address(), "127.0.0.1", true});
    routes[1].address = ends_[1].rails->address();
    for (End& end : ends_) EXPECT_TRUE(is_ok(end.rails->set_peers(routes, 4711)));
    const ConnectionKey key{0, 1, 3, 0, false, 0};
    const auto source = ends_[0].fifos.open_writer(key, {1});
    const auto replica = ends_[1].fifos.open_reader(key);
    EXPECT_TRUE(source.ok() && replica.ok());
    writer_ = FifoWriter<HostMem>(*source, &counter_, 1);
    reader_ = FifoReader<HostMem>(**replica, 0);
  }
  ~Connection() {
    for (End& end : ends_) EXPECT_TRUE(end.rails->close(monotonic_ns() + 5'000'000'000));
  }
  /// Returns false if the message did not arrive.
  bool read() {
    if (!within([&] { return reader_.arrived(1, 1) == Arrival::kReady; })) return false;
    reader_.release(1);
    return true;
  }
  uint64_t num_unread() const { return writer_.step() - reader_.step(); }
  /// Returns false if there is no space although all earlier messages but `unread` are read.
  bool post(uint32_t bytes, uint32_t lap, uint64_t unread = 0) {
    const auto has_space = [&] { return writer_.room_for(bytes, lap); };
    while (!has_space() && num_unread() > unread)
      if (!read()) return false;
    if (!within(has_space)) return false;
    writer_.post_data(bytes, 1);
    return true;
  }
  /// As after a pause.
  void send_all_credits() { ends_[1].fifos.send_credits(*ends_[1].rails, RemoteFifos::Credits::kAll); }
  uint32_t ring_bytes() const { return writer_.view().data_bytes; }

 private:
  bool within(const std::function<bool()>& is_so) {
    const uint64_t since = monotonic_ns();
    while (!is_so()) {
      if (monotonic_ns() - since > 5'000'000'000) return false;
      for (End& end : ends_) end.move();
    }
    return true;
  }
  End ends_[2];
  const uint32_t counter_ = 0;
  FifoWriter<HostMem> writer_;
  FifoReader<HostMem> reader_;
};

// The rings of ranks on several hosts have laps of kRingMessages of a call's longest messages. A reader that has read
// everything must not keep the credit that its writer waits for. `changing`: calls of 1 to 12 messages, short or long.
TEST(RemoteFifo, AWriterAlwaysGetsSpaceForTheNextMessage) {
  for (const int nranks : {2, 17})  // they have different numbers of lines
    for (const uint32_t longest : {1000u, 20'000u, 128u * 1024, 240u * 1024})
      for (const char* calls : {"equal", "ragged", "changing"}) {
        SCOPED_TRACE(std::to_string(nranks) + " ranks, " + std::to_string(longest) + " B, " + calls);
        Connection c(nranks, longest);
        std::mt19937 random(longest + static_cast<uint32_t>(calls[0]));
        uint32_t longest_of_call = longest, left = 0;
        for (int i = 0; i < 500; ++i) {
          if (calls[0] == 'c' && left-- == 0) {
            longest_of_call = random() % 2 == 0 ? longest : 1 + random() % (longest / 50);
            left = random() % 12;
          }
          const uint32_t bytes = calls[0] == 'e' ? longest : 1 + random() % longest_of_call;
          ASSERT_TRUE(c.post(bytes, kRingMessages * place_bytes(longest_of_call))) << "message " << i;
          if (random() % 8 == 0) c.send_all_credits();  // laps then begin anywhere
          if (random() % 3 == 0 && c.num_unread() > 0) {
            ASSERT_TRUE(c.read()) << "message " << i;
          }
        }
      }
}

// In a ring algorithm all ranks send their next messages before they read the last one.
TEST(RemoteFifo, AWriterGetsSpaceWhileMessagesAreUnread) {
  for (const int nranks : {2, 17})
    for (const auto& [bytes, unread] :
         {std::pair(1000u, 1u), {4096, 1}, {20'000, 1}, {64 * 1024, 1}, {128 * 1024, 1}, {240 * 1024, 2}}) {
      SCOPED_TRACE(std::to_string(nranks) + " ranks, " + std::to_string(bytes) + " B");
      Connection c(nranks, bytes);
      std::mt19937 random(bytes);
      for (int i = 0; i < 1000; ++i) {
        ASSERT_TRUE(c.post(bytes, kRingMessages * place_bytes(bytes), unread)) << "message " << i;
        if (random() % 20 == 0) c.send_all_credits();
        while (c.num_unread() > unread) ASSERT_TRUE(c.read()) << "message " << i;
      }
    }
}

// The space for two of the longest messages is free, but in two parts.
TEST(RemoteFifo, AWriterGetsSpaceIfTheFreeSpaceIsInTwoParts) {
  constexpr uint32_t kPage = 4096, kLongest = 60 * kPage;
  Connection c(2, kLongest);
  ASSERT_EQ(c.ring_bytes(), (kRingMessages + 1) * kLongest);
  ASSERT_TRUE(c.post(kLongest - kPage, c.ring_bytes()) && c.post(kLongest, c.ring_bytes()) && c.read());
  c.send_all_credits();
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(c.read() && c.post(kLongest, c.ring_bytes()));
  ASSERT_TRUE(c.read() && c.post(2 * kPage, c.ring_bytes()) && c.read());
  EXPECT_TRUE(c.post(kLongest, c.ring_bytes()));
}

}  // namespace
}  // namespace rondo::net
