// Rails of one process: complete messages of all lengths, in both directions, at their destinations; and the effects of
// calls that give up and of peers that end.
#include "transport/tcp/tcp_rails.h"

namespace rondo::net {
namespace {

// Both begin at once, so both connect. A third rank talks to both.
TEST_F(TcpRails, MessagesOfAllLengthsArriveOnceAndWhole) {
  std::mt19937 random(7);
  std::map<uint64_t, std::string> sent[kRanks];  // by receiver
  uint64_t step = 100;
  for (int round = 0; round < 300; ++round)
    for (Rank from = 0; from < kRanks; ++from)
      for (Rank to = 0; to < kRanks; ++to) {
        if (to == from || random() % 3 == 0) continue;
        const size_t bytes = random() % 4 == 0 ? random() % 200'000 : random() % 300;
        ++step;
        const std::string& data = sent[to][step] = text_of(step, bytes + 1);
        if (random() % 2 == 0) send(from, to, step, data);
        else send_short(from, to, step, data);
        if (random() % 4 == 0) rail(to).progress();
        if (random() % 4 == 0) rail(from).progress();
      }
  ASSERT_TRUE(until([&] {
    return reader(0).order.size() == sent[0].size() && reader(1).order.size() == sent[1].size() &&
           reader(2).order.size() == sent[2].size();
  }));
  for (Rank r = 0; r < kRanks; ++r) {
    EXPECT_TRUE(reader(r).strings == sent[r]) << r;
    EXPECT_EQ(rail(r).pending(), 0u);
    EXPECT_TRUE(rail(r).losses(UINT64_MAX).empty());
  }
  ASSERT_TRUE(until([&] { return rail(0).flush() && rail(1).flush() && rail(2).flush(); }));
}

TEST_F(TcpRails, SealedOnesToo) {
  const Sealer::Key key = {3, 1, 4};
  make("", &key);
  std::map<uint64_t, std::string> sent;
  for (uint64_t step = 100; step < 160; ++step) sent[step] = text_of(step, step * step * step % 150'000 + 1);
  for (const auto& [step, data] : sent)
    if (step % 2 == 0) send(2, 0, step, data);
    else send_short(2, 0, step, data);
  ASSERT_TRUE(until([&] { return reader(0).order.size() == sent.size(); }));
  EXPECT_TRUE(reader(0).strings == sent);
}

// Thousands of overtaking messages would make long ones look like replays.
TEST_F(TcpRails, SealedShortOnesDoNotOvertakeLongOnes) {
  const Sealer::Key key = {3, 1, 4};
  make("", &key);
  send(0, 1, 100, "connects");
  send(1, 0, 100, "connects");
  ASSERT_TRUE(until([&] { return reader(0).order.size() == 1 && reader(1).order.size() == 1; }));
  const std::string data = text_of(101, 10'000'000);
  for (uint64_t step = 101; step < 104; ++step) send(1, 0, step, data);
  constexpr uint64_t kShort = 5000;
  for (uint64_t i = 0; i < kShort; ++i) send_short(1, 0, 1000 + i, "x");
  ASSERT_TRUE(until([&] { return reader(0).order.size() == 4 + kShort; }));
  for (uint64_t step = 101; step < 104; ++step) EXPECT_TRUE(reader(0).strings[step] == data);
}

TEST_F(TcpRails, OverAnInterfaceByItsName) {
  make("lo");
  EXPECT_NE(rail(0).address().find(" 127.0.0.1"), std::string::npos) << rail(0).address();
  send(1, 0, 100, "hello");
  ASSERT_TRUE(until([&] { return !reader(0).order.empty(); }));
  EXPECT_EQ(reader(0).strings[100], "hello");
  const auto none = TcpRail::create(reader(0), {0, 2, "eth_none", {}});
  EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(none.status().message().find("RONDO_RAILS names eth_none"), std::string::npos);
}

// A long message goes straight to its posted receive, and all other data to its place, whatever follows it in the same
// read.
TEST_F(TcpRails, WhatIsAskedForLands) {
  std::string wanted(130'000, '\0');
  const std::string data = text_of(101, wanted.size()), before = text_of(100, 60'000), after = text_of(102, 130'000);
  reader(1).posted_receive.ask(101, static_cast<uint32_t>(wanted.size()), reinterpret_cast<std::byte*>(wanted.data()));
  send(0, 1, 100, before);
  send(0, 1, 101, data);
  send_short(0, 1, 103, "credit");
  send(0, 1, 102, after);
  ASSERT_TRUE(until([&] { return reader(1).order.size() == 4; }));
  EXPECT_TRUE(wanted == data);
  EXPECT_FALSE(may_write(wanted));
  EXPECT_EQ(reader(1).posted_receive.find(101), reinterpret_cast<const std::byte*>(wanted.data()));
  EXPECT_EQ(reader(1).strings.count(101), 0u);
  EXPECT_TRUE(reader(1).strings[100] == before && reader(1).strings[102] == after);
  EXPECT_EQ(reader(1).strings[103], "credit");
}

// Data of a sum is added while it arrives, in pieces of whole cache lines, each once and in order, wherever it begins
// in the data read ahead.
TEST_F(TcpRails, WhatIsAddedLandsInPieces) {
  for (const size_t before : {size_t{1}, size_t{77}, size_t{5000}}) {
    const std::string data = text_of(before, 1'000'003);
    std::string sum;
    const uint64_t step = 100 + 10 * before;
    size_t pieces = 0, crooked = 0;
    std::byte there{};
    reader(1).posted_receive.ask(step, static_cast<uint32_t>(data.size()), &there,
                                 [&](const std::byte* piece, uint32_t offset, uint32_t bytes) {
                                   if (offset != sum.size() || (bytes % 64 != 0 && offset + bytes != data.size()))
                                     ++crooked;
                                   sum.append(reinterpret_cast<const char*>(piece), bytes);
                                   ++pieces;
                                 });
    const std::string ahead = text_of(step + 1, before);
    send(0, 1, step + 1, ahead);
    send(0, 1, step, data);
    send_short(0, 1, step + 2, "behind");
    reader(1).order.clear();
    ASSERT_TRUE(until([&] { return reader(1).order.size() == 3; }));
    EXPECT_EQ(crooked, 0u);
    EXPECT_GT(pieces, 1u);
    EXPECT_TRUE(sum == data);
    EXPECT_EQ(reader(1).posted_receive.find(step), &there);
    EXPECT_EQ(reader(1).strings.count(step), 0u);
    EXPECT_TRUE(reader(1).strings[step + 1] == ahead);
    EXPECT_EQ(reader(1).strings[step + 2], "behind");
  }
}

// A message waits if its reader is about to post a receive, but not forever, and later messages still arrive.
TEST_F(TcpRails, LongMessagesWaitAMomentForTheirReader) {
  reader(1).waits = true;
  const std::string data = text_of(101, 300'000), unasked = text_of(102, 300'000);
  std::string wanted(data.size(), '\0');
  send(0, 1, 101, data);
  int looks = 0;
  ASSERT_TRUE(until([&] { return (looks = reader(1).looks) == 3; }));
  EXPECT_TRUE(reader(1).order.empty());
  reader(1).posted_receive.ask(101, static_cast<uint32_t>(wanted.size()), reinterpret_cast<std::byte*>(wanted.data()));
  ASSERT_TRUE(until([&] { return reader(1).order.size() == 1; }));
  EXPECT_TRUE(wanted == data);
  send(0, 1, 102, unasked);
  send_short(0, 1, 103, "behind");
  ASSERT_TRUE(until([&] { return reader(1).order.size() == 3; }));
  EXPECT_TRUE(reader(1).strings[102] == unasked);
  EXPECT_GT(reader(1).looks, 10);
}

// The caller gives up when half of its message has come, and none of another zero-copy send is out: neither buffer is
// touched any more, and the connection stays usable.
TEST_F(TcpRails, RecallLeavesBuffersAlone) {
  send(0, 1, 100, "connects");
  ASSERT_TRUE(until([&] { return reader(1).order.size() == 1; }));
  std::string wanted(20'000'000, 'w'), zero_copy_data = text_of(101, wanted.size());
  const std::string as_sent = zero_copy_data;
  reader(1).posted_receive.ask(101, static_cast<uint32_t>(wanted.size()), reinterpret_cast<std::byte*>(wanted.data()));
  ZeroCopySend zero_copy_send;
  zero_copy_send.send_zero_copy(reinterpret_cast<const std::byte*>(zero_copy_data.data()), 101);
  send(0, 1, 101, zero_copy_data, &zero_copy_send);
  ASSERT_TRUE(until([&] { return wanted[0] == zero_copy_data[0] && wanted[1000] == zero_copy_data[1000]; }));
  ASSERT_TRUE(zero_copy_send.is_out());
  ASSERT_TRUE(may_write(wanted));
  EXPECT_TRUE(rail(0).recall(0, 0));
  EXPECT_TRUE(rail(1).recall(0, 0));
  EXPECT_FALSE(zero_copy_send.is_out());
  EXPECT_FALSE(may_write(wanted));
  const std::string left = wanted;
  zero_copy_data.assign(zero_copy_data.size(), 'x');
  send(0, 1, 102, "after");
  ASSERT_TRUE(until([&] { return reader(1).order.size() == 2; }));  // 101 has no receiver
  EXPECT_EQ(reader(1).strings[102], "after");
  EXPECT_TRUE(wanted == left);
}

// The same for a sum: the half-added sum stays, and nothing more is added.
TEST_F(TcpRails, RecallEndsASum) {
  const std::string data = text_of(100, 20'000'000);
  uint64_t added = 0;
  std::string sum(1, '\0');
  reader(1).posted_receive.ask(100, static_cast<uint32_t>(data.size()), reinterpret_cast<std::byte*>(sum.data()),
                               [&](const std::byte*, uint32_t, uint32_t bytes) { added += bytes; });
  send(0, 1, 100, data);
  ASSERT_TRUE(until([&] { return added > 100'000; }));
  EXPECT_TRUE(rail(1).recall(0, 0));
  EXPECT_FALSE(may_write(sum));
  const uint64_t before = added;
  ASSERT_LT(before, data.size());
  send(0, 1, 101, "after");
  ASSERT_TRUE(until([&] { return !reader(1).order.empty(); }));
  EXPECT_EQ(reader(1).order, std::vector<uint64_t>{101});
  EXPECT_EQ(added, before);
}

TEST_F(TcpRails, WhatHasNoPlaceIsReadAndForgotten) {
  reader(1).refuses = true;
  const std::string data = text_of(100, 100'000);
  send(0, 1, 100, data);
  send(0, 1, 101, data);
  send_short(0, 1, 102, "kept");
  ASSERT_TRUE(until([&] { return !reader(1).order.empty(); }));
  EXPECT_EQ(reader(1).order, std::vector<uint64_t>{102});
}

TEST_F(TcpRails, APeerThatEndsIsLost) {
  send(0, 1, 100, "hello");
  ASSERT_TRUE(until([&] { return !reader(1).order.empty(); }));
  rails_[1]->close(0);
  rails_[1].reset();
  ASSERT_TRUE(until([&] { return rail(0).lost(1); }));
  const auto losses = rail(0).losses(UINT64_MAX);
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].rank, 1);
  EXPECT_EQ(losses[0].how, "rank 1 was lost: it closed the connection");
  ZeroCopySend zero_copy_send;
  const std::string data = "too late";
  zero_copy_send.send_zero_copy(reinterpret_cast<const std::byte*>(data.data()), 101);
  send(0, 1, 101, data, &zero_copy_send);
  EXPECT_FALSE(zero_copy_send.is_out());
  EXPECT_EQ(rail(0).pending(), 0u);
  EXPECT_FALSE(rail(2).lost(1)) << "it has not talked to it";
}

TEST_F(TcpRails, NobodyListens) {
  const std::string port = rails_[1]->address();
  rails_[1]->close(0);
  rails_[1].reset();
  send(0, 1, 100, "hello");
  ASSERT_TRUE(until([&] { return rail(0).lost(1); }));
  EXPECT_NE(rail(0).losses(UINT64_MAX)[0].how.find("rank 1 was lost: Connection refused"), std::string::npos)
      << rail(0).losses(UINT64_MAX)[0].how;
}

TEST_F(TcpRails, ArmedItsDescriptorTellsOfEvents) {
  send(1, 0, 100, "hello");
  ASSERT_TRUE(until([&] { return reader(0).order.size() == 1 && rail(0).arm() && rail(1).arm(); }));
  send(1, 0, 101, "again");
  rail(1).progress();
  ASSERT_TRUE(until([&] { return !rail(0).arm() || reader(0).order.size() == 2; }));
  ASSERT_TRUE(until([&] { return reader(0).order.size() == 2; }));
}

}  // namespace
}  // namespace rondo::net
