// Silent connections from several addresses of one machine: which ones are closed, and that authenticated ones still
// get in.
#include "transport/net/tcp_listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

namespace rondo::net {
namespace {

constexpr size_t kMost = 8, kGreetingBytes = 5;

class TcpListeners : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(listener_.open({"127.0.0.1"}, kMost).ok()); }
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
    at.sin_port = htons(listener_.port());
    const int done = connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at);
    EXPECT_TRUE(done == 0 || errno == EINPROGRESS);
    return fd;
  }
  void look() {
    for (int i = 0; i < 70; ++i)
      listener_.look(kGreetingBytes, [this](int fd, std::string_view greeting) {
        if (greeting != "hello") return false;
        admitted_.push_back(fds_.emplace_back(fd));
        return true;
      });
  }
  static bool is_open(int fd) {
    char any;
    const ssize_t n = recv(fd, &any, 1, MSG_PEEK);
    return n > 0 || (n < 0 && errno == EAGAIN);
  }
  TcpListener listener_;
  std::vector<int> fds_, admitted_;
};

TEST_F(TcpListeners, TheOldestOfAFullSetIsClosed) {
  std::vector<int> silent;
  for (size_t i = 0; i < kMost + 3; ++i) silent.push_back(from("127.0.0.1"));
  look();
  for (size_t i = 0; i < silent.size(); ++i) EXPECT_EQ(is_open(silent[i]), i >= 3) << i;
  EXPECT_TRUE(admitted_.empty());
}

TEST_F(TcpListeners, OfTheAddressThatHoldsMost) {
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
TEST_F(TcpListeners, WhoHasGreetedIsAdmitted) {
  for (int round = 0; round < 10; ++round) {
    const int rank = from("127.0.0.1");
    ASSERT_EQ(send(rank, "hello", 5, MSG_NOSIGNAL), 5);
    for (size_t i = 0; i < 3 * kMost; ++i) from("127.0.0.1");
    look();
    EXPECT_EQ(admitted_.size(), static_cast<size_t>(round + 1));
  }
}

TEST_F(TcpListeners, AGreetingMayComeInParts) {
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

TEST_F(TcpListeners, ClosedItTakesNobody) {
  const int before = from("127.0.0.1");
  look();
  listener_.close();
  EXPECT_FALSE(is_open(before));
  const int after = from("127.0.0.1");
  EXPECT_FALSE(is_open(after));
}

TEST_F(TcpListeners, AddressesThatThisHostLacksAreLeftOut) {
  TcpListener some, none;
  EXPECT_TRUE(some.open({"192.0.2.1", "127.0.0.1"}, kMost).ok());
  EXPECT_NE(some.port(), 0);
  const Status s = none.open({"192.0.2.1"}, kMost);
  EXPECT_EQ(s.code(), StatusCode::kSystem);
  EXPECT_NE(s.message().find("listen on 192.0.2.1"), std::string_view::npos) << s.to_string();
}

}  // namespace
}  // namespace rondo::net
