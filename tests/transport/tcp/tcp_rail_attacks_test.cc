// Effects on a rail of unauthenticated connections, peers that send nonsense, and an attacker who alters bytes.
#include "transport/tcp/tcp_rails.h"

namespace rondo::net {
namespace {

class TcpRailAttacks : public TcpRails {};

// These connections do no harm and are closed: random bytes; another communicator's rank; one for another rank.
TEST_F(TcpRailAttacks, UnauthenticatedConnectionsAreTurnedAway) {
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

// As many silent connections as allowed, and more: no rank that connects meanwhile is lost, even if its connection was
// closed before its greeting came.
TEST_F(TcpRailAttacks, IdleConnectionsKeepNoRankAway) {
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
    for (int i = 0; i < 20; ++i) rail(0).progress();  // it closes the oldest
    send_short(2, 0, 101, "from another rank");
    ASSERT_TRUE(until([&] { return reader(0).order.size() == 2; }));
    EXPECT_EQ(reader(0).strings[100], "connects, and has not greeted");
    for (Rank r = 0; r < kRanks; ++r) EXPECT_TRUE(rail(r).losses(UINT64_MAX).empty()) << r;
    for (const int fd : idle) ::close(fd);
  }
}

TEST_F(TcpRailAttacks, ListensNoMoreWhenAllHaveConnected) {
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

// A peer that knows the communicator and then sends nonsense is lost. None of it is delivered.
TEST_F(TcpRailAttacks, NonsenseBehindAGreetingEndsTheConnection) {
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
  EXPECT_EQ(rail(0).losses(UINT64_MAX)[0].how, "rank 1 was lost: it sent a malformed message");
  EXPECT_TRUE(reader(0).order.empty());
}

// From the known rank 1: another communicator's message, another rank's, a kind without a line.
TEST_F(TcpRailAttacks, AMessageThatCannotBeMeantEndsTheConnection) {
  for (int what = 0; what < 3; ++what) {
    make("");
    send(1, 0, 100, "connects");
    ASSERT_TRUE(until([&] { return reader(0).order.size() == 1; }));
    send(1, 0, 101, "strange");
    Header& h = headers_.back()->header;
    if (what == 0) h.session ^= 1;
    if (what == 1) h.from = 2;
    if (what == 2) h.kind = MessageKind::kCredit;
    ASSERT_TRUE(until([&] { return rail(0).lost(1); })) << what;
    EXPECT_EQ(rail(0).losses(UINT64_MAX)[0].how, "rank 1 was lost: it sent a malformed message");
    EXPECT_EQ(reader(0).order.size(), 1u);
  }
}

// Forwards its first connection to a rail byte by byte, and flips one bit of one byte.
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
  // side 0: bytes from the connecting side; 1: bytes back. Counted over all connections.
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
    for (ssize_t done = 0; done < n;) {  // the rails of this process are read in turn with this
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

// For any flipped bit of sealed data the test ends at once: both messages arrive intact (the bit is not read, or
// another connection is used), or a failure names both ranks. Altered data is never delivered.
TEST_F(TcpRailAttacks, AnyBitThatIsFlippedIsNoticedAtOnce) {
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
          EXPECT_EQ(f, "a message from rank " + std::to_string(1 - r) + " to rank " + std::to_string(r) +
                           " was altered on the way, or arrived twice: someone tampers with the network between these "
                           "two ranks");
      EXPECT_TRUE(rail(0).losses(UINT64_MAX).empty() && rail(1).losses(UINT64_MAX).empty()) << side << " " << byte;
      ++(failed() ? noticed : harmless);
      bytes[side] = std::max(bytes[side], meddler.carried(side));
    }
  EXPECT_GT(noticed, 300u);
  EXPECT_GT(harmless, 50u) << "greetings are sent again, and frames are padded";
}

TEST_F(TcpRailAttacks, ALongMessageAlteredIsNoticedToo) {
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
    // An abort that this rank then sends arrives, because its own connections are intact.
    send_short(1, 0, 102, "I abort");
    ASSERT_TRUE(until([&] {
      meddler.progress();
      return !reader(0).order.empty();
    }));
    EXPECT_TRUE(rail(0).losses(UINT64_MAX).empty());
  }
}

}  // namespace
}  // namespace rondo::net
