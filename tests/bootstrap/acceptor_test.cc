// Silent connections from several addresses of one machine: which ones are closed, and that authenticated ones still
// get in.
#include "bootstrap/acceptor.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

namespace rondo {
namespace {

constexpr size_t kMost = 8, kGreetingBytes = 5;

class Acceptors : public ::testing::Test {
 protected:
  void SetUp() override {
    Listeners listeners = std::move(*listen_tcp({loopback()}, 0));
    port_ = listeners.port;
    ASSERT_TRUE(acceptor_.open(Fd(), std::move(listeners.sockets)).ok());
    acceptor_.set_most(kMost);
    acceptor_.serve([](const Arrival&) { return FixedGreeting(kGreetingBytes); },
                    [this](Arrival& a, bool complete) {
                      if (complete && a.handshake->bytes() == "hello")
                        admitted_.push_back(fds_.emplace_back(a.fd.release()));
                    },
                    false);
  }
  void TearDown() override {
    for (const int fd : fds_) ::close(fd);
  }
  // Connected and silent.
  int from(const std::string& source) {
    const int fd = fds_.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    inet_pton(AF_INET, source.c_str(), &at.sin_addr);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at), 0) << source;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port_);
    const int done = connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at);
    EXPECT_TRUE(done == 0 || errno == EINPROGRESS);
    return fd;
  }
  void look() {
    for (int i = 0; i < 70; ++i) EXPECT_TRUE(acceptor_.look().ok());
  }
  static bool is_open(int fd) {
    char any;
    const ssize_t n = recv(fd, &any, 1, MSG_PEEK);
    return n > 0 || (n < 0 && errno == EAGAIN);
  }
  using Arrival = Acceptor<FixedGreeting>::Connection;
  static IpAddress loopback() { return (*resolve("127.0.0.1"))[0]; }
  uint16_t port_ = 0;
  Acceptor<FixedGreeting> acceptor_;
  std::vector<int> fds_, admitted_;
};

TEST_F(Acceptors, TheOldestOfAFullSetIsClosed) {
  std::vector<int> silent;
  for (size_t i = 0; i < kMost + 3; ++i) silent.push_back(from("127.0.0.1"));
  look();
  for (size_t i = 0; i < silent.size(); ++i) EXPECT_EQ(is_open(silent[i]), i >= 3) << i;
  EXPECT_TRUE(admitted_.empty());
}

TEST_F(Acceptors, OfTheAddressThatHoldsMost) {
  const int rank = from("127.0.0.2");
  for (int i = 0; i < 1000; ++i) {
    from("127.0.0.3");
    if (i % 100 == 0) look();
  }
  look();
  ASSERT_TRUE(is_open(rank));
  ASSERT_EQ(send(rank, "hello", 5, MSG_NOSIGNAL), 5);
  look();
  EXPECT_EQ(admitted_.size(), 1u);
}

// A greeting that came before many others is read before its connection can be closed.
TEST_F(Acceptors, WhoHasGreetedIsAdmitted) {
  for (int round = 0; round < 10; ++round) {
    const int rank = from("127.0.0.1");
    ASSERT_EQ(send(rank, "hello", 5, MSG_NOSIGNAL), 5);
    for (size_t i = 0; i < 3 * kMost; ++i) from("127.0.0.1");
    look();
    EXPECT_EQ(admitted_.size(), static_cast<size_t>(round + 1));
  }
}

TEST_F(Acceptors, AGreetingMayComeInParts) {
  const int rank = from("127.0.0.1"), other = from("127.0.0.1");
  for (const char* part : {"h", "el", "lo and more"}) {
    EXPECT_TRUE(admitted_.empty());
    ASSERT_GT(send(rank, part, strlen(part), MSG_NOSIGNAL), 0);
    look();
  }
  ASSERT_EQ(admitted_.size(), 1u);
  char rest[16] = {};
  EXPECT_EQ(recv(admitted_[0], rest, sizeof rest, 0), 9);
  EXPECT_STREQ(rest, " and more");
  ASSERT_EQ(send(other, "wrong", 5, MSG_NOSIGNAL), 5);
  look();
  EXPECT_FALSE(is_open(other));
  EXPECT_EQ(admitted_.size(), 1u);
}

TEST_F(Acceptors, ClosedItTakesNobody) {
  const int before = from("127.0.0.1");
  look();
  acceptor_.close();
  EXPECT_FALSE(is_open(before));
  const int after = from("127.0.0.1");
  EXPECT_FALSE(is_open(after));
}

TEST_F(Acceptors, AddressesThatThisHostLacksAreLeftOut) {
  const IpAddress none = (*resolve("192.0.2.1"))[0];
  const auto some = listen_tcp({none, loopback()}, 0);
  ASSERT_TRUE(some.ok());
  EXPECT_NE(some->port, 0);
  EXPECT_EQ(some->addresses, std::vector{loopback()});
  const Status s = listen_tcp({none}, 0).status();
  EXPECT_EQ(s.code(), StatusCode::kSystem);
  EXPECT_NE(s.message().find("listen on 192.0.2.1"), std::string_view::npos) << s.to_string();
}

TEST_F(Acceptors, KeepaliveOnlyBetweenDifferentAddresses) {
  const auto has_keepalive = [](int fd) {
    int on = -1;
    socklen_t bytes = sizeof on;
    EXPECT_EQ(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &bytes), 0);
    return on != 0;
  };
  const auto listener = listen_tcp({loopback()}, 0);
  ASSERT_TRUE(listener.ok());
  for (const char* source : {"127.0.0.1", "127.0.0.2"}) {
    const IpAddress own = (*resolve(source))[0];
    bool connected = false;
    int error = 0;
    const Fd there = begin_connect_tcp(loopback(), listener->port, &connected, &error, &own);
    ASSERT_TRUE(there) << error;
    pollfd arrival{listener->sockets[0].get(), POLLIN, 0};
    ASSERT_EQ(poll(&arrival, 1, 10'000), 1);
    std::string who;
    const Fd here = accept_one(arrival.fd, &who);
    ASSERT_TRUE(here);
    EXPECT_EQ(who.substr(0, who.find(':')), source);
    EXPECT_EQ(has_keepalive(here.get()), source != std::string_view("127.0.0.1"));
    EXPECT_EQ(has_keepalive(there.get()), source != std::string_view("127.0.0.1"));
  }
}

}  // namespace
}  // namespace rondo
