// Two rails of one process that talk over loopback: whole messages of all lengths, in either direction, to where they
// belong; and what strangers, broken peers and calls that give up do to them.
#include "transport/net/tcp_rail.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <random>

#include "support/simple_calls.h"

namespace rondo::net {
namespace {

using testing::is_ok;

constexpr uint64_t kSession = 0x1234567890abcdef;

std::string text_of(uint64_t number, size_t bytes) {
  std::mt19937 random(static_cast<unsigned>(number));
  std::string s(bytes, '\0');
  for (char& c : s) c = static_cast<char>(random());
  return s;
}

// Receives messages by their step into strings, or where `landing` says.
class Reader final : public Sink {
 public:
  Place place(const Header& h, const HeaderLine&, size_t bytes, MayLand may_land) override {
    EXPECT_NE(may_land, MayLand::kNo);
    if (refuses) return {};
    if (landing.claim(bytes, h.step)) return {landing.place(), &landing};
    if (waits && may_land == MayLand::kSoon) {
      ++looks;
      return {nullptr, nullptr, true};
    }
    std::string& s = strings[h.step];
    s.resize(bytes);
    return {reinterpret_cast<std::byte*>(s.data())};
  }
  bool put(const Header& h, const HeaderLine&, const std::byte* data, size_t bytes) override {
    std::string& s = strings[h.step];
    if (reinterpret_cast<const std::byte*>(s.data()) != data) s.assign(reinterpret_cast<const char*>(data), bytes);
    return true;
  }
  void arrived(const Header& h, const HeaderLine* line, const std::byte* data, size_t bytes) override {
    if (line == nullptr) strings[h.step].assign(reinterpret_cast<const char*>(data), bytes);
    else EXPECT_EQ(line->flag, h.step);
    order.push_back(h.step);
  }
  void fail_here(const Status& why) override { failures.emplace_back(why.message()); }
  std::map<uint64_t, std::string> strings;
  std::vector<uint64_t> order;
  std::vector<std::string> failures;
  Landing landing;
  bool refuses = false;
  bool waits = false;  // for the landing to be asked for
  int looks = 0;       // at what was to wait
};

class TcpRails : public ::testing::Test {
 protected:
  static constexpr Rank kRanks = 3;

  void SetUp() override { make(""); }
  void make(const std::string& device, const Sealer::Key* key = nullptr) {
    routes_.clear();
    for (Rank r = 0; r < kRanks; ++r) {
      readers_[r] = std::make_unique<Reader>();
      auto made = TcpRail::create(r, kRanks, *readers_[r], device, {"127.0.0.1"});
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      rails_[r] = std::move(*made);
      routes_.push_back({rails_[r]->address(), "127.0.0.1", true});
    }
    for (Rank r = 0; r < kRanks; ++r) {
      rails_[r]->set_peers(routes_, kSession);
      if (key != nullptr) rails_[r]->seal_with(Sealer::create(*key, r, kRanks));
    }
  }
  TcpRail& rail(Rank r) { return *rails_[r]; }
  Reader& reader(Rank r) { return *readers_[r]; }

  // With a line, as kData; it stays until the end.
  void send(Rank from, Rank to, uint64_t step, const std::string& data, Lent* lent = nullptr) {
    headers_.push_back(std::make_unique<DataHeader>());
    DataHeader& h = *headers_.back();
    h.header.kind = Kind::kData;
    h.header.session = kSession;
    h.header.from = from;
    h.header.step = step;
    h.line.flag = step;
    rail(from).send(to, h, reinterpret_cast<const std::byte*>(data.data()), data.size(), lent);
  }
  void send(Rank from, Rank to, uint64_t step, const char* text) {
    texts_.push_back(std::make_unique<std::string>(text));
    send(from, to, step, *texts_.back());
  }
  void send_short(Rank from, Rank to, uint64_t step, const std::string& data) {
    Header h;
    h.kind = Kind::kLines;
    h.step = step;
    rail(from).send_copy(to, h, data.data(), data.size());
  }
  // Moves all rails until that is so; false: not within 20 s.
  bool until(const std::function<bool()>& is_so) {
    const uint64_t since = monotonic_ns();
    while (!is_so()) {
      if (monotonic_ns() - since > 20'000'000'000) return false;
      for (auto& r : rails_)
        if (r != nullptr) r->progress();
    }
    return true;
  }

  static ssize_t send_all(int fd, const std::string& data) {
    return ::send(fd, data.data(), data.size(), MSG_NOSIGNAL);
  }
  int connect_to(Rank r) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<uint16_t>(std::strtoul(rail(r).address().c_str(), nullptr, 10)));
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    return fd;
  }
  // True when the rail ends the connection, within 20 s.
  bool is_hung_up(int fd) {
    EXPECT_EQ(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return until([&] {
      char any;
      const ssize_t n = recv(fd, &any, 1, 0);
      return n == 0 || (n < 0 && errno == ECONNRESET);
    });
  }

  std::vector<PeerRoute> routes_;
  std::unique_ptr<Reader> readers_[kRanks];
  std::unique_ptr<TcpRail> rails_[kRanks];
  std::vector<std::unique_ptr<DataHeader>> headers_;
  std::vector<std::unique_ptr<std::string>> texts_;
};

// Both begin at once, so that both connect; a third rank talks to both.
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

// What overtakes by thousands would make long ones look like copies.
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
  const auto none = TcpRail::create(0, 2, reader(0), "eth_none", {});
  EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(none.status().message().find("RONDO_RAILS names eth_none"), std::string::npos);
}

// A long message goes straight to where it is wanted, and everything else where it belongs, whatever lies behind it in
// the same read.
TEST_F(TcpRails, WhatIsAskedForLands) {
  std::string wanted(130'000, '\0');
  const std::string data = text_of(101, wanted.size()), before = text_of(100, 60'000), after = text_of(102, 130'000);
  reader(1).landing.ask(101, static_cast<uint32_t>(wanted.size()), reinterpret_cast<std::byte*>(wanted.data()));
  send(0, 1, 100, before);
  send(0, 1, 101, data);
  send_short(0, 1, 103, "credit");
  send(0, 1, 102, after);
  ASSERT_TRUE(until([&] { return reader(1).order.size() == 4; }));
  EXPECT_TRUE(wanted == data);
  EXPECT_FALSE(reader(1).landing.waits_for(101));
  EXPECT_EQ(reader(1).landing.find(101), reinterpret_cast<const std::byte*>(wanted.data()));
  EXPECT_EQ(reader(1).strings.count(101), 0u);
  EXPECT_TRUE(reader(1).strings[100] == before && reader(1).strings[102] == after);
  EXPECT_EQ(reader(1).strings[103], "credit");
}

// What is to be added is taken while it comes, in pieces of whole cache lines, each once and in order, wherever in what
// was read ahead it begins.
TEST_F(TcpRails, WhatIsAddedLandsInPieces) {
  for (const size_t before : {size_t{1}, size_t{77}, size_t{5000}}) {
    const std::string data = text_of(before, 1'000'003);
    std::string sum;
    const uint64_t step = 100 + 10 * before;
    size_t pieces = 0, crooked = 0;
    std::byte there{};
    reader(1).landing.ask(step, static_cast<uint32_t>(data.size()), &there,
                          [&](const std::byte* piece, uint32_t offset, uint32_t bytes) {
                            if (offset != sum.size() || (bytes % 64 != 0 && offset + bytes != data.size())) ++crooked;
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
    EXPECT_EQ(reader(1).landing.find(step), &there);
    EXPECT_EQ(reader(1).strings.count(step), 0u);
    EXPECT_TRUE(reader(1).strings[step + 1] == ahead);
    EXPECT_EQ(reader(1).strings[step + 2], "behind");
  }
}

// A message whose reader is about to ask for it waits for that; not for ever, and what comes behind it still comes.
TEST_F(TcpRails, LongMessagesWaitAMomentForTheirReader) {
  reader(1).waits = true;
  const std::string data = text_of(101, 300'000), unasked = text_of(102, 300'000);
  std::string wanted(data.size(), '\0');
  send(0, 1, 101, data);
  int looks = 0;
  ASSERT_TRUE(until([&] { return (looks = reader(1).looks) == 3; }));
  EXPECT_TRUE(reader(1).order.empty());
  reader(1).landing.ask(101, static_cast<uint32_t>(wanted.size()), reinterpret_cast<std::byte*>(wanted.data()));
  ASSERT_TRUE(until([&] { return reader(1).order.size() == 1; }));
  EXPECT_TRUE(wanted == data);
  send(0, 1, 102, unasked);
  send_short(0, 1, 103, "behind");
  ASSERT_TRUE(until([&] { return reader(1).order.size() == 3; }));
  EXPECT_TRUE(reader(1).strings[102] == unasked);
  EXPECT_GT(reader(1).looks, 10);
}

// The caller gives up while half of its message has come, and none of what another one has lent is out: neither buffer
// is touched any more, and the connection goes on.
TEST_F(TcpRails, RecallLeavesBuffersAlone) {
  send(0, 1, 100, "connects");
  ASSERT_TRUE(until([&] { return reader(1).order.size() == 1; }));
  std::string wanted(20'000'000, 'w'), lent_data = text_of(101, wanted.size());
  const std::string as_sent = lent_data;
  reader(1).landing.ask(101, static_cast<uint32_t>(wanted.size()), reinterpret_cast<std::byte*>(wanted.data()));
  Loan loan;
  Lent lent{&loan, nullptr};
  loan.lend(reinterpret_cast<const std::byte*>(lent_data.data()), 101);
  send(0, 1, 101, lent_data, &lent);
  ASSERT_TRUE(until([&] { return wanted[0] == lent_data[0] && wanted[1000] == lent_data[1000]; }));
  ASSERT_TRUE(loan.is_out());
  ASSERT_TRUE(reader(1).landing.waits_for(101));
  EXPECT_TRUE(rail(0).recall(0, 0));
  EXPECT_TRUE(rail(1).recall(0, 0));
  EXPECT_FALSE(loan.is_out());
  EXPECT_FALSE(reader(1).landing.waits_for(101));
  const std::string left = wanted;
  lent_data.assign(lent_data.size(), 'x');
  send(0, 1, 102, "after");
  ASSERT_TRUE(until([&] { return reader(1).order.size() == 2; }));  // 101 is nobody's
  EXPECT_EQ(reader(1).strings[102], "after");
  EXPECT_TRUE(wanted == left);
}

// The same of a sum: what was added stays half a sum, and nothing is added any more.
TEST_F(TcpRails, RecallEndsASum) {
  const std::string data = text_of(100, 20'000'000);
  uint64_t added = 0;
  std::string sum(1, '\0');
  reader(1).landing.ask(100, static_cast<uint32_t>(data.size()), reinterpret_cast<std::byte*>(sum.data()),
                        [&](const std::byte*, uint32_t, uint32_t bytes) { added += bytes; });
  send(0, 1, 100, data);
  ASSERT_TRUE(until([&] { return added > 100'000; }));
  EXPECT_TRUE(rail(1).recall(0, 0));
  EXPECT_FALSE(reader(1).landing.waits_for(100));
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
  Loan loan;
  Lent lent{&loan, nullptr};
  const std::string data = "too late";
  loan.lend(reinterpret_cast<const std::byte*>(data.data()), 101);
  send(0, 1, 101, data, &lent);
  EXPECT_FALSE(loan.is_out());
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

// Neither disturbs the ranks, nor stays: bytes at random; another communicator's rank; one that is for another rank.
TEST_F(TcpRails, StrangersAreTurnedAway) {
  struct Greeting {
    uint64_t magic = 0x6c6961726f646e72, session = kSession;
    int32_t from = 1, to = 0;
  };
  std::vector<std::string> firsts;
  auto as_text = [](const Greeting& g) { return std::string(reinterpret_cast<const char*>(&g), sizeof g); };
  firsts.push_back(text_of(1, 5000));
  firsts.push_back("GET / HTTP/1.1\r\nHost: rank0\r\n\r\n");
  Greeting g;
  g.session = kSession + 1;
  firsts.push_back(as_text(g));
  g = {};
  g.to = 2;
  firsts.push_back(as_text(g));
  for (const int32_t from : {-1, 0, 3, INT32_MAX}) {
    g = {};
    g.from = from;
    firsts.push_back(as_text(g));
  }
  for (const std::string& first : firsts) {
    const int fd = connect_to(0);
    ASSERT_EQ(send_all(fd, first), static_cast<ssize_t>(first.size()));
    EXPECT_TRUE(is_hung_up(fd));
    ::close(fd);
  }
  send(1, 0, 100, "hello");
  ASSERT_TRUE(until([&] { return !reader(0).order.empty(); }));
  EXPECT_EQ(reader(0).order.size(), 1u);
  EXPECT_TRUE(rail(0).losses(UINT64_MAX).empty());
}

// Connections that say nothing, as many as there may be, and then more: neither a rank that connects meanwhile is lost,
// nor one whose connection was closed before its greeting came.
TEST_F(TcpRails, IdleConnectionsKeepNoRankAway) {
  for (const bool sealed : {false, true}) {
    const Sealer::Key key = {3, 1, 4};
    make("", sealed ? &key : nullptr);
    std::vector<int> idle;
    auto connect_idle = [&](int n) {
      for (int i = 0; i < n; ++i) idle.push_back(connect_to(0));
    };
    connect_idle(120);
    ASSERT_TRUE(until([&] { return rail(0).arm(); }));
    send(1, 0, 100, "connects, and has not greeted");
    connect_idle(120);
    for (int i = 0; i < 20; ++i) rail(0).progress();  // it closes what is oldest
    send_short(2, 0, 101, "from another rank");
    ASSERT_TRUE(until([&] { return reader(0).order.size() == 2; }));
    EXPECT_EQ(reader(0).strings[100], "connects, and has not greeted");
    for (Rank r = 0; r < kRanks; ++r) EXPECT_TRUE(rail(r).losses(UINT64_MAX).empty()) << r;
    for (const int fd : idle) ::close(fd);
  }
}

TEST_F(TcpRails, ListensNoMoreWhenAllHaveConnected) {
  for (Rank r = 1; r < kRanks; ++r) send_short(r, 0, 100 + static_cast<uint64_t>(r), "connects");
  const int early = connect_to(0);
  ASSERT_TRUE(until([&] { return reader(0).order.size() == 2; }));
  EXPECT_TRUE(is_hung_up(early));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<uint16_t>(std::strtoul(rail(0).address().c_str(), nullptr, 10)));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  for (const int f : {fd, early}) ::close(f);
  send_short(1, 0, 200, "goes on");
  ASSERT_TRUE(until([&] { return reader(0).order.size() == 3; }));
}

// Who knows the communicator and then sends nonsense is a lost peer; nothing of it reaches anybody.
TEST_F(TcpRails, NonsenseBehindAGreetingEndsTheConnection) {
  struct Greeting {
    uint64_t magic = 0x6c6961726f646e72, session = kSession;
    int32_t from = 1, to = 0;
  };
  const Greeting g;
  const int fd = connect_to(0);
  const std::string nonsense = std::string(reinterpret_cast<const char*>(&g), sizeof g) + std::string(300, '\xff');
  ASSERT_EQ(send_all(fd, nonsense), static_cast<ssize_t>(nonsense.size()));
  EXPECT_TRUE(is_hung_up(fd));
  ::close(fd);
  EXPECT_TRUE(rail(0).lost(1));
  EXPECT_EQ(rail(0).losses(UINT64_MAX)[0].how, "rank 1 was lost: it sends what makes no sense");
  EXPECT_TRUE(reader(0).order.empty());
}

// From rank 1, which it knows: another communicator's message, another rank's, a kind that has no line.
TEST_F(TcpRails, AMessageThatCannotBeMeantEndsTheConnection) {
  for (int what = 0; what < 3; ++what) {
    make("");
    send(1, 0, 100, "connects");
    ASSERT_TRUE(until([&] { return reader(0).order.size() == 1; }));
    send(1, 0, 101, "strange");
    Header& h = headers_.back()->header;
    if (what == 0) h.session ^= 1;
    if (what == 1) h.from = 2;
    if (what == 2) h.kind = Kind::kCredit;
    ASSERT_TRUE(until([&] { return rail(0).lost(1); })) << what;
    EXPECT_EQ(rail(0).losses(UINT64_MAX)[0].how, "rank 1 was lost: it sends what makes no sense");
    EXPECT_EQ(reader(0).order.size(), 1u);
  }
}

// Carries the first connection that it gets to a rail, byte by byte, and flips one bit of one byte.
class Meddler {
 public:
  explicit Meddler(const std::string& to) : to_(static_cast<uint16_t>(std::strtoul(to.c_str(), nullptr, 10))) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in at = loopback(0);
    socklen_t bytes = sizeof at;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&at), bytes), 0);
    EXPECT_EQ(listen(listener_, 64), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &bytes), 0);
    port_ = ntohs(at.sin_port);
  }
  ~Meddler() {
    for (const Line& l : lines_)
      for (const int fd : l.ends) ::close(fd);
    ::close(listener_);
  }
  Meddler(const Meddler&) = delete;
  Meddler& operator=(const Meddler&) = delete;
  std::string address() const { return std::to_string(port_) + " "; }
  // side 0: what who connects sends; 1: what comes back. Of all connections together.
  void alter(size_t side, size_t byte, int bit) { side_ = side, byte_ = byte, bit_ = bit; }
  size_t carried(size_t side) const { return carried_[side]; }

  void progress() {
    if (const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); fd >= 0) {
      const int on = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in at = loopback(to_);
      EXPECT_EQ(connect(on, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
      EXPECT_EQ(fcntl(on, F_SETFL, O_NONBLOCK), 0);
      lines_.push_back({{fd, on}});
    }
    for (Line& l : lines_)
      for (size_t side = 0; side < 2; ++side) carry(l, side);
  }

 private:
  struct Line {
    int ends[2];
    bool is_over = false;
  };
  static sockaddr_in loopback(uint16_t port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    return at;
  }
  void carry(Line& l, size_t side) {
    char bytes[65536];
    const ssize_t n = l.is_over ? -1 : recv(l.ends[side], bytes, sizeof bytes, 0);
    if (n < 0 && (l.is_over || errno == EAGAIN)) return;
    if (n <= 0) {
      for (const int fd : l.ends) shutdown(fd, SHUT_RDWR);
      l.is_over = true;
      return;
    }
    if (side == side_ && byte_ >= carried_[side] && byte_ - carried_[side] < static_cast<size_t>(n)) {
      char& c = bytes[byte_ - carried_[side]];
      c = static_cast<char>(c ^ (1 << bit_));
    }
    carried_[side] += static_cast<size_t>(n);
    for (ssize_t done = 0; done < n;) {  // the rails of this process read in turn with this
      const ssize_t m = ::send(l.ends[1 - side], bytes + done, static_cast<size_t>(n - done), MSG_NOSIGNAL);
      if (m > 0) done += m;
      else if (errno != EAGAIN) return;
    }
  }
  const uint16_t to_;
  uint16_t port_ = 0;
  int listener_ = -1;
  size_t side_ = 2, byte_ = 0;
  int bit_ = 0;
  size_t carried_[2] = {};
  std::vector<Line> lines_;
};

// Whichever bit of what is sealed is flipped on the way, it ends at once: in both messages, intact, where nobody reads
// that bit, or by another connection; or in a failure that names both ranks. Nothing altered is handed on.
TEST_F(TcpRails, AnyBitThatIsFlippedIsNoticedAtOnce) {
  const Sealer::Key key = {3, 1, 4};
  size_t bytes[2] = {1, 1}, noticed = 0, harmless = 0;
  for (size_t side = 0; side < 2; ++side)
    for (size_t byte = 0; byte < bytes[side]; ++byte) {
      make("", &key);
      Meddler meddler(routes_[1].address);
      routes_[1].address = meddler.address();
      rail(0).set_peers(routes_, kSession);
      meddler.alter(side, byte, static_cast<int>(byte % 8));
      send_short(0, 1, 100, "short");
      send(0, 1, 101, "with a line");
      auto failed = [&] { return !reader(0).failures.empty() || !reader(1).failures.empty(); };
      ASSERT_TRUE(until([&] {
        meddler.progress();
        return failed() || reader(1).order.size() == 2;
      })) << side
          << " " << byte;
      for (const auto& [step, text] : reader(1).strings) EXPECT_EQ(text, step == 100 ? "short" : "with a line");
      for (Rank r = 0; r < 2; ++r)
        for (const std::string& f : reader(r).failures)
          EXPECT_EQ(f, "what rank " + std::to_string(1 - r) + " sent to rank " + std::to_string(r) +
                           " was altered on the way, or came twice: somebody tampers with the network between these "
                           "two ranks");
      EXPECT_TRUE(rail(0).losses(UINT64_MAX).empty() && rail(1).losses(UINT64_MAX).empty()) << side << " " << byte;
      ++(failed() ? noticed : harmless);
      bytes[side] = std::max(bytes[side], meddler.carried(side));
    }
  EXPECT_GT(noticed, 300u);
  EXPECT_GT(harmless, 50u) << "greetings are sent again, and frames are padded";
}

TEST_F(TcpRails, ALongMessageAlteredIsNoticedToo) {
  const Sealer::Key key = {3, 1, 4};
  for (const size_t byte : {48u + 70u, 48u + 200u, 100'000u, 299'999u}) {
    make("", &key);
    Meddler meddler(routes_[1].address);
    routes_[1].address = meddler.address();
    rail(0).set_peers(routes_, kSession);
    meddler.alter(0, byte, 5);
    const std::string data = text_of(byte, 300'000);
    send(0, 1, 101, data);
    ASSERT_TRUE(until([&] {
      meddler.progress();
      return !reader(1).failures.empty();
    })) << byte;
    EXPECT_TRUE(reader(1).order.empty());
    EXPECT_EQ(reader(1).strings.count(101), 0u);
    // What this rank then sends, an abort, gets there: its own connections are intact.
    send_short(1, 0, 102, "I abort");
    ASSERT_TRUE(until([&] {
      meddler.progress();
      return !reader(0).order.empty();
    }));
    EXPECT_TRUE(rail(0).losses(UINT64_MAX).empty());
  }
}

TEST_F(TcpRails, ArmedItsDescriptorTellsOfNews) {
  send(1, 0, 100, "hello");
  ASSERT_TRUE(until([&] { return reader(0).order.size() == 1 && rail(0).arm() && rail(1).arm(); }));
  send(1, 0, 101, "again");
  rail(1).progress();
  ASSERT_TRUE(until([&] { return !rail(0).arm() || reader(0).order.size() == 2; }));
  ASSERT_TRUE(until([&] { return reader(0).order.size() == 2; }));
}

}  // namespace
}  // namespace rondo::net
