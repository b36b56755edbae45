// TLS sessions: data comes out as it went in, in pieces of any size, and only with the right key.
#include "bootstrap/tls.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "support/shared.h"

namespace rondo {
namespace {

struct Pair {
  explicit Pair(TlsSession::Key clients = {1}, TlsSession::Key servers = {1}) {
    auto c = TlsSession::create(TlsSession::Role::kClient, clients);
    auto s = TlsSession::create(TlsSession::Role::kServer, servers);
    if (c.ok()) client = std::move(*c);
    if (s.ok()) server = std::move(*s);
  }
  // Exchanges all pending data in pieces of this size until both sides are done.
  Status talk(size_t piece = 1 << 20) {
    for (bool any = true; any;) {
      any = false;
      for (auto [from, to] : {std::pair(client.get(), server.get()), std::pair(server.get(), client.get())}) {
        const std::string bytes = from->to_send();
        for (size_t at = 0; at < bytes.size(); at += piece) {
          any = true;
          if (Status s = to->take(std::string_view(bytes).substr(at, piece)); !s.ok()) return s;
        }
      }
    }
    return {};
  }
  std::unique_ptr<TlsSession> client, server;
};

TEST(Tls, CarriesBothWays) {
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{1} << 20}) {
    Pair p;
    ASSERT_NE(p.client, nullptr);
    ASSERT_NE(p.server, nullptr);
    EXPECT_FALSE(p.server->ready());
    ASSERT_TRUE(p.talk(piece).ok());
    ASSERT_TRUE(p.client->ready() && p.server->ready());
    const std::string text(100003, 'x');
    ASSERT_TRUE(p.client->seal(text).ok());
    ASSERT_TRUE(p.server->seal("short").ok());
    ASSERT_TRUE(p.talk(piece).ok());
    std::string at_server, at_client;
    ASSERT_TRUE(p.server->open(&at_server).ok());
    ASSERT_TRUE(p.client->open(&at_client).ok());
    EXPECT_EQ(at_server, text);
    EXPECT_EQ(at_client, "short");
  }
}

TEST(Tls, NothingIsReadableOnTheWay) {
  Pair p;
  ASSERT_TRUE(p.talk().ok());
  const std::string text = "a text that others must not read";
  ASSERT_TRUE(p.client->seal(text).ok());
  EXPECT_EQ(p.client->to_send().find(text.substr(0, 8)), std::string::npos);
}

// Data that follows the handshake directly is kept until the session is open.
TEST(Tls, DataBehindTheHandshake) {
  Pair p;
  ASSERT_TRUE(p.server->take(p.client->to_send()).ok());
  ASSERT_TRUE(p.client->take(p.server->to_send()).ok());
  ASSERT_TRUE(p.client->ready());
  ASSERT_TRUE(p.client->seal("first words").ok());
  ASSERT_TRUE(p.server->take(p.client->to_send()).ok());
  std::string got;
  ASSERT_TRUE(p.server->open(&got).ok());
  EXPECT_EQ(got, "first words");
}

TEST(Tls, AnotherKeyIsRefused) {
  Pair p({1}, {2});
  const Status s = p.talk();
  EXPECT_EQ(s.code(), StatusCode::kUnauthorized) << s.to_string();
  EXPECT_NE(s.message().find("different keys"), std::string::npos) << s.to_string();
  EXPECT_FALSE(p.server->ready());
}

TEST(Tls, AnAlteredByteIsNoticed) {
  Pair p;
  ASSERT_TRUE(p.talk().ok());
  ASSERT_TRUE(p.client->seal("a message").ok());
  std::string bytes = p.client->to_send();
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::string got;
  Status s = p.server->take(bytes);
  if (s.ok()) s = p.server->open(&got);
  EXPECT_EQ(s.code(), StatusCode::kUnauthorized) << s.to_string();
  EXPECT_TRUE(got.empty());
}

TEST(Tls, GarbageIsNoHandshake) {
  Pair p;
  EXPECT_FALSE(p.server->take("GET / HTTP/1.1\r\n\r\n").ok());
}

// A child inherits a lock that another thread holds at the fork. OpenSSL takes locks for a session, and when a thread
// that had one ends.
void expect_good_children_beside(const std::function<void()>& work) {
  std::atomic<bool> stop = false;
  std::thread beside([&] {
    while (!stop) work();
  });
  int num_good = 0;
  constexpr int kForks = 200;
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      ::_exit(Pair().talk().ok() ? 0 : 1);
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    num_good += status == 0;
  }
  stop = true;
  beside.join();
  EXPECT_EQ(num_good, kForks);
}

TEST(Tls, WorksInAChildForkedBesideASession) {
  expect_good_children_beside([] { (void)Pair().talk(); });
}

TEST(Tls, WorksInAChildForkedAtTheEndOfAThread) {
  if (testing::kSanitized) GTEST_SKIP() << "AddressSanitizer's allocator does not survive a fork beside busy threads";
  expect_good_children_beside([] {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back([] { (void)Pair(); });
    for (std::thread& t : threads) t.join();
  });
}

}  // namespace
}  // namespace rondo
