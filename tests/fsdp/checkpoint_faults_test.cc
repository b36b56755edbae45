// Saves in which a rank dies, or a file operation fails, at every one of its operations. Afterwards the old or the new
// checkpoint is complete, all ranks get the error, and the next save cleans up.
//
// This program defines fsync, write and others, which the library calls instead of libc's.
// labels: mp
// timeout: 240
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "fsdp/checkpoint_support.h"

namespace {

// The failure in this process: the file operation at which it happens, counted from arm().
struct Trap {
  std::atomic<bool> armed{false};
  std::atomic<int> count{0};
  int due = 0;
  int error = 0;  // 0: SIGKILL
};
Trap trap;

bool springs() {
  if (!trap.armed.load() || ++trap.count != trap.due) return false;
  if (trap.error == 0) {
    ::kill(::getpid(), SIGKILL);
    while (true) ::pause();
  }
  errno = trap.error;
  return true;
}
bool on_disk(int fd) {
  struct stat s;
  return ::fstat(fd, &s) == 0 && (S_ISREG(s.st_mode) || S_ISDIR(s.st_mode));
}

}  // namespace

extern "C" {
int fsync(int fd) { return springs() ? -1 : static_cast<int>(::syscall(SYS_fsync, fd)); }
int mkdir(const char* path, mode_t mode) noexcept {
  return springs() ? -1 : static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
ssize_t write(int fd, const void* data, size_t size) {
  return trap.armed && on_disk(fd) && springs() ? -1 : ::syscall(SYS_write, fd, data, size);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  return springs() ? -1 : static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
int remove(const char* path) noexcept {
  if (springs()) return -1;
  const auto unlinked = ::syscall(SYS_unlinkat, AT_FDCWD, path, 0);
  if (unlinked == 0 || errno != EISDIR) return static_cast<int>(unlinked);
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
}
int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  if ((flags & O_CREAT) != 0 && springs()) return -1;
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
}

namespace rondo::fsdp::testing {
namespace {

constexpr int kRanks = 2;

// Every parameter has its turn's number: a mix of two turns would show.
void save_turn(Engine& engine, int turn, const std::string& folder, Status* saved) {
  const Status filled = engine.init([&](const Tensor&, uint64_t, uint64_t n, void* to) {
    std::fill_n(static_cast<float*>(to), n, static_cast<float>(turn));
  });
  ASSERT_TRUE(filled.ok()) << filled.to_string();
  *saved = save(engine, folder, {.items = "{\"turn\": " + std::to_string(turn) + "}"});
}

Setting adam() {
  Setting s;
  s.plan.nranks = kRanks;
  s.optimizer = {.rule = Rule::kAdam};
  s.communicator = "";
  return s;
}

// The stored turn; it must be complete.
int turn_of(const TempFolder& folder, const std::string& name = "c") {
  const auto c = inspect(folder / name);
  EXPECT_TRUE(c.ok()) << c.status().to_string();
  if (!c.ok()) return -1;
  const Status verified = verify(*c), merged = consolidate(*c, folder / "merged.safetensors");
  EXPECT_TRUE(verified.ok()) << verified.to_string();
  EXPECT_TRUE(merged.ok()) << merged.to_string();
  const int turn = nlohmann::json::parse(c->items)["turn"];
  const std::string bytes = bytes_of(folder / "merged.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(bytes.size() - 8 - length, (7 + 3 * 56) * sizeof(float));
  for (size_t at = 8 + length; at < bytes.size(); at += sizeof(float)) {
    float value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    EXPECT_EQ(value, static_cast<float>(turn)) << "at " << at;
    if (value != static_cast<float>(turn)) break;
  }
  return turn;
}

bool stale(const TempFolder& folder) { return std::filesystem::exists(folder / "c.saving"); }

struct Outcome {
  bool reached;  // the victim has that many operations
  bool refused;  // living ranks got an error
};
// One save of kRanks processes in which the victim's operation number `due` fails.
Outcome save_with_fault(const TempFolder& folder, int turn, Rank victim, int due, int error) {
  const std::string beyond = folder / "beyond", refused = folder / "refused";
  std::filesystem::remove(beyond);
  std::filesystem::remove(refused);
  rondo::testing::SpawnOptions options;
  options.config.deadline_s = 20;
  if (error == 0) options.may_die = {victim};
  with_engines(
      World::kProcesses, adam(),
      [&](Engine& engine, Rank rank) {
        trap.due = due;
        trap.error = error;
        trap.armed = rank == victim;
        Status saved;
        save_turn(engine, turn, folder / "c", &saved);
        trap.armed = false;
        if (rank == victim && trap.count < due) write_bytes(beyond, "");
        if (rank == victim && !saved.ok()) write_bytes(refused, "");
        if (error == 0) return;
        int32_t code = static_cast<int32_t>(saved.code()), all[kRanks];
        ASSERT_TRUE(engine.communicator().all_gather(&code, all, 1, Dtype::kInt32).ok());
        for (const int32_t c : all) EXPECT_EQ(c, code) << saved.to_string();
        if (!saved.ok()) {
          EXPECT_EQ(saved.code(), StatusCode::kSystem) << saved.to_string();
          EXPECT_NE(saved.message().find("rank " + std::to_string(victim)), std::string::npos) << saved.to_string();
          EXPECT_NE(saved.message().find("No space left"), std::string::npos) << saved.to_string();
        }
      },
      options);
  return {!std::filesystem::exists(beyond), std::filesystem::exists(refused)};
}

class CheckpointFaults : public ::testing::TestWithParam<std::tuple<Rank, int>> {};

TEST_P(CheckpointFaults, TheOldOneOrTheNewOneIsWhole) {
  const auto [victim, error] = GetParam();
  const TempFolder folder;
  int turn = 0, olds = 0, events = 0, there = 0, both = 0;
  with_engines(World::kProcesses, adam(), [&](Engine& engine, Rank) {
    Status saved;
    save_turn(engine, 0, folder / "c", &saved);
    EXPECT_TRUE(saved.ok()) << saved.to_string();
  });
  for (int due = 1; due < 100; ++due) {
    const auto [reached, refused] = save_with_fault(folder, ++turn, victim, due, error);
    const int now = turn_of(folder);
    EXPECT_TRUE(now == there || now == turn) << "operation " << due << ": turn " << now;
    // The exchange is not on the disk yet: both must stay.
    if (refused && now == turn) {
      EXPECT_EQ(turn_of(folder, "c.saving"), there) << "operation " << due;
      ++both;
    }
    if (now == there) ++olds;
    else ++events;
    there = now;
    if (::testing::Test::HasFailure()) return;
    if (!reached) {
      EXPECT_EQ(now, turn);
      EXPECT_FALSE(stale(folder)) << "files of earlier saves remain";
      break;
    }
    // A living rank cleans up after an error. The cleanup operation itself may be the one that fails.
    EXPECT_FALSE(error != 0 && now != turn && stale(folder)) << "operation " << due;
  }
  EXPECT_GT(olds, 5);
  EXPECT_GT(events, 0);
  EXPECT_EQ(both, victim == 0 && error != 0 ? 1 : 0);
}

INSTANTIATE_TEST_SUITE_P(Victims, CheckpointFaults,
                         ::testing::Combine(::testing::Values(0, 1), ::testing::Values(0, ENOSPC)),
                         [](const auto& info) {
                           return "Rank" + std::to_string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) == 0 ? "IsKilled" : "HasNoSpace");
                         });

// The kernel's own refusal in the middle of a file.
TEST(CheckpointFaults, AFileThatMayNotGrowIsNamed) {
  const TempFolder folder;
  with_engines(World::kProcesses, adam(), [&](Engine& engine, Rank rank) {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit before;
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit tight{500, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, rank == 1 ? &tight : &before), 0);
    Status saved;
    save_turn(engine, 1, folder / "c", &saved);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(saved.code(), StatusCode::kExhausted);
    for (const char* words : {"rank 1", "shard-00002", "File too large", "ulimit -f"})
      EXPECT_NE(saved.message().find(words), std::string::npos) << saved.to_string();
    save_turn(engine, 2, folder / "c", &saved);
    EXPECT_TRUE(saved.ok()) << saved.to_string();
  });
  EXPECT_EQ(turn_of(folder), 2);
  EXPECT_FALSE(stale(folder));
}

}  // namespace
}  // namespace rondo::fsdp::testing
