// Many connections that never authenticate, at every listener of a starting job: which ones are closed, and that no
// rank waits for them.
// labels: unit mp
// timeout: 120
#include "bootstrap/acceptor.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/un.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>

#include "bootstrap/auth.h"
#include "bootstrap/bootstrap_harness.h"
#include "bootstrap/link.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/unique_id.h"
#include "launch/id_handout.h"
#include "support/shared.h"

namespace rondo {
namespace {

using testing::Child;
using testing::eventually;

struct Pending {
  int number;
  uint64_t from;
  bool greeted;
  uint64_t source() const { return from; }
  bool has_greeted() const { return greeted; }
};

TEST(Pending, TheOldestSilentOneOfTheBusiestSourceGoesFirst) {
  std::list<Pending> pending = {{0, 7, true}, {1, 8, false}, {2, 9, false}, {3, 9, false}, {4, 7, true}};
  auto close_one = [&] {
    const auto c = first_to_close(pending);
    if (c == pending.end()) return -1;
    const int number = c->number;
    pending.erase(c);
    return number;
  };
  EXPECT_EQ(close_one(), 2) << "source 9 has two";
  EXPECT_EQ(close_one(), 1) << "the older of two sources with one";
  EXPECT_EQ(close_one(), 3) << "a silent one before any that has greeted";
  EXPECT_EQ(close_one(), 0);
  EXPECT_EQ(close_one(), 4);
  EXPECT_EQ(close_one(), -1);
  EXPECT_EQ(source_of("10.0.0.7:4711"), source_of("10.0.0.7:4712"));
  EXPECT_NE(source_of("[fd00::1]:80"), source_of("[fd00::2]:80"));
}

struct Target {
  sockaddr_storage at;
  socklen_t bytes;
};

// All listening sockets of this process.
std::vector<Target> listeners_here() {
  std::vector<Target> targets;
  DIR* dir = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(dir)) {
    const int fd = std::atoi(entry->d_name);
    int listens = 0;
    socklen_t len = sizeof(listens);
    Target t{{}, sizeof(t.at)};
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) == 0 && listens != 0 &&
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&t.at), &t.bytes) == 0)
      targets.push_back(t);
  }
  ::closedir(dir);
  return targets;
}

enum class Words { kNone, kGarbage, kHalfOfAHello, kHello };

// A thread that connects to the listeners in turn, sends something or nothing, and keeps the connections: 5000 to each
// at once, then 1000 per second, with a sanitizer 250.
class Flood {
 public:
  Flood(Words words, std::vector<Target> targets) : words_(words), targets_(std::move(targets)) {
    rlimit files = {};
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
    most_open_ = std::min<size_t>(16000, files.rlim_max * 3 / 4);
    first_ = std::min<size_t>(5000 * targets_.size(), most_open_);
    thread_ = std::thread([this] { run(); });
    EXPECT_TRUE(eventually(60, [&] { return num_made_ >= first_; }));
  }
  ~Flood() { stop(); }
  void stop() {
    stopped_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  static std::string_view words_of(Words words, size_t turn) {
    static const std::string rest = std::string(4, '\0') + std::string(32, 'n');
    static const std::string to_root = std::string("rondoHS\4\0\1", 10) + rest;
    static const std::string to_rank = std::string("rondoHS\4\0\2", 10) + rest;
    switch (words) {
      case Words::kNone: return "";
      case Words::kGarbage: return "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
      case Words::kHalfOfAHello: return std::string_view(to_root).substr(0, 20);
      case Words::kHello: return turn % 2 == 0 ? to_root : to_rank;
    }
    return "";
  }
  void connect(const Target& t) {
    Fd fd(::socket(t.at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) return;
    const linger at_once{1, 0};  // so that its port is free for the next one
    ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    (void)!::connect(fd.get(), reinterpret_cast<const sockaddr*>(&t.at), t.bytes);
    const std::string_view words = words_of(words_, num_made_ / targets_.size());
    (void)!::send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    open_.push_back(std::move(fd));
    if (open_.size() > most_open_) open_.pop_front();
    ++num_made_;
  }
  void run() {
    const auto start = std::chrono::steady_clock::now();
    while (!stopped_) {
      const double since_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const size_t due = first_ + static_cast<size_t>(since_s * (testing::kSanitized ? 250 : 1000));
      while (num_made_ < due && !stopped_) connect(targets_[num_made_ % targets_.size()]);
      ::poll(nullptr, 0, 2);
    }
  }

  const Words words_;
  const std::vector<Target> targets_;
  size_t most_open_, first_;
  std::deque<Fd> open_;
  std::atomic<size_t> num_made_ = 0;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;
};

// Ranks on two hosts, so that both kinds of links exist. They exchange data and leave.
class Ranks {
 public:
  explicit Ranks(const rondo_unique_id& id) : id_(id) {}
  void start(Rank first, Rank last) {
    for (Rank r = first; r <= last; ++r)
      threads_.emplace_back([this, r] { results_[static_cast<size_t>(r)] = run(r); });
  }
  void join() {
    for (std::thread& t : threads_) t.join();
    for (const Status& s : results_) EXPECT_OK(s);
  }
  static constexpr int kRanks = 4;

 private:
  Status run(Rank r) const {
    auto b = Bootstrap::join(kRanks, id_, r, {.deadline_s = 15, .pretend_host = 1 + static_cast<uint64_t>(r % 2)});
    RONDO_TRY(b.status());
    std::vector<std::string> all;
    const Status met = (*b)->all_gather(&r, sizeof(r), &all);
    (*b)->say_goodbye();
    return met;
  }
  const rondo_unique_id id_;
  std::vector<Status> results_ = std::vector<Status>(kRanks);
  std::vector<std::thread> threads_;
};

class ManyConnections : public ::testing::TestWithParam<Words> {};
class ManyConnectionsToARank : public ManyConnections {};

// At the rendezvous before any rank has come. Regression: it could not handle a thousand per second, and ranks queued
// behind them until their deadline.
TEST_P(ManyConnections, DoNotHoldUpRanksThatComeLater) {
  Ranks ranks(testing::new_id());
  const Flood flood(GetParam(), listeners_here());
  ranks.start(0, Ranks::kRanks - 1);
  ranks.join();
}

// At the port of a rank that waits for the others' connections.
TEST_P(ManyConnectionsToARank, DoNotHoldUpItsPeers) {
  Ranks ranks(testing::new_id());
  const size_t num_before = listeners_here().size();
  ranks.start(0, 0);
  std::vector<Target> all;
  EXPECT_TRUE(eventually(20, [&] { return (all = listeners_here()).size() >= 2 * num_before; }))
      << "as many as the rendezvous has";
  {
    const Flood flood(GetParam(), {all.begin() + static_cast<std::ptrdiff_t>(num_before), all.end()});
    ranks.start(1, Ranks::kRanks - 1);
    ranks.join();
  }
}

std::string name_of(const ::testing::TestParamInfo<Words>& info) {
  constexpr const char* kNames[] = {"AreSilent", "SayGarbage", "SayHalfAHello", "OnlyGreet"};
  return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(That, ManyConnections,
                         ::testing::Values(Words::kNone, Words::kGarbage, Words::kHalfOfAHello, Words::kHello),
                         name_of);
INSTANTIATE_TEST_SUITE_P(That, ManyConnectionsToARank, ::testing::Values(Words::kNone, Words::kHello), name_of);

// Joins by hand on an authenticated connection. nullopt if it has ended.
std::optional<Frame> say_join(Fd fd, uint32_t nranks) {
  Link link(std::move(fd), false, 1 << 20);
  Encoder join;
  join(nranks, uint64_t{20000}, uint64_t{20000}, *describe_self(0));
  link.queue(FrameKind::kJoin, 0, std::make_shared<const std::string>(join.take()));
  std::optional<Frame> answer;
  EXPECT_TRUE(eventually(20, [&] {
    link.flush();
    link.drain();
    return (answer = link.pop()).has_value() || link.end(nullptr) != Link::End::kNone;
  }));
  return answer;
}

// A connection that proved the secret and sends no more is a rank that waits for a core: it is not closed for others.
TEST(Pending, WhoHasProvedTheSecretKeepsItsPlace) {
  const rondo_unique_id id = testing::new_id();
  const auto contents = decode_id(id);
  const Deadline deadline(30, nullptr);
  bool refused = false;
  auto fd = connect_tcp(contents->addresses[0], contents->port, deadline, &refused);
  ASSERT_OK(fd.status());
  ASSERT_OK(
      authenticate_client(fd->get(), ClientHandshake(contents->secret, Purpose::kRendezvous, 0), deadline).status());
  // Enough more that the rendezvous closes 400 of them.
  std::deque<Fd> open;
  for (int num_closed = 0; num_closed < 400;) {
    auto another = connect_tcp(contents->addresses[0], contents->port, deadline, &refused);
    ASSERT_OK(another.status());
    ASSERT_OK(write_all(another->get(), "rondo", deadline, "test"));
    open.push_back(std::move(*another));
    if (open.size() < 300) continue;
    ASSERT_OK(deadline.wait_ready(open.front().get(), POLLIN, "test"));
    open.pop_front();
    ++num_closed;
  }
  const auto answer = say_join(std::move(*fd), 1);
  ASSERT_TRUE(answer.has_value()) << "its connection was closed";
  EXPECT_EQ(answer->kind, FrameKind::kTable);
}

// Regression: the rendezvous allocated memory for the first rank's number of ranks, and its process ran out of it.
TEST(Pending, ARankThatSpeaksOfTooManyRanksIsRefused) {
  const rondo_unique_id id = testing::new_id();
  const auto contents = decode_id(id);
  const Deadline deadline(20, nullptr);
  bool refused = false;
  auto fd = connect_tcp(contents->addresses[0], contents->port, deadline, &refused);
  ASSERT_OK(fd.status());
  ASSERT_OK(
      authenticate_client(fd->get(), ClientHandshake(contents->secret, Purpose::kRendezvous, 1), deadline).status());
  const auto answer = say_join(std::move(*fd), 1 << 28);
  ASSERT_TRUE(answer.has_value());
  ASSERT_EQ(answer->kind, FrameKind::kRefused);
  testing::expect_error(refusal(*answer), StatusCode::kInvalidArgument,
                        {"rank 1", "nranks = 268435456", "at most 65535"});
  // The others get the same error.
  testing::expect_error(Bootstrap::join(2, id, 0, {.deadline_s = 20}).status(), StatusCode::kInvalidArgument,
                        {"268435456"});
}

// Rank 0 may open 128 files. Regression: because of 300 silent connections the others did not get the id.
TEST(Pending, DoNotHoldUpTheHandOutOfAnId) {
  constexpr int kRanks = 3;
  const std::string name = "rondo-test-hand-out-" + std::to_string(::getpid());
  rondo_unique_id id = {};
  std::strcpy(id.bytes, "the id");
  Child rank_0([&]() -> std::string {
    const rlimit files = {128, 128};
    ::setrlimit(RLIMIT_NOFILE, &files);
    return hand_out_id(name, id, kRanks, Deadline(20, nullptr)).to_string();
  });
  const Deadline deadline(20, nullptr);
  std::vector<Fd> silent;
  while (silent.size() < 300 && !deadline.expired()) {
    bool refused = false;
    auto fd = connect_abstract(name, deadline, &refused);
    if (fd.ok()) silent.push_back(std::move(*fd));
  }
  std::vector<std::string> got(kRanks);
  std::vector<std::thread> ranks;
  for (Rank r = 1; r < kRanks; ++r)
    ranks.emplace_back([&, r] {
      const auto fetched = fetch_id(name, r, deadline);
      got[static_cast<size_t>(r)] = fetched.ok() ? fetched->bytes : fetched.status().to_string();
    });
  for (std::thread& t : ranks) t.join();
  for (Rank r = 1; r < kRanks; ++r) EXPECT_EQ(got[static_cast<size_t>(r)], "the id");
  EXPECT_EQ(rank_0.join(), "ok");
}

}  // namespace
}  // namespace rondo
