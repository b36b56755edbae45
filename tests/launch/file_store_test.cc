// Meeting through a file: the job's own ranks and other jobs in one directory, leftovers of dead jobs, refusals.
// labels: unit mp
// timeout: 120
#include "launch/file_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "bootstrap/bootstrap_harness.h"
#include "bootstrap/unique_id.h"
#include "launch/launch.h"

namespace rondo {
namespace {

namespace fs = std::filesystem;
using Variables = std::map<std::string, std::string>;

void expect_error(const Status& s, StatusCode code, std::initializer_list<std::string_view> facts) {
  EXPECT_EQ(s.code(), code) << s.to_string();
  for (const std::string_view fact : facts)
    EXPECT_NE(s.message().find(fact), std::string_view::npos) << "'" << fact << "' is missing in: " << s.to_string();
}

class FileStoreTest : public ::testing::Test {
 protected:
  FileStoreTest() {
    char path[] = "/tmp/rondo-file-store-XXXXXX";
    directory_ = ::mkdtemp(path);
  }
  ~FileStoreTest() override { fs::remove_all(directory_); }

  // As set by a launcher that gives only rank and size.
  Variables environment(Rank rank, int nranks, const std::string& job = "") const {
    Variables v = {{"RANK", std::to_string(rank)},
                   {"WORLD_SIZE", std::to_string(nranks)},
                   {"RONDO_STORE", "file://" + directory_}};
    if (!job.empty()) v["RONDO_JOB_ID"] = job;
    return v;
  }
  static Expected<LaunchInfo> read(const Variables& variables) {
    return launch_from_lookup(
        [&](const char* name) -> const char* {
          const auto found = variables.find(name);
          return found == variables.end() ? nullptr : found->second.c_str();
        },
        77);
  }
  Status join(const Variables& variables, double deadline_s, int times = 1) const {
    RONDO_TRY_ASSIGN(const LaunchInfo info, read(variables));
    for (int i = 0; i < times; ++i) {
      RONDO_TRY_ASSIGN(auto b, join_launch(info, {.deadline_s = deadline_s}));
      std::vector<std::string> all;
      const std::string mine = variables.contains("RONDO_JOB_ID") ? variables.at("RONDO_JOB_ID") : "no job";
      RONDO_TRY(b->all_gather(mine.data(), mine.size(), &all));
      for (const std::string& theirs : all) EXPECT_EQ(theirs, mine);
      b->say_goodbye();
    }
    return {};
  }
  std::vector<Status> join_all(const std::vector<Variables>& ranks, double deadline_s, int times = 1) const {
    std::vector<Status> results(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i)
      threads.emplace_back([&, i] { results[i] = join(ranks[i], deadline_s, times); });
    for (std::thread& t : threads) t.join();
    return results;
  }
  size_t num_files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }
  FileStore store() const {
    auto s = FileStore::open(directory_, "a job");
    EXPECT_OK(s.status());
    return std::move(*s);
  }
  // Leftover of a job whose rank 0 was killed at its start: the file, and no process at its address.
  void leave_behind(const std::string& job) const {
    testing::Child dead([&]() -> std::string {
      auto s = FileStore::open(directory_, job);
      const auto id = make_unique_id();
      if (!s.ok() || !id.ok() || !s->publish(*id, Deadline(20, nullptr)).ok()) return "failed";
      ::_exit(3);
    });
    dead.join();
    ASSERT_EQ(num_files(), 1u);
  }

  std::string directory_;
};

TEST_F(FileStoreTest, RanksMeetOftenAndLeaveNothing) {
  for (const Status& s : join_all({environment(0, 4), environment(1, 4), environment(2, 4), environment(3, 4)}, 30, 5))
    EXPECT_OK(s);
  EXPECT_EQ(num_files(), 0u);
}

TEST_F(FileStoreTest, ServesEveryLauncher) {
  const std::string url = "file://" + directory_;
  const Variables launchers[] = {
      {{"RONDO_RANK", "1"}, {"RONDO_NRANKS", "3"}},
      {{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
      {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "3"}, {"PMIX_NAMESPACE", "5"}},
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}},
      {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "3"}, {"SLURM_JOB_ID", "4"}, {"SLURM_STEP_ID", "0"}}};
  for (Variables v : launchers) {
    v["RONDO_STORE"] = url;
    const auto info = read(v);
    ASSERT_OK(info.status());
    EXPECT_EQ(info->meeting, LaunchInfo::Meeting::kFileStore) << info->how;
    EXPECT_EQ(info->directory, directory_);
    EXPECT_EQ(info->rank, 1);
    EXPECT_EQ(info->nranks, 3);
  }
  expect_error(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"RONDO_STORE", "/tmp"}}).status(),
               StatusCode::kInvalidArgument, {"RONDO_STORE='/tmp'", "file:///"});
}

TEST_F(FileStoreTest, TwoJobsAtOnceInOneDirectory) {
  std::vector<Variables> ranks;
  for (const char* job : {"first", "second"})
    for (Rank r = 0; r < 3; ++r) ranks.push_back(environment(r, 3, job));
  for (const Status& s : join_all(ranks, 30, 5)) EXPECT_OK(s);
  EXPECT_EQ(num_files(), 0u);
}

TEST_F(FileStoreTest, ADeadJobsFileIsPassedOverAndReplaced) {
  const std::string job = read(environment(0, 3))->job;
  leave_behind(job);
  std::vector<Status> late(2);
  std::thread one([&] { late[0] = join(environment(1, 3), 30); }), two([&] { late[1] = join(environment(2, 3), 30); });
  ::testing::internal::CaptureStderr();
  const Status zero = join(environment(0, 3), 30);
  one.join();
  two.join();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_OK(zero);
  for (const Status& s : late) EXPECT_OK(s);
  EXPECT_NE(log.find("from an earlier job"), std::string::npos) << log;
  EXPECT_EQ(num_files(), 0u);
}

TEST_F(FileStoreTest, ADeadJobsFileIsNamedWhereNobodyReplacesIt) {
  leave_behind(read(environment(0, 2))->job);
  expect_error(join(environment(1, 2), 0.5), StatusCode::kTimeout,
               {"rank 1", directory_, "earlier job", "does not answer"});
}

TEST_F(FileStoreTest, ALiveJobOfTheSameNameIsNotMixedUp) {
  FileStore first = store(), second = store();
  const auto one = make_unique_id(), two = make_unique_id();
  ASSERT_OK(one.status());
  ASSERT_OK(two.status());
  ASSERT_OK(first.publish(*one, Deadline(20, nullptr)));
  expect_error(second.publish(*two, Deadline(20, nullptr)), StatusCode::kMismatch,
               {"another job of the same name", "RONDO_JOB_ID", first.path()});
  second.withdraw();
  const auto got = store().fetch(1, Deadline(20, nullptr));
  ASSERT_OK(got.status());
  EXPECT_EQ(std::string_view(got->bytes, 128), std::string_view(one->bytes, 128));
  EXPECT_EQ(num_files(), 1u) << "the second has left nothing, nor taken away the first's";
}

TEST_F(FileStoreTest, AMissingRankIsNamed) {
  for (const Status& s : join_all({environment(0, 3), environment(1, 3)}, 0.7))
    expect_error(s, StatusCode::kTimeout, {"rank 2"});
  EXPECT_EQ(num_files(), 0u) << "a retry must not find it";
}

TEST_F(FileStoreTest, AMissingRankZeroIsNamedWithTheFile) {
  expect_error(join(environment(1, 2), 0.3), StatusCode::kTimeout, {"rank 1", directory_, "is rank 0 running"});
}

TEST_F(FileStoreTest, DirectoriesThatCannotServeAreNamed) {
  for (const Rank rank : {0, 1}) {
    Variables v = environment(rank, 2);
    v["RONDO_STORE"] = "file://" + directory_ + "/none";
    expect_error(join(v, 5), StatusCode::kSystem, {directory_ + "/none", "No such file", "RONDO_STORE"});
  }
  std::ofstream(directory_ + "/file") << "x";
  Variables v = environment(0, 2);
  v["RONDO_STORE"] = "file://" + directory_ + "/file";
  expect_error(join(v, 5), StatusCode::kSystem, {directory_ + "/file", "Not a directory", "RONDO_STORE"});
}

TEST_F(FileStoreTest, ADirectoryThatMayNotBeWrittenToIsNamed) {
  ASSERT_EQ(::chmod(directory_.c_str(), 0555), 0);
  testing::Child plain_user([&]() -> std::string {
    ::setenv("RONDO_CONFIG", "", 1);  // root's configuration may be unreadable
    if (::getuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) return "cannot change the user";
    return join(environment(0, 2), 5).to_string();
  });
  const std::string said = plain_user.join();
  EXPECT_NE(said.find("cannot write to the directory " + directory_), std::string::npos) << said;
  EXPECT_NE(said.find("Permission denied"), std::string::npos) << said;
}

TEST_F(FileStoreTest, TheFileIsTheUsersAlone) {
  const mode_t before = ::umask(0);
  FileStore s = store();
  ASSERT_OK(s.publish(*make_unique_id(), Deadline(20, nullptr)));
  ::umask(before);
  struct stat file {};
  ASSERT_EQ(::stat(s.path().c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 07777, 0600u);
}

TEST_F(FileStoreTest, FilesThatOthersCouldHaveMadeAreRefused) {
  FileStore s = store();
  const auto id = make_unique_id();
  ASSERT_OK(id.status());
  ASSERT_OK(s.publish(*id, Deadline(20, nullptr)));
  auto fetched = [&] { return store().fetch(1, Deadline(0.5, nullptr)).status(); };
  EXPECT_OK(fetched());
  for (const mode_t mode : {0660u, 0606u, 0640u, 0604u}) {
    ASSERT_EQ(::chmod(s.path().c_str(), mode), 0);
    expect_error(fetched(), StatusCode::kUnauthorized, {s.path(), "other users could"});
  }
  ASSERT_EQ(::chmod(s.path().c_str(), 0600), 0);
  if (::getuid() == 0) {
    ASSERT_EQ(::chown(s.path().c_str(), 65534, 65534), 0);
    expect_error(fetched(), StatusCode::kUnauthorized, {s.path(), "belongs to uid 65534"});
    ASSERT_EQ(::chown(s.path().c_str(), 0, 0), 0);
  }
  const std::string elsewhere = directory_ + "/elsewhere";
  ASSERT_EQ(::rename(s.path().c_str(), elsewhere.c_str()), 0);
  ASSERT_EQ(::symlink(elsewhere.c_str(), s.path().c_str()), 0);
  expect_error(fetched(), StatusCode::kUnauthorized, {s.path(), "symbolic link"});
  ASSERT_EQ(::unlink(s.path().c_str()), 0);
  ASSERT_EQ(::mkdir(s.path().c_str(), 0700), 0);
  expect_error(fetched(), StatusCode::kUnauthorized, {s.path(), "not a regular file"});
}

TEST_F(FileStoreTest, DamagedFilesAreRefused) {
  FileStore s = store();
  for (const std::string text : {"", "rondo store 1\n", "rondo store 1\n123\n", "#!/bin/sh\n"}) {
    std::ofstream(s.path()) << text;
    ASSERT_EQ(::chmod(s.path().c_str(), 0600), 0);
    expect_error(store().fetch(1, Deadline(0.5, nullptr)).status(), StatusCode::kMismatch, {s.path(), "remove it"});
  }
}

TEST_F(FileStoreTest, AbortEndsTheWait) {
  std::atomic<bool> abort = false;
  std::thread aborter([&] {
    ::poll(nullptr, 0, 50);
    abort = true;
  });
  expect_error(store().fetch(1, Deadline(60, &abort)).status(), StatusCode::kAborted, {"rank 1"});
  aborter.join();
}

}  // namespace
}  // namespace rondo
