// Ranks that meet at a known address: Communicator::unique_id_at.
// labels: mp
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "rondo/communicator.h"
#include "support/simple_calls.h"
#include "support/spawn.h"

namespace rondo::testing {
namespace {

// A free port of the loopback.
uint16_t free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

TEST(MeetingPlace, RanksNeedNothingButItsName) {
  const std::string place = "127.0.0.1:" + std::to_string(free_port());
  SpawnOptions options;
  report(run_processes_bare(
             3,
             [&](Rank rank) -> Status {
               RONDO_TRY_ASSIGN(const UniqueId id, Communicator::unique_id_at(place, "s", rank == 0));
               RONDO_TRY_ASSIGN(auto comm, Communicator::init_rank(3, id, rank));
               EXPECT_TRUE(works(*comm));
               return {};
             },
             options),
         options);
}

TEST(MeetingPlace, TheIdFollowsFromPlaceAndSecret) {
  const auto id = [](const char* place, const char* secret) {
    auto made = Communicator::unique_id_at(place, secret, false);
    EXPECT_TRUE(is_ok(made.status()));
    return std::string(made->bytes, sizeof made->bytes);
  };
  EXPECT_EQ(id("127.0.0.1:4000", "a"), id("127.0.0.1:4000", "a"));
  EXPECT_NE(id("127.0.0.1:4000", "a"), id("127.0.0.1:4000", "b"));
  EXPECT_NE(id("127.0.0.1:4000", "a"), id("127.0.0.1:4001", "a"));
  EXPECT_NE(id("[::1]:4000", "a"), id("127.0.0.1:4000", "a"));
}

TEST(MeetingPlace, WhatIsNoneIsNamed) {
  for (const char* place : {"", "host", ":4000", "host:", "host:0", "host:70000", "host:40x", "[]:4000"})
    EXPECT_TRUE(fails_with(Communicator::unique_id_at(place, "", false).status(), StatusCode::kInvalidArgument,
                           {fmt::format("'{}'", place)}))
        << place;
}

TEST(MeetingPlace, APortThatIsTakenIsSaid) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string place = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  EXPECT_TRUE(fails_with(Communicator::unique_id_at(place, "", true).status(), StatusCode::kSystem,
                         {"rendezvous", "name a free port on all ranks"}));
  ::close(fd);
}

}  // namespace
}  // namespace rondo::testing
