// All ranks' errors when joining or leaving fails: missing, lost, doubled, contradicting and unauthenticated ranks.
// labels: unit mp
// timeout: 120
// again with: RONDO_TEST_FULL_MESH=3
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "bootstrap/auth.h"
#include "bootstrap/bootstrap_harness.h"
#include "bootstrap/link.h"
#include "bootstrap/socket.h"
#include "bootstrap/unique_id.h"
#include "config/encryption.h"

namespace rondo {
namespace {

using testing::Child;
using testing::eventually;
using testing::expect_error;
using testing::Spawn;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Joins `ranks` (of nranks) as threads and returns their statuses in that order.
std::vector<Status> join_some(int nranks, const rondo_unique_id& id, const std::vector<Rank>& ranks,
                              const BootstrapOptions& options) {
  std::vector<Status> results(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back([&, i] {
      auto b = Bootstrap::join(nranks, id, ranks[i], options);
      results[i] = b.status();
      if (b.ok()) (*b)->say_goodbye();
    });
  for (std::thread& t : threads) t.join();
  return results;
}

TEST(BootstrapFailure, MissingRanksAreNamedAtTheDeadline) {
  const auto start = Clock::now();
  const auto results = join_some(6, testing::new_id(), {0, 1, 3, 4}, {.deadline_s = 0.5});
  for (const Status& s : results) expect_error(s, StatusCode::kTimeout, {"ranks 2, 5 have not joined after 0.5 s"});
  EXPECT_LT(seconds_since(start), 5);
}

TEST(BootstrapFailure, DifferentNranksNameBothSides) {
  const rondo_unique_id id = testing::new_id();
  std::vector<Status> results(2);
  std::thread other([&] { results[0] = Bootstrap::join(3, id, 0, {.deadline_s = 20}).status(); });
  results[1] = Bootstrap::join(2, id, 1, {.deadline_s = 20}).status();
  other.join();
  for (const Status& s : results)
    expect_error(s, StatusCode::kMismatch, {"rank 0", "nranks = 3", "rank 1", "nranks = 2"});
}

TEST(BootstrapFailure, DoubledRankFailsAllAtOnce) {
  const rondo_unique_id id = testing::new_id();
  const auto start = Clock::now();
  for (const Status& s : join_some(3, id, {0, 1, 1}, {.deadline_s = 20}))
    expect_error(s, StatusCode::kMismatch, {"rank 1 of 3 joined twice"});
  // Ranks that come after the failure get the same error instead of waiting.
  for (const Status& s : join_some(4, testing::new_id(), {0, 2, 2, 3}, {.deadline_s = 20}))
    expect_error(s, StatusCode::kMismatch, {"rank 2 of 4 joined twice"});
  EXPECT_LT(seconds_since(start), 10);
}

TEST(BootstrapFailure, WrongArgumentsAreRefused) {
  const rondo_unique_id id = testing::new_id();
  expect_error(Bootstrap::join(2, id, 2).status(), StatusCode::kInvalidArgument, {"rank 2 of 2"});
  expect_error(Bootstrap::join(2, id, -1).status(), StatusCode::kInvalidArgument, {"rank -1"});
  expect_error(Bootstrap::join(0, id, 0).status(), StatusCode::kInvalidArgument, {"0 ranks"});
  expect_error(Bootstrap::join(1 << 28, id, 0).status(), StatusCode::kInvalidArgument,
               {"rank 0", "nranks is 268435456"});
  expect_error(Bootstrap::join(1, rondo_unique_id{}, 0).status(), StatusCode::kInvalidArgument, {"unique id"});
  rondo_unique_id torn = id;
  torn.bytes[20] ^= 1;
  expect_error(Bootstrap::join(1, torn, 0).status(), StatusCode::kInvalidArgument, {"damaged"});
}

// Regression: the others waited until their deadline for the rank with a different setting.
TEST(BootstrapFailure, EncryptionOfSomeRanksAloneFailsAllAtOnce) {
  constexpr int kRanks = 3;
  for (const bool the_odd_one_encrypts : {true, false}) {
    for (const bool it_comes_first : {true, false}) {
      set_encryption(Encryption{!the_odd_one_encrypts});  // for the rendezvous and all ranks except the last
      const auto come = [&](Rank rank, const rondo_unique_id& id) {
        if (rank == kRanks - 1) set_encryption(Encryption{the_odd_one_encrypts});
        return Bootstrap::join(kRanks, id, rank, {.deadline_s = 60}).status().to_string();
      };
      std::vector<std::string> said;
      if (it_comes_first) {
        const rondo_unique_id id = testing::new_id();
        said.push_back(Child([&] { return come(kRanks - 1, id); }).join());
        for (Rank r = 0; r < kRanks - 1; ++r) said.push_back(Child([&] { return come(r, id); }).join());
      } else {
        for (Child& c : testing::fork_ranks(kRanks, come)) said.push_back(c.join());
      }
      set_encryption(std::nullopt);
      for (const std::string& s : said) {
        EXPECT_EQ(s.find(status_text(StatusCode::kMismatch)), 0u) << s;
        EXPECT_NE(s.find("rank 2"), std::string::npos) << s;
        EXPECT_NE(s.find("RONDO_ENCRYPT"), std::string::npos) << s;
      }
    }
  }
}

TEST(BootstrapFailure, WrongSecretIsRefusedWhileTheOthersGoOn) {
  const rondo_unique_id id = testing::new_id();
  auto contents = decode_id(id);
  ASSERT_OK(contents.status());
  contents->secret[3] ^= 0x10;
  const rondo_unique_id forged = encode_id(*contents);
  Status honest_early, honest_late;
  ::testing::internal::CaptureStderr();
  std::thread early([&] { honest_early = join_some(2, id, {0}, {.deadline_s = 20})[0]; });
  for (int i = 0; i < 3; ++i)
    expect_error(Bootstrap::join(2, forged, 1, {.deadline_s = 20}).status(), StatusCode::kUnauthorized, {"rank 1", "secret"});
  honest_late = join_some(2, id, {1}, {.deadline_s = 20})[0];
  early.join();
  EXPECT_OK(honest_early);
  EXPECT_OK(honest_late);
  const std::string log = ::testing::internal::GetCapturedStderr();
  size_t num_lines = 0;
  for (size_t at = log.find("rondo: rendezvous refused "); at != std::string::npos;
       at = log.find("rondo: rendezvous refused ", at + 1))
    ++num_lines;
  EXPECT_EQ(num_lines, 3u) << log;
  EXPECT_NE(log.find(": it claims rank 1 and does not hold the id's secret"), std::string::npos) << log;
}

TEST(BootstrapFailure, AnImpostorOfTheRendezvousIsRecognised) {
  auto listeners = listen_tcp({IpAddress{.bytes = {127, 0, 0, 1}}}, 0);
  ASSERT_OK(listeners.status());
  IdContents contents;
  contents.port = listeners->port;
  contents.secret = {1, 2, 3};
  contents.addresses = {IpAddress{.bytes = {127, 0, 0, 1}}};
  // A server with another secret that accepts every proof: the joiner must not trust it.
  std::thread impostor([&] {
    const Deadline deadline(20, nullptr);
    if (!deadline.wait_ready(listeners->sockets[0].get(), POLLIN, "test").ok()) return;
    std::string who;
    const Fd fd = accept_one(listeners->sockets[0].get(), &who);
    char hello[46], proof[32];
    std::string challenge = std::string("rondoHS") + '\4' + '\0' + std::string(32, 'n');
    std::string verdict = '\1' + std::string(32, 'x');
    (void)read_exactly(fd.get(), hello, sizeof(hello), deadline, "test");
    (void)write_all(fd.get(), challenge, deadline, "test");
    (void)read_exactly(fd.get(), proof, sizeof(proof), deadline, "test");
    (void)write_all(fd.get(), verdict, deadline, "test");
    char c;
    (void)read_exactly(fd.get(), &c, 1, deadline, "test");
  });
  expect_error(Bootstrap::join(2, encode_id(contents), 1, {.deadline_s = 20}).status(), StatusCode::kUnauthorized,
               {"could not prove"});
  impostor.join();
}

TEST(BootstrapFailure, UnauthenticatedConnectionsNeitherStallNorBreakTheRendezvous) {
  const rondo_unique_id id = testing::new_id();
  auto contents = decode_id(id);
  ASSERT_OK(contents.status());
  const Deadline deadline(20, nullptr);
  const std::string half_proof = std::string("rondoHS\4\0\1", 10) + std::string(36, 'x') + std::string(500, 'y');
  std::vector<Fd> unauthenticated;
  for (int i = 0; i < 200; ++i) {  // more than the root keeps half-open
    bool refused = false;
    auto fd = connect_tcp(contents->addresses[0], contents->port, deadline, &refused);
    ASSERT_OK(fd.status());
    const std::string_view words[] = {"", "GET / HTTP/1.1\r\n\r\n", "rondoHS", half_proof};
    EXPECT_OK(write_all(fd->get(), words[i % 4], deadline, "test"));
    unauthenticated.push_back(std::move(*fd));
  }
  const auto start = Clock::now();
  for (const Status& s : join_some(4, id, {0, 1, 2, 3}, {.deadline_s = 20})) EXPECT_OK(s);
  EXPECT_LT(seconds_since(start), 5);
}

// A forked child has copies of the rendezvous' connections, and the kernel still reports their ends.
TEST(BootstrapFailure, AForkDuringTheMeetingChangesNothing) {
  const rondo_unique_id id = testing::new_id();
  const auto contents = decode_id(id);
  ASSERT_OK(contents.status());
  const Deadline deadline(20, nullptr);
  bool refused = false;
  auto fd = connect_tcp(contents->addresses[0], contents->port, deadline, &refused);
  ASSERT_OK(fd.status());
  ClientHandshake half(contents->secret, Purpose::kRendezvous, 0);
  half.start(fd->get());
  ASSERT_OK(deadline.wait_ready(fd->get(), POLLIN, "test"));  // it was accepted and answered
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  Child holder([&]() -> std::string {
    char c;
    ::close(ends[1]);
    return ::read(ends[0], &c, 1) == 0 ? "ok" : "pipe";
  });
  fd->shut();  // the child's copies stay open
  auto cpu_s = [] {
    timespec t{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  };
  ::poll(nullptr, 0, 50);  // until the rendezvous has seen that end
  const double before_s = cpu_s();
  ::poll(nullptr, 0, 400);
  EXPECT_LT(cpu_s() - before_s, 0.1) << "the rendezvous does not come to rest";
  for (const Status& s : join_some(4, id, {0, 1, 2, 3}, {.deadline_s = 20})) EXPECT_OK(s);
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_EQ(holder.join(), "ok");
}

TEST(BootstrapFailure, AbortEndsAJoinUnderWay) {
  const rondo_unique_id id = testing::new_id();
  std::atomic<bool> abort = false;
  Status result;
  std::thread joiner([&] { result = Bootstrap::join(2, id, 0, {.deadline_s = 60, .abort = &abort}).status(); });
  const auto start = Clock::now();
  abort = true;
  joiner.join();
  EXPECT_EQ(result.code(), StatusCode::kAborted) << result.to_string();
  EXPECT_LT(seconds_since(start), 2);
}

TEST(BootstrapFailure, AbortEndsACollectiveUnderWay) {
  std::atomic<bool> abort = false;
  const rondo_unique_id id = testing::new_id();
  std::atomic<int> num_joined = 0;
  std::thread other([&] {
    auto b = Bootstrap::join(2, id, 1, {.deadline_s = 30});
    ASSERT_OK(b.status());
    ++num_joined;
    EXPECT_TRUE(eventually(20, [&] { return abort.load(); }));
    EXPECT_TRUE(eventually(20, [&] { return num_joined == 3; }));
  });
  std::thread aborter([&] {
    EXPECT_TRUE(eventually(20, [&] { return num_joined == 2; }));
    abort = true;
  });
  auto b = Bootstrap::join(2, id, 0, {.deadline_s = 30, .abort = &abort});
  ASSERT_OK(b.status());
  ++num_joined;
  expect_error((*b)->barrier(), StatusCode::kAborted, {"rank 0", "barrier", "rank 1"});
  expect_error((*b)->barrier(), StatusCode::kAborted, {});  // permanently
  ++num_joined;
  other.join();
  aborter.join();
}

// A rank that asked to join and then dies: its connection closes.
TEST(BootstrapFailure, ARankThatDiesWhileWaitingFailsTheOthersAtOnce) {
  const rondo_unique_id id = testing::new_id();
  const auto contents = decode_id(id);
  ASSERT_OK(contents.status());
  const Deadline deadline(20, nullptr);
  const auto start = Clock::now();
  Status result;
  std::thread joiner([&] { result = Bootstrap::join(3, id, 0, {.deadline_s = 60}).status(); });
  {
    bool refused = false;
    auto fd = connect_tcp(contents->addresses[0], contents->port, deadline, &refused);
    ASSERT_OK(fd.status());
    ASSERT_OK(
        authenticate_client(fd->get(), ClientHandshake(contents->secret, Purpose::kRendezvous, 1), deadline).status());
    Encoder join;
    join(uint32_t{3}, uint64_t{60000}, uint64_t{60000}, PeerInfo{});
    Link link(std::move(*fd), false, 1 << 20);
    link.queue(FrameKind::kJoin, 0, std::make_shared<const std::string>(join.take()));
    ASSERT_TRUE(link.flush());
  }
  joiner.join();
  expect_error(result, StatusCode::kPeerLost, {"rank 1", "left the rendezvous"});
  EXPECT_LT(seconds_since(start), 5);
}

TEST(BootstrapFailure, AnIdServesOneCommunicator) {
  const rondo_unique_id id = testing::new_id();
  for (const Status& s : join_some(2, id, {0, 1}, {.deadline_s = 20})) EXPECT_OK(s);
  expect_error(Bootstrap::join(2, id, 0, {.deadline_s = 5}).status(), StatusCode::kPeerLost, {"found no rendezvous"});
}

class Survivors : public ::testing::TestWithParam<int> {};  // ranks per pretended host, 0: one host

// One of four is killed. Each survivor names it within a second, in find_lost and in a collective that waits for it.
TEST_P(Survivors, NameTheKilledRank) {
  constexpr int kRanks = 4;
  constexpr Rank kVictim = 2;
  const Spawn spawn{.ranks_per_host = GetParam()};
  std::vector<Child> children = testing::fork_ranks(kRanks, [&](Rank r, const rondo_unique_id& id) -> std::string {
    auto b = Bootstrap::join(kRanks, id, r, spawn.options(r));
    if (!b.ok()) return b.status().to_string();
    if (const Status s = (*b)->barrier(); !s.ok()) return s.to_string();
    if (r == kVictim) ::raise(SIGKILL);
    const auto start = Clock::now();
    std::optional<Bootstrap::Loss> loss;
    while (!loss && seconds_since(start) < 10) loss = (*b)->find_lost();
    if (!loss) return "saw nothing";
    if (seconds_since(start) > 1) return "saw it late";
    if (loss->rank != kVictim || loss->how.find("rank 2") == std::string::npos) return "blamed: " + loss->how;
    const Status s = (*b)->barrier();
    if (s.code() != StatusCode::kPeerLost || s.message().find("rank 2") == std::string_view::npos) return s.to_string();
    (*b)->say_goodbye();
    return "ok";
  });
  for (Rank r = 0; r < kRanks; ++r)
    EXPECT_EQ(children[r].join(), r == kVictim ? "killed by signal 9" : "ok") << "rank " << r;
}
INSTANTIATE_TEST_SUITE_P(Hosts, Survivors, ::testing::Values(0, 1, 2));

// The process that made the id dies after all have met: it is no longer needed.
TEST(BootstrapFailure, TheDeathOfTheIdsMakerHangsNobody) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  Child maker([&]() -> std::string {
    const rondo_unique_id id = testing::new_id();
    if (::write(ends[1], id.bytes, sizeof(id.bytes)) != sizeof(id.bytes)) return "pipe";
    auto b = Bootstrap::join(3, id, 0, {.deadline_s = 30});
    if (!b.ok() || !(*b)->barrier().ok()) return "no barrier";
    ::raise(SIGKILL);
    return "";
  });
  rondo_unique_id id;
  ASSERT_EQ(::read(ends[0], id.bytes, sizeof(id.bytes)), static_cast<ssize_t>(sizeof(id.bytes)));
  ::close(ends[0]);
  ::close(ends[1]);
  std::vector<std::thread> threads;
  for (Rank r = 1; r < 3; ++r)
    threads.emplace_back([&, r] {
      auto b = Bootstrap::join(3, id, r, {.deadline_s = 30});
      ASSERT_OK(b.status());
      ASSERT_OK((*b)->barrier());
      EXPECT_TRUE(eventually(1, [&] { return (*b)->find_lost().has_value(); }));
      EXPECT_EQ((*b)->find_lost()->rank, 0);
      (*b)->say_goodbye();
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(maker.join(), "killed by signal 9");
}

TEST(BootstrapFailure, LeavingWithAGoodbyeIsNoLoss) {
  for (const int ranks_per_host : {0, 1}) {
    std::atomic<int> num_left = 0;
    const auto results = testing::join_threads(3, {.ranks_per_host = ranks_per_host}, [&](Bootstrap& b) {
      ASSERT_OK(b.barrier());
      if (b.rank() == 1) {
        b.say_goodbye();
        ++num_left;
        return;
      }
      EXPECT_TRUE(eventually(10, [&] { return num_left == 1; }));
      EXPECT_FALSE(eventually(0.2, [&] { return b.find_lost().has_value(); }));
      expect_error(b.barrier(), StatusCode::kPeerLost, {"rank 1", "left the communicator"});
    });
    for (const Status& s : results) EXPECT_OK(s);
  }
}

TEST(BootstrapFailure, LeavingWithoutAGoodbyeIsALoss) {
  const rondo_unique_id id = testing::new_id();
  std::thread other([&] {
    auto b = Bootstrap::join(2, id, 1, {.deadline_s = 30});
    ASSERT_OK(b.status());
  });
  auto b = Bootstrap::join(2, id, 0, {.deadline_s = 30});
  ASSERT_OK(b.status());
  EXPECT_TRUE(eventually(5, [&] { return (*b)->find_lost().has_value(); }));
  other.join();
}

TEST(BootstrapFailure, DifferentCallsAreNamed) {
  const auto results = testing::join_threads(2, {}, [&](Bootstrap& b) {
    std::vector<std::string> all;
    const Status s = b.rank() == 0 ? b.barrier() : b.all_gather("x", 1, &all);
    expect_error(s, StatusCode::kMismatch, {"rank 0", "rank 1", "barrier", "all_gather"});
  });
  for (const Status& s : results) EXPECT_OK(s);
}

// The collective deadline: rank 1 lives but never comes.
TEST(BootstrapFailure, ALateRankIsNamedAtTheDeadline) {
  std::atomic<bool> seen = false;
  const auto results = testing::join_threads(2, {.deadline_s = 1}, [&](Bootstrap& b) {
    if (b.rank() == 0) {
      expect_error(b.barrier(), StatusCode::kTimeout, {"rank 0", "1 s", "barrier", "rank 1"});
      seen = true;
    }
    EXPECT_TRUE(eventually(10, [&] { return seen.load(); }));
  });
  for (const Status& s : results) EXPECT_OK(s);
}

// Of 20 ranks, 5 in a block: the first of all, the first of another block, one of each other kind.
class InBlocks : public ::testing::TestWithParam<Rank> {
 protected:
  static constexpr int kRanks = 20;
};

TEST_P(InBlocks, AKilledRankIsNamedByAllWithinASecond) {
  std::vector<Child> children = testing::fork_ranks(kRanks, [&](Rank r, const rondo_unique_id& id) -> std::string {
    auto b = Bootstrap::join(kRanks, id, r, {.deadline_s = 30});
    if (!b.ok()) return b.status().to_string();
    if (const Status s = (*b)->barrier(); !s.ok()) return s.to_string();
    if (r == GetParam()) ::raise(SIGKILL);
    const auto start = Clock::now();
    const Status s = (*b)->barrier();
    if (seconds_since(start) > 1) return "heard of it late";
    const std::string name = "rank " + std::to_string(GetParam()) + " (";
    if (s.code() != StatusCode::kPeerLost || s.message().find(name) == std::string_view::npos) return s.to_string();
    (*b)->say_goodbye();
    return "ok";
  });
  for (Rank r = 0; r < kRanks; ++r)
    EXPECT_EQ(children[static_cast<size_t>(r)].join(), r == GetParam() ? "killed by signal 9" : "ok") << "rank " << r;
}

TEST_P(InBlocks, ALateRankIsNamedAtTheDeadline) {
  std::atomic<int> num_seen = 0;
  const auto results = testing::join_threads(kRanks, {.deadline_s = 1}, [&](Bootstrap& b) {
    if (b.rank() != GetParam()) {
      expect_error(b.barrier(), StatusCode::kTimeout,
                   {"1 s", "barrier", "waiting for rank " + std::to_string(GetParam())});
      ++num_seen;
    }
    EXPECT_TRUE(eventually(10, [&] { return num_seen == kRanks - 1; }));
  });
  for (const Status& s : results) EXPECT_OK(s);
}

TEST_P(InBlocks, WhoCallsSomethingElseIsNamed) {
  const auto results = testing::join_threads(kRanks, {}, [&](Bootstrap& b) {
    std::vector<std::string> all;
    const Status s = b.rank() != GetParam() ? b.barrier() : b.all_gather("x", 1, &all);
    expect_error(s, StatusCode::kMismatch, {"rank " + std::to_string(GetParam()), "barrier", "all_gather"});
  });
  for (const Status& s : results) EXPECT_OK(s);
}

TEST_P(InBlocks, AnAbortEndsAllWaits) {
  std::atomic<bool> abort = false;
  const rondo_unique_id id = testing::new_id();
  std::vector<std::thread> threads;
  std::atomic<int> num_ended = 0;
  for (Rank r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      auto b = Bootstrap::join(kRanks, id, r,
                               {.deadline_s = 30, .abort = r == (GetParam() + 1) % kRanks ? &abort : nullptr});
      ASSERT_OK(b.status());
      ASSERT_OK((*b)->barrier());
      if (r == GetParam()) {
        abort = true;
        EXPECT_TRUE(eventually(10, [&] { return num_ended == kRanks - 1; }));
        return;
      }
      const auto start = Clock::now();
      expect_error((*b)->barrier(), StatusCode::kAborted, {"rank " + std::to_string((GetParam() + 1) % kRanks)});
      EXPECT_LT(seconds_since(start), 5);
      ++num_ended;
      EXPECT_TRUE(eventually(10, [&] { return num_ended == kRanks - 1; }));
    });
  for (std::thread& t : threads) t.join();
}
INSTANTIATE_TEST_SUITE_P(Ranks, InBlocks, ::testing::Values(0, 3, 10, 19));

}  // namespace
}  // namespace rondo
