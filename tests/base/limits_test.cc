// Limits of a process lead to errors that name them.
// labels: mp
#include "base/limits.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "base/new_file.h"
#include "base/thread.h"
#include "rondo/communicator.h"
#include "support/shared.h"
#include "support/spawn.h"
#include "support/spawn_processes.h"

namespace rondo::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

void set_limit(__rlimit_resource_t which, rlim_t value) {
  const rlimit limit{value, value};
  ASSERT_EQ(setrlimit(which, &limit), 0);
}

// Limits the address space to the used size and `more_bytes`, with thread stacks larger than glibc's cached ones.
void limit_address_space(rlim_t more_bytes) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 << 20);
  ASSERT_EQ(pthread_setattr_default_np(&attributes), 0);
  pthread_attr_destroy(&attributes);
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  set_limit(RLIMIT_AS, pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + more_bytes);
}

void expect_says(const Status& s, StatusCode code, std::string_view words) {
  EXPECT_EQ(s.code(), code) << s.to_string();
  EXPECT_NE(s.message().find(words), std::string_view::npos) << s.to_string();
}

void in_process(const std::function<void()>& fn) {
  SpawnOptions options;
  report(run_processes_bare(
             1, [&](Rank) { return fn(), Status(); }, options),
         options);
}

TEST(Limits, AFileBeyondTheLimitIsAnErrorAndNoSignal) {
  in_process([] {
    const std::string path = fmt::format("{}/too_long.{}", ::testing::TempDir(), getpid());
    set_limit(RLIMIT_FSIZE, 1000);
    const std::string text(3000, 'x');
    const std::array<std::string_view, 1> pieces = {text};
    expect_says(write_whole_file(path, pieces), StatusCode::kExhausted, "ulimit -f, now 1000 bytes");
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_FALSE(std::filesystem::exists(fmt::format("{}.tmp.{}", path, getpid())));
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    EXPECT_EQ(sigismember(&mask, SIGXFSZ), 0);
  });
}

TEST(Limits, AThreadThatCannotStartIsAnError) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory does not fit";
  in_process([] {
    limit_address_space(1 << 20);
    Thread thread;
    expect_says(thread.start("a thread", [] {}), StatusCode::kExhausted, "ulimit -u");
    EXPECT_FALSE(thread.joinable());
  });
}

TEST(Limits, ConcurrentTasksWaitForOneAnotherAndTheFirstErrorIsReturned) {
  std::atomic<int> here{0};
  const auto meet = [&](size_t i) {
    for (++here; here < 3;) std::this_thread::yield();
    return i == 0 ? Status() : Status(StatusCode::kMismatch, "task " + std::to_string(i));
  };
  EXPECT_EQ(run_concurrently("a thread", 3, meet).message(), "task 1");
  EXPECT_TRUE(run_concurrently("a thread", 0, meet).ok());
}

TEST(Limits, AThreadRunsItsBody) {
  std::atomic<int> ran{0};
  Thread thread;
  ASSERT_TRUE(thread.start("a thread", [&] { ran = 7; }).ok());
  thread.join();
  EXPECT_EQ(ran, 7);
}

// The ranks' shared memory has descriptors, so the limit on file sizes holds for it, in the rank that makes it.
TEST(Limits, FileSizesEndInAnErrorOnAllRanks) {
  constexpr int kRanks = 2;
  for (const char* transport : {"", "transport = tcp\n"}) {
    IdPipes ids(kRanks);
    const auto rank_fn = [&](Rank rank) -> Status {
      if (rank == 0) set_limit(RLIMIT_FSIZE, 1 << 20);
      RONDO_TRY_ASSIGN(const UniqueId id, ids.exchange(rank));
      Config config;
      config.settings = transport;
      config.init_deadline_s = config.deadline_s = 20;
      const double begin_s = now_s();
      auto comm = Communicator::init_rank(kRanks, id, rank, config);
      Status s = comm.status();
      std::vector<float> x(1 << 20);
      if (s.ok()) s = (*comm)->all_reduce(x.data(), x.data(), x.size(), Dtype::kFloat32, Op::kSum);
      if (transport[0] != '\0') {  // staging memory that is not shared is not a file
        EXPECT_TRUE(s.ok()) << s.to_string();
      } else {
        EXPECT_FALSE(s.ok());
        EXPECT_NE(s.message().find("ulimit -f"), std::string_view::npos) << s.to_string();
        EXPECT_EQ(s.code(), StatusCode::kExhausted) << s.to_string();
        EXPECT_NE(s.message().find("rank 0"), std::string::npos) << s.to_string();
      }
      EXPECT_LT(now_s() - begin_s, 15) << "a rank waited for its deadline";
      return {};
    };
    SpawnOptions options;
    report(run_processes_bare(kRanks, rank_fn, options), options);
  }
}

TEST(Limits, AddressSpaceEndsInAnErrorOnAllRanks) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory does not fit";
  constexpr int kRanks = 2;
  IdPipes ids(kRanks);
  const auto rank_fn = [&](Rank rank) -> Status {
    RONDO_TRY_ASSIGN(const UniqueId id, ids.exchange(rank));
    if (rank == 1) limit_address_space(64 << 20);
    Config config;
    config.init_deadline_s = 20;
    const double begin_s = now_s();
    auto comm = Communicator::init_rank(kRanks, id, rank, config);
    EXPECT_FALSE(comm.ok());
    for (const char* words : {"rank 1: reaching rank 0", "ulimit -v", "shared memory"}) {
      const bool said = comm.status().message().find(words) != std::string::npos;
      EXPECT_TRUE(said) << words << ": " << comm.status().to_string();
    }
    EXPECT_LT(now_s() - begin_s, 15) << "a rank waited for its deadline";
    return {};
  };
  SpawnOptions options;
  report(run_processes_bare(kRanks, rank_fn, options), options);
}

TEST(Limits, AnAsynchronousCallWithoutAThreadIsAnError) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory does not fit";
  in_process([] {
    auto comms = Communicator::init_all(1);
    ASSERT_TRUE(comms.ok()) << comms.status().to_string();
    Communicator& comm = *comms->front();
    float x[2] = {1, 2};
    ASSERT_TRUE(comm.all_reduce(x, x, 2, Dtype::kFloat32, Op::kSum).ok());
    limit_address_space(1 << 20);
    Work work;
    expect_says(comm.all_reduce(x, x, 2, Dtype::kFloat32, Op::kSum, nullptr, &work), StatusCode::kExhausted,
                "ulimit -u");
    group_start();
    EXPECT_TRUE(comm.all_reduce(x, x, 2, Dtype::kFloat32, Op::kSum, nullptr, &work).ok());
    expect_says(group_end(), StatusCode::kExhausted, "ulimit -u");
    expect_says(work.wait(), StatusCode::kExhausted, "ulimit -u");
    EXPECT_TRUE(comm.all_reduce(x, x, 2, Dtype::kFloat32, Op::kSum).ok());  // no call is running
  });
}

}  // namespace
}  // namespace rondo::testing
