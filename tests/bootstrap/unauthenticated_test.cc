// Unauthenticated connections from another host while ranks on two hosts meet: refused, logged, and harmless.
// labels: mp
// timeout: 120
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bootstrap/bootstrap_harness.h"
#include "bootstrap/socket.h"
#include "bootstrap/unique_id.h"
#include "support/shared.h"
#include "support/spawn.h"
#include "support/test_hosts.h"

namespace rondo {
namespace {

using testing::Child;
using testing::Shared;
using testing::SharedCounter;
using testing::World;

// State shared by the processes of one meeting.
struct HostsMeeting {
  rondo_unique_id id;
  SharedCounter made, has_unauthenticated, met;
};

class UnauthenticatedConnections : public ::testing::Test {
 protected:
  static constexpr int kRanks = 4;
  void SetUp() override {
    if (const std::string why = testing::why_no_world(World::kHosts); !why.empty()) GTEST_SKIP() << why;
    if (testing::test_hosts().num_hosts() < 2) GTEST_SKIP() << "needs two hosts";
  }

  // Runs all ranks. The last one comes when the connections are there. They exchange data and leave.
  std::string run_rank(Rank rank) {
    if (!testing::test_hosts().enter(rank % 2)) return "cannot enter the host";
    if (rank == 0) {
      const auto id = make_unique_id();
      if (!id.ok()) return id.status().to_string();
      meeting_->id = *id;
      meeting_->made.add();
    }
    if (!meeting_->made.wait_at_least(1, 30)) return "no id";
    if (rank == kRanks - 1 && !meeting_->has_unauthenticated.wait_at_least(1, 30)) return "no unknown connections";
    auto b = Bootstrap::join(kRanks, meeting_->id, rank, {.deadline_s = 30});
    if (!b.ok()) return b.status().to_string();
    std::vector<std::string> all;
    if (const Status s = (*b)->all_gather(&rank, sizeof(rank), &all); !s.ok()) return s.to_string();
    if (const Status s = (*b)->barrier(); !s.ok()) return s.to_string();
    meeting_->met.add();
    if (!meeting_->met.wait_at_least(kRanks, 30)) return "the others did not meet";
    (*b)->say_goodbye();
    return "ok";
  }

  // `act` gets the real id and a list for connections that stay open until the ranks have met.
  void meet_beside(const std::function<std::string(const rondo_unique_id&, std::vector<Fd>*)>& act) {
    char log_path[] = "/tmp/rondo-strangers-XXXXXX";
    Fd log(::mkstemp(log_path));
    std::vector<Child> ranks;
    for (Rank r = 0; r < kRanks; ++r)
      ranks.emplace_back([&, r]() -> std::string {
        ::dup2(log.get(), 2);
        return run_rank(r);
      });
    Child unauthenticated([&]() -> std::string {
      std::vector<Fd> open;
      if (!testing::test_hosts().enter(1) || !meeting_->made.wait_at_least(1, 30)) return "cannot begin";
      const std::string said = act(meeting_->id, &open);
      meeting_->has_unauthenticated.add();
      return meeting_->met.wait_at_least(kRanks, 30) ? said : "the ranks did not meet";
    });
    for (Child& c : ranks) EXPECT_EQ(c.join(), "ok");
    EXPECT_EQ(unauthenticated.join(), "ok");
    std::stringstream text;
    text << std::ifstream(log_path).rdbuf();
    log_ = text.str();
    std::filesystem::remove(log_path);
  }

  static Expected<Fd> reach(const rondo_unique_id& id) {
    RONDO_TRY_ASSIGN(const IdContents contents, decode_id(id));
    bool refused = false;
    return connect_tcp(contents.addresses[0], contents.port, Deadline(20, nullptr), &refused);
  }

  Shared<HostsMeeting> meeting_;
  std::string log_;
};

TEST_F(UnauthenticatedConnections, AWrongSecretIsRefusedAndLogged) {
  meet_beside([](const rondo_unique_id& id, std::vector<Fd>*) -> std::string {
    auto contents = decode_id(id);
    contents->secret[0] ^= 1;
    const Status s = Bootstrap::join(kRanks, encode_id(*contents), kRanks - 1, {.deadline_s = 20}).status();
    const bool good = s.code() == StatusCode::kUnauthorized && s.message().find("secret") != std::string::npos;
    return good ? "ok" : s.to_string();
  });
  EXPECT_NE(log_.find("rondo: rendezvous refused 10.77."), std::string::npos) << log_;
  EXPECT_NE(log_.find("claims rank 3 and does not hold the id's secret"), std::string::npos) << log_;
}

TEST_F(UnauthenticatedConnections, GarbageIsTurnedAway) {
  meet_beside([](const rondo_unique_id& id, std::vector<Fd>*) -> std::string {
    for (const std::string_view words :
         {"GET / HTTP/1.1\r\n\r\n", "rondoHX garbage that is long enough for a hello ......"}) {
      auto fd = reach(id);
      if (!fd.ok()) return fd.status().to_string();
      const Deadline deadline(20, nullptr);
      if (const Status s = write_all(fd->get(), words, deadline, "test"); !s.ok()) return s.to_string();
      char c;
      if (read_exactly(fd->get(), &c, 1, deadline, "test").code() != StatusCode::kPeerLost) return "was answered";
    }
    return "ok";
  });
}

TEST_F(UnauthenticatedConnections, SilenceHoldsNobodyUp) {
  meet_beside([](const rondo_unique_id& id, std::vector<Fd>* open) -> std::string {
    for (int i = 0; i < 20; ++i) {
      auto fd = reach(id);
      if (!fd.ok()) return fd.status().to_string();
      open->push_back(std::move(*fd));
    }
    return "ok";
  });
}

}  // namespace
}  // namespace rondo
