// The handshake's keyed hash, and its client side against its server side: accepted and refused inputs, with reasons.
// labels: unit
#include "bootstrap/auth.h"

#include "bootstrap/tls.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>

namespace rondo {
namespace {

std::string hex(const Mac& mac) {
  std::string text;
  for (const uint8_t b : mac) {
    text += "0123456789abcdef"[b >> 4];
    text += "0123456789abcdef"[b & 15];
  }
  return text;
}

// RFC 4231 uses other key lengths than a Secret's, but trailing zeros do not change an HMAC key.
TEST(Hmac, TestCase2OfRfc4231) {
  const Secret jefe = {'J', 'e', 'f', 'e'};
  EXPECT_EQ(hex(hmac_sha256(jefe, "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Hmac, ManyBlocksAndNone) {
  // Python: hmac.new(bytes(range(16)), text, "sha256").hexdigest()
  Secret key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(i);
  EXPECT_EQ(hex(hmac_sha256(key, "")), "07eff8b326b7798c9ccfcbdbe579489ac785a7995a04618b1a2813c26744777d");
  EXPECT_EQ(hex(hmac_sha256(key, std::string(1000, 'x'))), "47d6741abd3310963561d670d1b78088de0537dee5ce7c5a40319c89389a918b");
}

// Both ends of a stream in one thread. Neither side of the handshake waits.
struct SecretMeeting {
  SecretMeeting(const Secret& clients, const Secret& servers, Purpose wanted = Purpose::kMesh,
                Encryption clients_way = {}, Encryption servers_way = {})
      : client(clients, wanted, 7, clients_way), server(servers, Purpose::kMesh, servers_way) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    client_end = Fd(ends[0]);
    server_end = Fd(ends[1]);
  }
  void run() {
    client_state = client.start(client_end.get());
    for (int i = 0; i < 4; ++i) {
      if (server_state == ServerHandshake::State::kUnderWay) server_state = server.advance(server_end.get());
      if (server_state == ServerHandshake::State::kFailed) server_end.reset();
      if (client_state == ClientHandshake::State::kUnderWay) client_state = client.advance(client_end.get());
    }
  }
  Fd client_end, server_end;
  ClientHandshake client;
  ServerHandshake server;
  ClientHandshake::State client_state = ClientHandshake::State::kUnderWay;
  ServerHandshake::State server_state = ServerHandshake::State::kUnderWay;
};

constexpr Secret kSecret = {1, 2, 3}, kOther = {3, 2, 1};

TEST(Handshake, EqualSecretsMeet) {
  SecretMeeting m(kSecret, kSecret);
  m.run();
  EXPECT_EQ(m.client_state, ClientHandshake::State::kAccepted);
  ASSERT_EQ(m.server_state, ServerHandshake::State::kAccepted);
  EXPECT_EQ(m.server.rank(), 7);
}

TEST(Handshake, AnotherSecretIsRefusedOnBothSides) {
  SecretMeeting m(kSecret, kOther);
  m.run();
  EXPECT_EQ(m.server_state, ServerHandshake::State::kFailed);
  EXPECT_TRUE(m.server.was_wrong_secret());
  ASSERT_EQ(m.client_state, ClientHandshake::State::kFailed);
  EXPECT_EQ(m.client.status().code(), StatusCode::kUnauthorized);
}

TEST(Handshake, EncryptsWhereBothAreToldTo) {
  const Encryption on{true, "a pre-shared key"};
  SecretMeeting m(kSecret, kSecret, Purpose::kMesh, on, on);
  m.run();
  ASSERT_EQ(m.client_state, ClientHandshake::State::kAccepted) << m.client.status().to_string();
  ASSERT_EQ(m.server_state, ServerHandshake::State::kAccepted) << m.server.status().to_string();
  const auto client = m.client.take_session(), server = m.server.take_session();
  ASSERT_TRUE(client != nullptr && server != nullptr);
  ASSERT_TRUE(client->seal("hello").ok());
  ASSERT_TRUE(server->take(client->to_send()).ok());
  std::string got;
  ASSERT_TRUE(server->open(&got).ok());
  EXPECT_EQ(got, "hello");
}

TEST(Handshake, OneThatEncryptsAndOneThatDoesNotPartAtOnce) {
  for (const bool client_does : {false, true}) {
    SecretMeeting m(kSecret, kSecret, Purpose::kMesh, {client_does}, {!client_does});
    m.run();
    EXPECT_EQ(m.server_state, ServerHandshake::State::kFailed);
    EXPECT_NE(m.server.status().message().find("RONDO_ENCRYPT"), std::string::npos) << m.server.status().to_string();
    ASSERT_EQ(m.client_state, ClientHandshake::State::kFailed);
    EXPECT_EQ(m.client.status().code(), StatusCode::kMismatch);
    EXPECT_NE(m.client.status().message().find("RONDO_ENCRYPT"), std::string::npos) << m.client.status().to_string();
  }
}

TEST(Handshake, AnotherPreSharedKeyIsRefused) {
  SecretMeeting m(kSecret, kSecret, Purpose::kMesh, {true, "one key"}, {true, "another"});
  m.run();
  EXPECT_EQ(m.server_state, ServerHandshake::State::kFailed);
  ASSERT_EQ(m.client_state, ClientHandshake::State::kFailed);
  EXPECT_EQ(m.client.status().code(), StatusCode::kUnauthorized) << m.client.status().to_string();
}

TEST(Handshake, AnotherPurposeIsClosed) {
  SecretMeeting m(kSecret, kSecret, Purpose::kRendezvous);
  m.run();
  EXPECT_EQ(m.server_state, ServerHandshake::State::kFailed);
  ASSERT_EQ(m.client_state, ClientHandshake::State::kFailed);
  EXPECT_EQ(m.client.status().code(), StatusCode::kPeerLost);
}

TEST(Handshake, WhatIsNoRondoIsNamed) {
  SecretMeeting m(kSecret, kSecret);
  m.client_state = m.client.start(m.client_end.get());
  const std::string page = "HTTP/1.1 400 Bad Request\r\nServer: something else altogether\r\n\r\n";
  ASSERT_EQ(::send(m.server_end.get(), page.data(), page.size(), MSG_NOSIGNAL), static_cast<ssize_t>(page.size()));
  ASSERT_EQ(m.client.advance(m.client_end.get()), ClientHandshake::State::kFailed);
  EXPECT_EQ(m.client.status().code(), StatusCode::kMismatch);
}

// A server that accepts without knowing the secret must not be trusted.
TEST(Handshake, AServerThatOnlySaysYesIsUnauthorized) {
  SecretMeeting m(kSecret, kSecret);
  m.client_state = m.client.start(m.client_end.get());
  std::string challenge = std::string("rondoHS") + '\4' + '\0' + std::string(32, 'n');
  const std::string verdict = '\1' + std::string(sizeof(Mac), 'm');
  challenge += verdict;
  ASSERT_EQ(::send(m.server_end.get(), challenge.data(), challenge.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(challenge.size()));
  ASSERT_EQ(m.client.advance(m.client_end.get()), ClientHandshake::State::kFailed);
  EXPECT_EQ(m.client.status().code(), StatusCode::kUnauthorized);
}

// The short handshake of two ranks of a host.
struct PairMeeting {
  PairMeeting(const Secret& clients, const Secret& servers, RankPair seen_by_client, RankPair seen_by_server)
      : client(clients, seen_by_client), server(servers, [seen_by_server](Rank) { return seen_by_server; }) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    const Fd client_end(ends[0]), server_end(ends[1]);
    EXPECT_EQ(client.start(client_end.get()), ClientHandshake::State::kUnderWay);
    server_state = server.advance(server_end.get());
    client_state = client.advance(client_end.get());
  }
  ClientHandshake client;
  ServerHandshake server;
  ClientHandshake::State client_state;
  ServerHandshake::State server_state;
};

TEST(PairHandshake, MembersAcceptOneAnother) {
  const RankPair pair{7, 2, "name of 7", "name of 2"};
  const PairMeeting m({1}, {1}, pair, pair);
  EXPECT_EQ(m.client_state, ClientHandshake::State::kAccepted);
  EXPECT_EQ(m.server_state, ServerHandshake::State::kAccepted);
  EXPECT_EQ(m.server.rank(), 7);
}

TEST(PairHandshake, AnotherSecretPairOrMeetingIsRefused) {
  const RankPair pair{7, 2, "name of 7", "name of 2"};
  struct Case {
    Secret clients;
    RankPair seen_by_client;
  };
  for (const Case& c :
       {Case{{9}, pair}, Case{{1}, {6, 2, "name of 7", "name of 2"}}, Case{{1}, {7, 3, "name of 7", "name of 2"}},
        Case{{1}, {7, 2, "earlier name", "name of 2"}}, Case{{1}, {7, 2, "name of 7", "earlier name"}}}) {
    const PairMeeting m(c.clients, {1}, c.seen_by_client, pair);
    EXPECT_EQ(m.server_state, ServerHandshake::State::kFailed);
    EXPECT_TRUE(m.server.was_wrong_secret());
    EXPECT_EQ(m.client_state, ClientHandshake::State::kFailed);
    EXPECT_EQ(m.client.status().code(), StatusCode::kUnauthorized);
  }
  const PairMeeting uninvited({1}, {1}, {7, 2, "", "name of 2"}, {7, 2, "", "name of 2"});
  EXPECT_EQ(uninvited.server_state, ServerHandshake::State::kFailed) << "a rank that may not come has no name";
}

TEST(PairHandshake, AServerWithoutTheSecretIsNotBelieved) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const Fd client_end(ends[0]), server_end(ends[1]);
  ClientHandshake client({1}, {7, 2, "name of 7", "name of 2"});
  ASSERT_EQ(client.start(client_end.get()), ClientHandshake::State::kUnderWay);
  const std::string accepted = '\1' + std::string(32, 'x');
  ASSERT_EQ(::send(server_end.get(), accepted.data(), accepted.size(), 0), 33);
  EXPECT_EQ(client.advance(client_end.get()), ClientHandshake::State::kFailed);
  EXPECT_EQ(client.status().code(), StatusCode::kUnauthorized);
}

TEST(PairHandshake, GarbageIsKnownByItsFirstBytes) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const Fd client_end(ends[0]), server_end(ends[1]);
  ServerHandshake server({1}, [](Rank) { return RankPair{}; });
  ASSERT_EQ(::send(client_end.get(), "GET", 3, 0), 3);
  EXPECT_EQ(server.advance(server_end.get()), ServerHandshake::State::kFailed);
}

}  // namespace
}  // namespace rondo
